"""Rueda for torch, in the manner of Horovod: change one import.

import rueda.torch as hvd

hvd.init()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from rueda import core
from rueda.core import (
    ProcessSet,
    _library,
    add_process_set,
    cross_rank,
    cross_size,
    global_process_set,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
    stop_timeline,
)
from rueda.errors import RuedaError
from rueda.torch import elastic
from rueda.torch._compression import Compression, Compressor
from rueda.torch._functions import (
    allgather_object,
    broadcast_object,
    broadcast_object_fn,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from rueda.torch._operations import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
    synchronize,
)
from rueda.torch._optimizer import DistributedOptimizer
from rueda.torch._sync_batch_norm import SyncBatchNorm


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
    was_initialized = is_initialized()
    core.init(process_sets=[process_set.ranks for process_set in wanted] or None)
    for number, process_set in enumerate(wanted, 1):
        process_set._id = number
    if comm is None or (not hasattr(comm, "Get_rank") and list(comm) in ([], list(range(size())))):
        return
    if not was_initialized:
        shutdown()
    raise ValueError(
        f"init: comm is {comm!r}: all ranks take part here; for some of them make a process set"
    )


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Records what this rank's operations go through, in a file for chrome://tracing.

    Args:
        mark_cycles: not looked at, as there are no cycles.
    """
    core.start_timeline(file_path)


# ---- what there is ----


def _has_module(name: str) -> bool:
    return (_library.folder() / "lib" / f"librueda_{name}.so").exists()


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
    """Nothing to check: this package is built for no version of torch."""


#: As Horovod calls it.
HorovodInternalError = RuedaError

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "check_extension",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
