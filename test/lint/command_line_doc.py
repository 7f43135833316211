#!/usr/bin/env python3
"""Checks that docs/reference/command-line.md has what `ruedarun --help` prints.

    test/lint/command_line_doc.py RUEDARUN [--write]

With --write, puts it there instead.
"""

import difflib
import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/reference/command-line.md"
BLOCK = re.compile(r"(?<=^<!-- ruedarun --help)(.*? -->\n```text\n)(.*?)(?=^```$)", re.M | re.S)


def main(program, *options):
    run = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
    if "--help" not in run.stdout:
        return f"{program} --help prints no help"
    page = PAGE.read_text()
    match = BLOCK.search(page)
    if match is None:
        return f"{PAGE} has no block that is marked as ruedarun's help"
    if options == ("--write",):
        PAGE.write_text(page[: match.start(2)] + run.stdout + page[match.end(2) :])
        return None
    if match[2] == run.stdout:
        return None
    difference = difflib.unified_diff(match[2].splitlines(), run.stdout.splitlines(),
                                      str(PAGE), "ruedarun --help", lineterm="")
    return "\n".join([*difference, f"to write it anew: {sys.argv[0]} {program} --write"])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
