#!/usr/bin/env python3
"""Checks that each part of the engine has a test of its own: a file of test/controller/runtime
includes its header.

    test/lint/runtime_tests.py [ROOT]
"""

import pathlib
import re
import sys

PARTS = "controller/runtime"
TESTS = "test/controller/runtime"
INCLUDE = re.compile(r'^#include "(controller/runtime/[\w.-]+)"', re.M)
# Parts without a test of their own, and what tests them meanwhile. One that gets a test goes.
WITHOUT = {}


def check(root):
    errors = []
    included = set()
    for path in (root / TESTS).glob("*.cc"):
        included |= set(INCLUDE.findall(path.read_text()))
    headers = {path.name for path in (root / PARTS).glob("*.h")}
    if not headers or not included:
        errors.append("nothing was checked")
    for name in sorted(headers):
        tested = f"{PARTS}/{name}" in included
        if not tested and name not in WITHOUT:
            errors.append(f"{PARTS}/{name} is included by no file of {TESTS}: write a test of it")
        elif tested and name in WITHOUT:
            errors.append(f"{PARTS}/{name} has a test: remove it from WITHOUT")
    errors += [
        f"{PARTS}/{name}, in WITHOUT, does not exist" for name in sorted(WITHOUT.keys() - headers)
    ]
    return errors


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    if root.is_file():
        root = root.parents[2]
    errors = check(root)
    for error in errors:
        print(error)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
