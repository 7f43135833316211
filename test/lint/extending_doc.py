#!/usr/bin/env python3
"""Checks that docs/internals/extending.md tells the truth: each of its sections names exactly the files of
the library that name its sample. Tests and pages that it names must name the sample, too.

    test/lint/extending_doc.py [ROOT]
"""

import pathlib
import re

import tree

PAGE = "docs/internals/extending.md"
LIBRARY = ("core", "ops", "controller", "bindings")
FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+)`")
ROW = re.compile(r"^\| `.*$", re.M)
# By heading: how files name the sample.
SAMPLES = {
    # "Product of ..." is mathematics.
    "A new reduce operation": re.compile(
        r"\bkProduct\b|\bRUEDA_PRODUCT\b|\bPRODUCT\b|\bProduct\b(?! of)|\"product\"|, product\b"
    ),
    "A new attribute of an operation": re.compile(r"\bprescale(_factor)?\b"),
    "A new attribute that is the same in each call": re.compile(r"\burgent\b|\bPriority\b|\bpriority = \d"),
}
# PowerSGD has a step that is called so; the launcher explains another library's option.
NOT_A_SAMPLE = re.compile(r"\bStep\b|num-nccl-streams")


def names(path, sample):
    lines = path.read_text(errors="replace").splitlines()
    return any(sample.search(line) and not NOT_A_SAMPLE.search(line) for line in lines)


def section(text, heading):
    match = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, re.M | re.S)
    return match[1] if match else ""


def library_files(root):
    for folder in LIBRARY:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def check(root):
    text = (root / PAGE).read_text()
    errors = []
    for heading, sample in SAMPLES.items():
        listed = {name for row in ROW.findall(section(text, heading)) for name in FILE.findall(row)}
        found = {
            path.relative_to(root).as_posix() for path in library_files(root) if names(path, sample)
        }
        if not listed or not found:
            errors.append(f"'{heading}': nothing was checked")
        for name in sorted(found - listed):
            errors.append(f"'{heading}' does not name {name}, which names its sample")
        for name in sorted(listed - found):
            if not (root / name).is_file():
                errors.append(f"'{heading}' names {name}, which does not exist")
            elif name.startswith(LIBRARY) or not names(root / name, sample):
                errors.append(f"'{heading}' names {name}, which does not name its sample")
    return errors


if __name__ == "__main__":
    tree.run(check, f"{PAGE}: ")
