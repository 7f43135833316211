#!/usr/bin/env python3
"""Checks that docs/internals/new-backend.md tells the truth: the files that it names exist, those of its
sample are all named, and each listing stands in the file from which it says it is.

    test/lint/new_backend_doc.py [ROOT]
"""
import pathlib
import re

import tree

PAGE = "docs/internals/new-backend.md"
SAMPLE = "ops/solo"
FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+)`")
LISTING = re.compile(r"^```\w+\n(.*?)^```$", re.M | re.S)
SOURCE = re.compile(r"[Ff]rom\s" + FILE.pattern)


def words(text):
    return " ".join(text.split())


def check(root):
    text = (root / PAGE).read_text()
    errors = []
    named = set(FILE.findall(text))
    for name in sorted(named):
        if not (root / name).exists():
            errors.append(f"names {name}, which does not exist")
    for path in sorted((root / SAMPLE).iterdir()):
        name = path.relative_to(root).as_posix()
        if name not in named:
            errors.append(f"does not name {name}, which is part of its sample")
    listings = 0
    for listing in LISTING.finditer(text):
        listings += 1
        sources = SOURCE.findall(text, 0, listing.start())
        line = text.count("\n", 0, listing.start()) + 1
        if not sources:
            errors.append(f"line {line}: the listing does not say where it is from")
        elif words(listing[1]) not in words((root / sources[-1]).read_text()):
            errors.append(f"line {line}: the listing is not what {sources[-1]} says")
    if not named or listings == 0:
        errors.append("nothing was checked")
    return errors


if __name__ == "__main__":
    tree.run(check, f"{PAGE}: ")
