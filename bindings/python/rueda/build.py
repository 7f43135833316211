"""Builds the backend of torch.distributed for the torch and the Python that run this:
``python -m rueda.build``. Needs a C++20 compiler (``$CXX``, or c++) and Python's headers
(python3-dev); takes a minute. Once for each version of either."""

from __future__ import annotations

import argparse
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time

from rueda.core import _library

_OLDEST = (2, 11)
_SOURCES = "bindings/torch"
_FLAGS = "-std=c++20 -O2 -fPIC -fvisibility=hidden -DNDEBUG -DTORCH_EXTENSION_NAME=rueda_c10d"


def file_name(torch_version: str) -> str:
    """Of the module for a torch and this Python."""
    minor = ".".join(torch_version.split(".")[:2])
    return f"rueda_c10d-torch{minor}-{sys.implementation.cache_tag}.so"


def folders() -> list[pathlib.Path]:
    """Where modules may be: the package's own, and the one for users who can't write there."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return [_library.folder() / "lib", cache / "rueda" / _library.version()]


def find(torch_version: str) -> pathlib.Path | None:
    """The module for a torch and this Python, if there is one."""
    paths = [folder / file_name(torch_version) for folder in folders()]
    return next((path for path in paths if path.exists()), None)


class BuildError(Exception):
    """Why it can't be built."""


def _root() -> pathlib.Path:
    """Of the sources: the package has them, or it is part of them."""
    own = _library.folder() / "native"
    root = own if own.exists() else pathlib.Path(__file__).resolve().parents[3]
    if not (root / _SOURCES / "c10d").exists():
        raise BuildError(f"the sources are not in {root}: install the wheel again")
    return root


def _compiler() -> list[str]:
    command = shlex.split(os.environ.get("CXX", "c++"))
    if not command or shutil.which(command[0]) is None:
        raise BuildError(
            f"there is no C++ compiler {' '.join(command)!r}: install g++ (Debian: apt-get install "
            "g++), or name one in CXX"
        )
    return command


def _includes(root: pathlib.Path, torch: pathlib.Path) -> list[str]:
    python = sysconfig.get_paths()["include"]
    if not os.path.exists(os.path.join(python, "Python.h")):
        raise BuildError(
            f"Python's headers are not in {python}: install them (Debian: apt-get install "
            "python3-dev)"
        )
    own = [root, *(root / "bindings" / part / "include" for part in ("c", "cpp", "torch"))]
    others = [torch / "include", torch / "include/torch/csrc/api/include", python]
    return [f"-I{path}" for path in own] + [f"-isystem{path}" for path in others]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"this failed: {shlex.join(command)}\n{done.stderr}")


def build() -> pathlib.Path:
    """Builds it, and returns where it is.

    Raises:
        BuildError: what is missing, or what the compiler says.
    """
    try:
        import torch
    except ImportError as error:
        raise BuildError(f"torch can't be imported: {error}") from error
    if tuple(map(int, torch.__version__.split(".")[:2])) < _OLDEST:
        raise BuildError(
            f"torch {torch.__version__} is too old: the backend of torch.distributed needs "
            f"{_OLDEST[0]}.{_OLDEST[1]} or later"
        )
    root, compiler = _root(), _compiler()
    package = pathlib.Path(torch.__file__).parent
    here = root / _SOURCES
    sources = [here / "operation.cc", here / "device.cc", *sorted((here / "c10d").glob("*.cc"))]
    flags = [
        *shlex.split(_FLAGS),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *_includes(root, package),
    ]
    target = _target(torch.__version__)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="rueda-build-") as scratch:
        # As one file: torch's headers are most of the work.
        whole = os.path.join(scratch, "rueda_c10d.cc")
        with open(whole, "w", encoding="utf-8") as file:
            file.writelines(f'#include "{source}"\n' for source in sources)
        made = os.path.join(scratch, target.name)
        libraries = [f"-L{package / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
        rueda = str(_library.folder() / "lib" / "librueda.so")
        print("rueda.build: this takes a minute or more", file=sys.stderr, flush=True)
        _run([*compiler, *flags, "-shared", whole, "-o", made, *libraries, rueda])
        os.replace(made, target)
    return target


def _target(torch_version: str) -> pathlib.Path:
    """In the first folder that can be written."""
    for folder in folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder / file_name(torch_version)
        except OSError:
            continue
    raise BuildError(f"none of {', '.join(map(str, folders()))} can be written")


def main() -> int:
    """The command."""
    argparse.ArgumentParser(prog="python -m rueda.build", description=__doc__).parse_args()
    begin = time.monotonic()
    try:
        print(f"{build()} ({time.monotonic() - begin:.0f} s)")
    except BuildError as error:
        print(f"rueda.build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
