"""``ruedarun``, as the wheel installs it: the program of that name in the package."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from rueda.core import _library


def program() -> str:
    """The path of ruedarun."""
    return str(_library.folder() / "bin" / "ruedarun")


def main() -> NoReturn:
    """Becomes ruedarun."""
    os.execv(program(), [program(), *sys.argv[1:]])
