#!/usr/bin/env python3
"""Checks that each function of the C API that takes a struct with a `size` is tried with structs of
other versions: test/bindings/structs_test.cc has a case of it.

    test/lint/struct_versions.py [ROOT]
"""

import re

import tree

HEADER = "bindings/c/include/rueda/rueda.h"
TEST = "test/bindings/structs_test.cc"


def check(root):
    header = (root / HEADER).read_text()
    sized = set(re.findall(r"^typedef struct (\w+) \{\n  size_t size;", header, re.M))
    functions = re.findall(r"^RUEDA_API [^;(]*?\brueda_(\w+)\(([^;]*)\);", header, re.M)
    expected = {(struct, function) for function, parameters in functions
                for struct in sized if re.search(rf"\b{struct}\*", parameters)}
    # A struct that is in another one is taken where that one is.
    for outer, fields in re.findall(r"^typedef struct (\w+) \{\n(.*?)^\}", header, re.M | re.S):
        expected |= {(inner, function) for inner in sized if re.search(rf"\b{inner}\*", fields)
                     for struct, function in list(expected) if struct == outer}
    tried = set()
    for struct, uses in re.findall(r'^  add\("(\w+)",(.*?)\);\n', (root / TEST).read_text(),
                                   re.M | re.S):
        tried |= {(struct, function) for function in re.findall(r'\{"(\w+)",', uses)}
    errors = [f"{TEST}: Cases() lacks {struct} in rueda_{function}"
              for struct, function in sorted(expected - tried)]
    if len(sized) < 6 or len(expected) < 12:
        errors.append("nothing was checked")
    return errors


if __name__ == "__main__":
    tree.run(check)
