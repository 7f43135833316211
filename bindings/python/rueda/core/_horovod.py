"""What rueda.torch, rueda.tensorflow and rueda.keras have of Horovod's surface that concerns no
tensors."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

from rueda import core
from rueda.core import _context, _library
from rueda.core._operations import ReduceOp
from rueda.core._process_sets import ProcessSet
from rueda.errors import RuedaError


def init(
    comm: Sequence[int] | None = None,
    process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None,
) -> None:
    """Joins the job that the environment describes; without a launcher it is a world of one rank.
    Does nothing when that is done already.

    Args:
        comm: None, or all ranks. Some of the ranks are a process set.
        process_sets: `ProcessSet`s or lists of ranks, the same on all ranks, which exist from then
            on; "dynamic", or None: none yet. Others can be added later in any case.
    """
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(f"init: process_sets is {process_sets!r}: a list, or 'dynamic'")
        process_sets = None
    wanted = [
        given if isinstance(given, ProcessSet) else ProcessSet(given)
        for given in process_sets or ()
    ]
    was_initialized = _context.is_initialized()
    core.init(process_sets=[process_set.ranks for process_set in wanted] or None)
    for number, process_set in enumerate(wanted, 1):
        process_set._become(number)
    everyone = list(range(_context.size()))
    if comm is None or (not hasattr(comm, "Get_rank") and list(comm) in ([], everyone)):
        return
    if not was_initialized:
        _context.shutdown()
    raise ValueError(
        f"init: comm is {comm!r}: all ranks take part here; for some of them make a process set"
    )


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Records what this rank's operations go through, in a file for chrome://tracing.

    Args:
        mark_cycles: not looked at, as there are no cycles.
    """
    core.start_timeline(file_path)


def reduce_op(op: int | None, average: bool | None) -> int:
    """What `op` and the deprecated `average` say together."""
    if average is None:
        return ReduceOp.AVERAGE if op is None else op
    if not isinstance(average, bool):
        raise TypeError(
            f"average is {average!r}, and should be True, False or None: a name is given as "
            "name=..."
        )
    if op is not None:
        raise ValueError("op supersedes average: give only one of them")
    warnings.warn(
        "average is deprecated: use op=Average or op=Sum", DeprecationWarning, stacklevel=3
    )
    return ReduceOp.AVERAGE if average else ReduceOp.SUM


# ---- what there is ----


def _has_module(name: str) -> bool:
    return (_library.folder() / "lib" / "rueda" / f"librueda_{name}.so").exists()


def mpi_enabled() -> bool:
    """False: MPI is not used."""
    return False


def mpi_built() -> bool:
    """False: MPI is not used. Programs may be started by mpirun all the same."""
    return False


def mpi_threads_supported() -> bool:
    """False: MPI is not used."""
    return False


def gloo_enabled() -> bool:
    """Whether Gloo moves bytes between hosts."""
    return gloo_built()


def gloo_built() -> bool:
    """Whether this library has its Gloo module."""
    return _has_module("gloo")


def nccl_built() -> int:
    """1 if this library has its NCCL module, else 0."""
    return int(_has_module("nccl"))


def cuda_built() -> bool:
    """Whether this library has its CUDA module."""
    return _has_module("nccl")


def rocm_built() -> bool:
    """False: there is no such thing."""
    return False


def ddl_built() -> bool:
    """False: there is no such thing."""
    return False


def ccl_built() -> bool:
    """False: there is no such thing."""
    return False


def check_extension(*_: Any) -> None:
    """Nothing to check: this package is built for no version of any framework."""


#: As Horovod calls it.
HorovodInternalError = RuedaError
