#!/usr/bin/env python3
"""Checks that compilers warn where a program ignores the status of a function of the C API.

    test/lint/ignored_status.py

A program that calls every function of rueda.h is compiled as C and as C++, by CC and CXX. The
warnings must be about all functions that return a status but those of MAY_BE_IGNORED.
"""
import os
import pathlib
import re
import subprocess
import sys

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "bindings/c/include"
# Ends and diagnosis: a program that ends anyway has nothing else to do.
MAY_BE_IGNORED = {"rueda_abort", "rueda_release", "rueda_shutdown", "rueda_timeline_start",
                  "rueda_timeline_stop", "rueda_wait_or_abort"}


def functions():
    """Name -> result, number of arguments."""
    text = (INCLUDE / "rueda/rueda.h").read_text()
    found = re.findall(r"^RUEDA_API (?:RUEDA_NODISCARD )?([^;(]*?)\b(\w+)\(([^;]*)\);", text, re.M)
    return {name: (result.strip(), 0 if arguments == "void" else arguments.count(",") + 1)
            for result, name, arguments in found}


def warned(compiler, language, standard, program):
    run = subprocess.run(
        [compiler, "-x", language, f"-std={standard}", "-c", "-o", os.devnull, "-Wall", "-I",
         INCLUDE, "-"],
        input=program, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    assert run.returncode == 0, run.stderr
    return {name for line in run.stderr.splitlines() if "warning:" in line
            for name in re.findall(r"\brueda_\w+(?=\(| ?[',’]|’)", line) if name in functions()}


def main():
    known = functions()
    calls = "\n".join(f"{name}({', '.join(['0'] * count)});" for name, (_, count) in known.items()
                      if name != "rueda_status_name")
    program = f'#include "rueda/rueda.h"\nvoid all(void);\nvoid all(void) {{\n{calls}\n}}\n'
    expected = {name for name, (result, _) in known.items() if result == "rueda_status"}
    unknown = MAY_BE_IGNORED - expected
    expected -= MAY_BE_IGNORED
    failed = bool(unknown) or len(expected) < 20
    print(f"{len(expected)} functions' status must be looked at")
    for name in sorted(unknown):
        print(f"{name} is no function with a status")
    for compiler, language, standard in ((os.environ.get("CC", "cc"), "c", "c11"),
                                         (os.environ.get("CXX", "c++"), "c++", "c++11"),
                                         (os.environ.get("CXX", "c++"), "c++", "c++20")):
        found = warned(compiler, language, standard, program)
        for name in sorted(expected - found):
            print(f"{standard}: no warning where the status of {name} is ignored")
        for name in sorted(found - expected):
            print(f"{standard}: a warning where the result of {name} is ignored")
        failed = failed or found != expected
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
