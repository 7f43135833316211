#!/usr/bin/env python3
"""Checks that each part of the engine has a test of its own: a file of test/controller/lanes
or test/controller/runtime includes its header.

    test/lint/runtime_tests.py [ROOT]
"""

import pathlib
import re

import tree

ROOMS = ("controller/lanes", "controller/runtime")
INCLUDE = re.compile(r'^#include "((?:%s)/[\w.-]+)"' % "|".join(ROOMS), re.M)


def check(root):
    errors = []
    included = set()
    headers = set()
    for room in ROOMS:
        for path in (root / "test" / room).glob("*.cc"):
            included |= set(INCLUDE.findall(path.read_text()))
        headers |= {f"{room}/{path.name}" for path in (root / room).glob("*.h")}
    if not headers or not included:
        errors.append("nothing was checked")
    for header in sorted(headers - included):
        errors.append(f"{header} is included by no file of test/{{{','.join(ROOMS)}}}: write a test of it")
    return errors


if __name__ == "__main__":
    tree.run(check)
