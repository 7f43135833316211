"""What the lints that look at the whole tree share."""

import pathlib
import sys


def run(check, prefix=""):
    """Ends the program: checks the tree that is given as an argument, or this one, and prints what is wrong.

    `check(root)` returns a list of lines.
    """
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    if root.is_file():
        root = root.parents[2]
    errors = check(root)
    for error in errors:
        print(prefix + error)
    sys.exit(1 if errors else 0)
