"""The backend's C++ part, which is built for one version of torch and of Python."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import pathlib
import sys
from types import ModuleType

import torch

from rueda import build, errors
from rueda.core import _library


@functools.cache
def module() -> ModuleType:
    """Loads it.

    Raises:
        RuedaError: there is none; the text says how to make it.
    """
    path = build.find(torch.__version__)
    if path is not None:
        return _load(path)
    raise errors.RuedaError(
        f"torch.distributed's backend 'rueda' is not built for torch {torch.__version__} and this "
        f"Python: run  {sys.executable} -m rueda.build  once, which takes a minute (looked for "
        f"{build.file_name(torch.__version__)} in {', '.join(map(str, build.folders()))})",
        errors.Status.UNIMPLEMENTED,
    )


def _load(path: pathlib.Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader("rueda_c10d", str(path))
    spec = importlib.util.spec_from_loader("rueda_c10d", loader)
    assert spec is not None
    try:
        made = importlib.util.module_from_spec(spec)
        loader.exec_module(made)
    except ImportError as error:
        raise errors.RuedaError(
            f"{path} can't be loaded: {error}; run  {sys.executable} -m rueda.build",
            errors.Status.FAILED_PRECONDITION,
        ) from error
    if made.rueda_version != _library.lib.rueda_version():
        raise errors.RuedaError(
            f"{path} is of another version of Rueda: run  {sys.executable} -m rueda.build",
            errors.Status.FAILED_PRECONDITION,
        )
    return made
