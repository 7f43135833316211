"""Collective operations on tensors of any framework.

Names match operations across the ranks, in any order of submission; operations without a name are
matched by their order. Functions whose name ends in ``_`` work in place; those with ``async``
return a `Handle` at once. A result is of the framework of its input (of a buffer: a memoryview), in
memory of its own. All may be called from any thread.

All raise ValueError or TypeError at once for what is wrong on this rank alone (a name in flight, a
root outside the process set, not a tensor), MismatchError when the ranks disagree (all of them
have it, and the job goes on), and AbortedError when a rank was lost.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from rueda.core import _context
from rueda.core import _library as c
from rueda.core._operations import (
    Handle,
    Operation,
    Output,
    ReduceOp,
    operation,
    received_splits,
    reduction,
    set_id,
)
from rueda.core._process_sets import ProcessSet, global_process_set

lib = c.lib
T = TypeVar("T")

Sum = ReduceOp.SUM
Average = ReduceOp.AVERAGE
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
Band = ReduceOp.BAND
Bor = ReduceOp.BOR
Bxor = ReduceOp.BXOR
Adasum = ReduceOp.ADASUM
AverageLive = ReduceOp.AVERAGE_LIVE

_World = ProcessSet | int


def poll(handle: Handle[Any]) -> bool:
    """Whether the operation has ended. May be false right after it was submitted."""
    return handle.poll()


def synchronize(handle: Handle[T]) -> T:
    """Waits for the operation and returns its result."""
    return handle.wait()


# ---- reductions ----


def allreduce(
    tensor: T,
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
    compression: Any = None,
    priority: int = 0,
) -> T:
    """Combines all ranks' tensors, of one shape and dtype, into one that all get.

    Args:
        tensor: any shape; not changed.
        op: `Average`, `Sum`, `Min`, `Max`, `Product`, `Band`, `Bor`, `Bxor`, `Adasum` or
            `AverageLive`. An average of integers is the sum, divided and
            truncated toward zero: exact up to 32 bits, while a sum of 64 bits wraps around.
        prescale_factor: each input is multiplied with it first.
        postscale_factor: and the result.
        compression: makes sums and averages of floats smaller on their way: "fp16", "bf16", "fp8",
            "int8", "1bit", "topk:0.01", "powersgd:4", "auto" (see rueda.h).
        priority: above 0: urgent; on CUDA such operations overtake others. Below 0: low; on the CPU
            such operations move while all others of this rank wait.
    """
    scale = (prescale_factor, postscale_factor)
    request = reduction(
        c.ALLREDUCE, Output.NEW, name, op, scale, process_set, compression, priority
    )
    return request.execute(tensor)


def allreduce_(
    tensor: T,
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
    compression: Any = None,
    priority: int = 0,
) -> T:
    """As `allreduce`, in the memory of `tensor`, which is contiguous and can be written."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(
        c.ALLREDUCE, Output.SAME, name, op, scale, process_set, compression, priority
    )
    return request.execute(tensor)


def allreduce_async(
    tensor: T,
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
    compression: Any = None,
    priority: int = 0,
) -> Handle[T]:
    """As `allreduce`, in the background: don't change `tensor` before it has ended."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(
        c.ALLREDUCE, Output.NEW, name, op, scale, process_set, compression, priority
    )
    return request.submit(tensor)


def allreduce_async_(
    tensor: T,
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
    compression: Any = None,
    priority: int = 0,
) -> Handle[T]:
    """As `allreduce_`, in the background: don't look at `tensor` before it has ended."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(
        c.ALLREDUCE, Output.SAME, name, op, scale, process_set, compression, priority
    )
    return request.submit(tensor)


def grouped_allreduce(
    tensors: Sequence[T],
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
    compression: Any = None,
) -> list[T]:
    """As `allreduce` of each, all together or not at all; named "name.0", "name.1", ..."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(c.ALLREDUCE, Output.NEW, name, op, scale, process_set, compression)
    return request.execute_group(tensors)


def grouped_allreduce_(
    tensors: Sequence[T],
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
    compression: Any = None,
) -> list[T]:
    """The same in place."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(c.ALLREDUCE, Output.SAME, name, op, scale, process_set, compression)
    return request.execute_group(tensors)


def grouped_allreduce_async(
    tensors: Sequence[T],
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
    compression: Any = None,
) -> Handle[list[T]]:
    """As `grouped_allreduce`, in the background."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(c.ALLREDUCE, Output.NEW, name, op, scale, process_set, compression)
    return request.submit_group(tensors)


def grouped_allreduce_async_(
    tensors: Sequence[T],
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
    compression: Any = None,
) -> Handle[list[T]]:
    """As `grouped_allreduce_`, in the background."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(c.ALLREDUCE, Output.SAME, name, op, scale, process_set, compression)
    return request.submit_group(tensors)


def reduce(
    tensor: T,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
) -> T | None:
    """As `allreduce`, but only the root, a world rank, has a result; the others get None."""
    scale = (prescale_factor, postscale_factor)
    output = Output.NEW if _context.rank() == root_rank else Output.NONE
    request = reduction(c.REDUCE, output, name, op, scale, process_set, root=root_rank)
    return request.execute(tensor)


def reduce_async(
    tensor: T,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
) -> Handle[T | None]:
    """As `reduce`, in the background."""
    scale = (prescale_factor, postscale_factor)
    output = Output.NEW if _context.rank() == root_rank else Output.NONE
    request = reduction(c.REDUCE, output, name, op, scale, process_set, root=root_rank)
    return request.submit(tensor)


def reduce_(
    tensor: T,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
) -> T:
    """As `reduce`, in the root's memory; the others' tensors stay as they are."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(c.REDUCE, Output.SAME, name, op, scale, process_set, root=root_rank)
    return request.execute(tensor)


def reduce_async_(
    tensor: T,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
) -> Handle[T]:
    """As `reduce_`, in the background."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(c.REDUCE, Output.SAME, name, op, scale, process_set, root=root_rank)
    return request.submit(tensor)


def reducescatter(
    tensor: T,
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
    compression: Any = None,
) -> T:
    """Combines all ranks' tensors and gives each rank some rows of the result: equal parts, the
    lowest ranks one row more."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(c.REDUCESCATTER, Output.TAKEN, name, op, scale, process_set, compression)
    return request.execute(tensor)


def reducescatter_async(
    tensor: T,
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
    compression: Any = None,
) -> Handle[T]:
    """As `reducescatter`, in the background."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(c.REDUCESCATTER, Output.TAKEN, name, op, scale, process_set, compression)
    return request.submit(tensor)


def grouped_reducescatter(
    tensors: Sequence[T],
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
) -> list[T]:
    """As `reducescatter` of each, all together or not at all."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(c.REDUCESCATTER, Output.TAKEN, name, op, scale, process_set)
    return request.execute_group(tensors)


def grouped_reducescatter_async(
    tensors: Sequence[T],
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
) -> Handle[list[T]]:
    """The same in the background."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(c.REDUCESCATTER, Output.TAKEN, name, op, scale, process_set)
    return request.submit_group(tensors)


# ---- moving ----


def broadcast(
    tensor: T,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> T:
    """The tensor of the root, a world rank; all ranks' are of its shape and dtype."""
    return operation(c.BROADCAST, Output.NEW, name, process_set, root=root_rank).execute(tensor)


def broadcast_(
    tensor: T,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> T:
    """The same in place."""
    return operation(c.BROADCAST, Output.SAME, name, process_set, root=root_rank).execute(tensor)


def broadcast_async(
    tensor: T,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> Handle[T]:
    """As `broadcast`, in the background."""
    return operation(c.BROADCAST, Output.NEW, name, process_set, root=root_rank).submit(tensor)


def broadcast_async_(
    tensor: T,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> Handle[T]:
    """As `broadcast_`, in the background."""
    return operation(c.BROADCAST, Output.SAME, name, process_set, root=root_rank).submit(tensor)


def allgather(tensor: T, name: str | None = None, *, process_set: _World = global_process_set) -> T:
    """All ranks' tensors, joined along the first dimension in rank order; that may differ by rank,
    the others are the same."""
    return Operation(c.ALLGATHER, Output.TAKEN, name, process_set).execute(tensor)


def allgather_async(
    tensor: T, name: str | None = None, *, process_set: _World = global_process_set
) -> Handle[T]:
    """The same in the background."""
    return Operation(c.ALLGATHER, Output.TAKEN, name, process_set).submit(tensor)


def grouped_allgather(
    tensors: Sequence[T], name: str | None = None, *, process_set: _World = global_process_set
) -> list[T]:
    """As `allgather` of each, all together or not at all."""
    return Operation(c.ALLGATHER, Output.TAKEN, name, process_set).execute_group(tensors)


def grouped_allgather_async(
    tensors: Sequence[T], name: str | None = None, *, process_set: _World = global_process_set
) -> Handle[list[T]]:
    """The same in the background."""
    return Operation(c.ALLGATHER, Output.TAKEN, name, process_set).submit_group(tensors)


def gather(
    tensor: T,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> T | None:
    """As `allgather`, but only the root, a world rank, has a result; the others get None."""
    output = Output.TAKEN if _context.rank() == root_rank else Output.NONE
    return Operation(c.GATHER, output, name, process_set, root=root_rank).execute(tensor)


def gather_async(
    tensor: T,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> Handle[T | None]:
    """The same in the background."""
    output = Output.TAKEN if _context.rank() == root_rank else Output.NONE
    return Operation(c.GATHER, output, name, process_set, root=root_rank).submit(tensor)


def scatter(
    tensor: T,
    root_rank: int,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> T:
    """This rank's rows of the root's tensor.

    Args:
        tensor: the root's; elsewhere one of its dtype with rows of its shape, of which nothing
            else is looked at.
        splits: the root's: rows for each rank of the process set; None: equal parts.
    """
    request = Operation(c.SCATTER, Output.TAKEN, name, process_set, root=root_rank, splits=splits)
    return request.execute(tensor)


def scatter_async(
    tensor: T,
    root_rank: int,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> Handle[T]:
    """The same in the background."""
    request = Operation(c.SCATTER, Output.TAKEN, name, process_set, root=root_rank, splits=splits)
    return request.submit(tensor)


class Received(NamedTuple):
    """The result of an alltoall with splits."""

    tensor: Any
    #: How many of its rows came from each rank of the process set.
    splits: list[int]


def alltoall(
    tensor: T,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> T | Received:
    """Sends rows of `tensor` to each rank, and returns what all sent to this one, in rank order.

    Args:
        splits: rows for each rank of the process set, all together the tensor's; any sequence of
            integers. None: equal parts.

    Returns:
        The tensor, or with splits (tensor, how many of its rows came from each rank).
    """
    return alltoall_async(tensor, splits, name, process_set=process_set).wait()


def alltoall_async(
    tensor: T,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> Handle[T | Received]:
    """The same in the background."""
    request = Operation(c.ALLTOALL, Output.TAKEN, name, process_set, splits=splits)
    handle: Handle[Any] = request.submit(tensor)
    if splits is not None:
        received = received_splits(handle)
        handle.then(lambda result: Received(result, received[0]))
    return handle


def send(
    tensor: Any,
    rank: int,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> None:
    """Sends the tensor to a rank, which must receive it by the same name, or both unnamed and in
    one order."""
    Operation(c.SEND, Output.NONE, name, process_set, root=rank).execute(tensor)


def send_async(
    tensor: Any,
    rank: int,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> Handle[None]:
    """The same in the background: don't change `tensor` before it has ended."""
    return Operation(c.SEND, Output.NONE, name, process_set, root=rank).submit(tensor)


def recv_(
    tensor: T,
    rank: int,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> T:
    """Receives what a rank sends into `tensor`, of the same dtype and shape."""
    return Operation(c.RECV, Output.GIVEN, name, process_set, root=rank).execute(tensor)


def recv_async_(
    tensor: T,
    rank: int,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> Handle[T]:
    """The same in the background."""
    return Operation(c.RECV, Output.GIVEN, name, process_set, root=rank).submit(tensor)


# ---- without tensors ----


def barrier(*, process_set: _World = global_process_set) -> None:
    """Waits until all ranks are here."""
    Operation(c.BARRIER, Output.NONE, None, process_set).execute(None)


def join(*, process_set: _World = global_process_set) -> int:
    """Says that this rank has no more data: the others' operations go on without it. It brings no
    rows, and nothing to reductions; averages divide by the number of all ranks. Waits until all
    ranks have joined, and returns the one that joined last.

    Raises:
        RuedaError: a rank left without joining. On the others, while a rank has joined: an
            operation has it as its root, sends to it or receives from it, or changes process sets.
    """
    context = _context.current()
    last = ctypes.c_int32()
    number = set_id(process_set)
    status, message = _context.interruptible(
        lambda: lib.rueda_join(context, number, c.FOREVER, ctypes.byref(last))
    )
    if status != 0:
        _context.fail(status, context, message)
    return last.value
