#!/usr/bin/env python3
"""Checks that each part of the engine has a test of its own: a file of test/controller/runtime
includes its header.

    test/lint/runtime_tests.py [ROOT]
"""

import pathlib
import re

import tree

PARTS = "controller/runtime"
TESTS = "test/controller/runtime"
INCLUDE = re.compile(r'^#include "(controller/runtime/[\w.-]+)"', re.M)


def check(root):
    errors = []
    included = set()
    for path in (root / TESTS).glob("*.cc"):
        included |= set(INCLUDE.findall(path.read_text()))
    headers = {path.name for path in (root / PARTS).glob("*.h")}
    if not headers or not included:
        errors.append("nothing was checked")
    for name in sorted(headers):
        if f"{PARTS}/{name}" not in included:
            errors.append(f"{PARTS}/{name} is included by no file of {TESTS}: write a test of it")
    return errors


if __name__ == "__main__":
    tree.run(check)
