"""The types that callers of the operations get: test/lint/python.sh checks them with mypy. Nothing
here runs. A call with an `ignore` is an error that mypy has to report."""

from __future__ import annotations

import jax
import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import assert_type

import rueda
import rueda.jax as rj
import rueda.torch as hvd
from rueda import Handle
from rueda.core import Received

Array = npt.NDArray[np.float64]


def core_reductions(x: Array, xs: list[Array], world: rueda.ProcessSet) -> None:
    """Blocking, in place, in the background, and of groups."""
    assert_type(rueda.allreduce(x, "name", rueda.Sum, prescale_factor=2.0, priority=1), Array)
    assert_type(rueda.allreduce(tensor=x, process_set=world, compression="int8"), Array)
    assert_type(rueda.allreduce_(x), Array)
    assert_type(rueda.allreduce_async(x), Handle[Array])
    assert_type(rueda.allreduce_async_(x), Handle[Array])
    assert_type(rueda.synchronize(rueda.allreduce_async(x)), Array)
    assert_type(rueda.grouped_allreduce(xs), list[Array])
    assert_type(rueda.grouped_allreduce(tensors=(x, x)), list[Array])
    assert_type(rueda.grouped_allreduce_(xs), list[Array])
    assert_type(rueda.grouped_allreduce_async(xs), Handle[list[Array]])
    assert_type(rueda.grouped_allreduce_async_(xs), Handle[list[Array]])
    assert_type(rueda.reduce(x, 0), Array | None)
    assert_type(rueda.reduce_(x, 0), Array)
    assert_type(rueda.reduce_async(x, 0), Handle[Array | None])
    assert_type(rueda.reduce_async_(x, 0), Handle[Array])
    assert_type(rueda.reducescatter(x), Array)
    assert_type(rueda.reducescatter_async(x), Handle[Array])
    assert_type(rueda.grouped_reducescatter(xs), list[Array])
    assert_type(rueda.grouped_reducescatter_async(xs), Handle[list[Array]])
    rueda.allreduce(x, 1)  # type: ignore[arg-type]
    rueda.allreduce(x, None, rueda.Sum, 2.0)  # type: ignore[call-arg]
    rueda.allreduce(x, root_rank=0)  # type: ignore[call-arg]
    rueda.grouped_allreduce(xs, priority=1)  # type: ignore[call-arg]
    rueda.reduce(x)  # type: ignore[call-arg]


def core_moves(x: Array, xs: list[Array]) -> None:
    """Those that combine nothing."""
    assert_type(rueda.broadcast(x, 0, "name"), Array)
    assert_type(rueda.broadcast_(x, root_rank=0), Array)
    assert_type(rueda.broadcast_async(x, 0), Handle[Array])
    assert_type(rueda.broadcast_async_(x, 0), Handle[Array])
    assert_type(rueda.allgather(x), Array)
    assert_type(rueda.allgather_async(x), Handle[Array])
    assert_type(rueda.grouped_allgather(xs), list[Array])
    assert_type(rueda.grouped_allgather_async(xs), Handle[list[Array]])
    assert_type(rueda.gather(x, 0), Array | None)
    assert_type(rueda.gather_async(x, 0), Handle[Array | None])
    assert_type(rueda.scatter(x, 0, [1, 2]), Array)
    assert_type(rueda.scatter_async(x, 0), Handle[Array])
    assert_type(rueda.alltoall(x, [1, 2]), Array | Received)
    assert_type(rueda.alltoall_async(x), Handle[Array | Received])
    assert_type(rueda.send_async(x, 1), Handle[None])
    assert_type(rueda.recv_(x, 1), Array)
    assert_type(rueda.recv_async_(x, 1), Handle[Array])
    assert_type(rueda.join(), int)
    rueda.broadcast(x)  # type: ignore[call-arg]
    rueda.allgather(x, 0)  # type: ignore[arg-type]


def torch_operations(x: torch.Tensor, xs: list[torch.Tensor]) -> None:
    """Those with Horovod's arguments."""
    assert_type(hvd.allreduce(x, None, "name", hvd.Compression.fp16, hvd.Sum, 2.0), torch.Tensor)
    assert_type(hvd.allreduce_(x, op=hvd.Sum), torch.Tensor)
    assert_type(hvd.allreduce_async(x), Handle[torch.Tensor])
    assert_type(hvd.allreduce_async_(x), Handle[torch.Tensor])
    assert_type(hvd.synchronize(hvd.allreduce_async(x)), torch.Tensor)
    assert_type(hvd.grouped_allreduce(xs), list[torch.Tensor])
    assert_type(hvd.grouped_allreduce_(xs), list[torch.Tensor])
    assert_type(hvd.grouped_allreduce_async(xs), Handle[list[torch.Tensor]])
    assert_type(hvd.grouped_allreduce_async_(xs), Handle[list[torch.Tensor]])
    assert_type(hvd.reducescatter(x), torch.Tensor)
    assert_type(hvd.reducescatter_async(x), Handle[torch.Tensor])
    assert_type(hvd.grouped_reducescatter(xs), list[torch.Tensor])
    assert_type(hvd.grouped_reducescatter_async(xs), Handle[list[torch.Tensor]])
    assert_type(hvd.allgather(x), torch.Tensor)
    assert_type(hvd.allgather_async(x), Handle[torch.Tensor])
    assert_type(hvd.grouped_allgather(xs), list[torch.Tensor])
    assert_type(hvd.grouped_allgather_async(xs), Handle[list[torch.Tensor]])
    assert_type(hvd.broadcast(x, 0), torch.Tensor)
    assert_type(hvd.broadcast_(x, 0), torch.Tensor)
    assert_type(hvd.broadcast_async(x, 0), Handle[torch.Tensor])
    assert_type(hvd.broadcast_async_(x, 0), Handle[torch.Tensor])
    hvd.allreduce(x, "name")  # type: ignore[arg-type]
    hvd.allreduce_async(x, compression=hvd.Compression.fp16)  # type: ignore[call-arg]


def jax_operations(x: jax.Array, tree: dict[str, jax.Array]) -> None:
    """A group is any pytree."""
    assert_type(rj.allreduce(x, "name", rueda.Sum), jax.Array)
    assert_type(rj.grouped_allreduce(tree), dict[str, jax.Array])
    assert_type(rj.reducescatter(x), jax.Array)
    assert_type(rj.broadcast(x, 0), jax.Array)
    assert_type(rj.allgather(x), jax.Array)
    assert_type(rj.alltoall(x), jax.Array)
    assert_type(rj.recv(x, 1), jax.Array)
    rj.allreduce(x, priority=1)  # type: ignore[call-arg]
