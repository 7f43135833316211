"""The operations, with Horovod's names and arguments: blocking ones are differentiable where that
has a meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from rueda import core
from rueda.core import _gradients
from rueda.core import _library as c
from rueda.core import _operations as operations
from rueda.core._horovod import reduce_op
from rueda.core._operations import Handle, Operation, Output, ReduceOp, operation, reduction
from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.torch import _compression
from rueda.torch._compression import Compression

T = TypeVar("T")

Average, Sum, Adasum = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM
Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT


def _handle(handle: Any) -> Any:
    if not hasattr(handle, "wait"):
        raise TypeError(f"{handle!r} is no handle: those are what functions with _async return")
    return handle


def poll(handle: Handle[Any]) -> bool:
    """Whether the operation has ended. May be false right after it was submitted."""
    return bool(_handle(handle).poll())


def synchronize(handle: Handle[T]) -> T:
    """Waits for the operation and returns its result."""
    return _handle(handle).wait()  # type: ignore[no-any-return]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it can be written in place."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _written(tensor: torch.Tensor) -> torch.Tensor:
    """What can be written in place of `tensor`: itself, or a contiguous copy."""
    if _is_plain(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def execute_in_place(request: Operation, tensor: torch.Tensor) -> torch.Tensor:
    """In the tensor's memory, whatever its strides."""
    plain = _is_plain(tensor)
    return request.execute(tensor) if plain else in_place(request, [tensor], False).wait()


def submit_in_place(request: Operation, tensor: torch.Tensor) -> Handle[torch.Tensor]:
    """The same in the background."""
    return request.submit(tensor) if _is_plain(tensor) else in_place(request, [tensor], False)


def in_place(request: Operation, tensors: Sequence[torch.Tensor], group: bool) -> Handle[Any]:
    """In the tensors' memory, whatever their strides."""
    written = [_written(tensor) for tensor in tensors]
    handle: Handle[Any] = request.submit_group(written) if group else request.submit(written[0])

    def finish(_: object) -> Any:
        with torch.no_grad():
            for tensor, copy in zip(tensors, written, strict=True):
                if copy is not tensor:
                    tensor.copy_(copy)
        return list(tensors) if group else tensors[0]

    handle.then(finish)
    return handle


# ---- allreduce ----


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """Combines all ranks' tensors in the background; don't change `tensor` before it has ended.

    Args:
        tensor: any shape, the same on all ranks.
        average: deprecated; use `op`.
        name: matches the operation with the other ranks', in any order; None: by their order.
        op: `Average` (the default), `Sum`, `Min`, `Max`, `Product` or `Adasum`.
        prescale_factor: each input is multiplied with it first.
        postscale_factor: and the result.
        process_set: the ranks that take part.
    """
    scale = (prescale_factor, postscale_factor)
    request = reduction(c.ALLREDUCE, Output.NEW, name, reduce_op(op, average), scale, process_set)
    return request.submit(tensor)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """The same in place: don't look at `tensor` before it has ended."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(c.ALLREDUCE, Output.SAME, name, reduce_op(op, average), scale, process_set)
    return submit_in_place(request, tensor)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Combines all ranks' tensors in place; not differentiable."""
    op, scale = reduce_op(op, average), (prescale_factor, postscale_factor)
    if torch.compiler.is_compiling():
        return _write("allreduce", (False, op, name, scale, process_set, None), [tensor])[0]
    request = reduction(c.ALLREDUCE, Output.SAME, name, op, scale, process_set)
    return execute_in_place(request, tensor)


def _apply(kind: str, fixed: Sequence[Any], tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """As one of NODES, or as an operator (_operators.py) of what is being compiled. `fixed`: what
    has no gradient."""
    if not torch.compiler.is_compiling():
        return NODES[kind].apply(*fixed, *tensors)  # type: ignore[no-any-return]
    plain = [argument.id if isinstance(argument, ProcessSet) else argument for argument in fixed]
    return tuple(getattr(torch.ops.rueda_python, kind)(*plain, list(tensors)))


def _write(kind: str, fixed: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """An operation in place in what is being compiled."""
    with torch.no_grad():
        results = _apply(kind, fixed, tensors)
        for tensor, result in zip(tensors, results, strict=True):
            tensor.copy_(result)
    return list(tensors)


def _is_recorded(*tensors: torch.Tensor) -> bool:
    """Whether autograd or a compiler has to know of an operation on them."""
    if torch.compiler.is_compiling():
        return True
    return torch.is_grad_enabled() and any(
        getattr(tensor, "requires_grad", False) for tensor in tensors
    )


def _run(request: Operation, tensors: Sequence[torch.Tensor], group: bool) -> list[torch.Tensor]:
    """A group is one also if it has one tensor: the ranks have to agree about that."""
    return request.execute_group(tensors) if group else [request.execute(tensors[0])]


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        group: bool,
        op: int,
        name: str | None,
        scale: tuple[float, float],
        process_set: ProcessSet,
        compressor: str | None,
        *tensors: torch.Tensor,
    ) -> Any:
        ctx.arguments = (group, op, name, scale, process_set, compressor)
        request = reduction(c.ALLREDUCE, Output.NEW, name, op, scale, process_set, compressor)
        return tuple(_run(request, tensors, group))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        group, op, name, scale, process_set, compressor = ctx.arguments
        _gradients.check_exists("allreduce", op)
        fixed = (group, op, _gradients.name_of(name), scale, process_set, compressor)
        results = _apply("allreduce", fixed, gradients)
        return (None,) * 6 + results


_REQUESTS = {
    "allreduce": (c.ALLREDUCE, Output.NEW),
    "reducescatter": (c.REDUCESCATTER, Output.TAKEN),
}


def _reduced(
    kind: str,
    tensors: Sequence[torch.Tensor],
    group: bool,
    op: int,
    name: str | None,
    compression: Any,
    scale: tuple[float, float],
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    """Differentiable. With a compression of the user's own around it. A mixture of types is
    compressed by the library only if all of them are."""
    own = _compression.is_own(compression)
    pairs = [compression.compress(t) if own else (t, None) for t in tensors]
    sent = [pair[0] for pair in pairs]
    compressor = None
    if not own and op in (Average, Sum):
        types: set[Any] = {getattr(t, "dtype", None) for t in sent}
        names = {_compression.library_compressor(compression, dtype) for dtype in types}
        compressor = names.pop() if len(names) == 1 else None
    if not _is_recorded(*sent):
        request = reduction(*_REQUESTS[kind], name, op, scale, process_set, compressor)
        results = _run(request, sent, group)
    else:
        fixed = (group, op, name, scale, process_set, compressor)
        convention = (_gradients.gradients(),) if kind == "reducescatter" else ()
        results = list(_apply(kind, fixed + convention, sent))
    if not own:
        return results
    return [
        compression.decompress(result, pair[1]) for result, pair in zip(results, pairs, strict=True)
    ]


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Combines all ranks' tensors, and returns the result. Differentiable, for averages and sums:
    the gradient is combined likewise. Arguments as in `allreduce_async`."""
    op, scale = reduce_op(op, average), (prescale_factor, postscale_factor)
    if compression is Compression.none and not _is_recorded(tensor):
        request = reduction(c.ALLREDUCE, Output.NEW, name, op, scale, process_set)
        return request.execute(tensor)
    return _reduced("allreduce", [tensor], False, op, name, compression, scale, process_set)[0]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[torch.Tensor]]:
    """As `allreduce_async` of each, all together or not at all."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(c.ALLREDUCE, Output.NEW, name, reduce_op(op, average), scale, process_set)
    return request.submit_group(tensors)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[torch.Tensor]]:
    """As `allreduce_async_` of each, all together or not at all."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(c.ALLREDUCE, Output.SAME, name, reduce_op(op, average), scale, process_set)
    return in_place(request, tensors, True)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """As `allreduce_` of each, all together or not at all."""
    op, scale = reduce_op(op, average), (prescale_factor, postscale_factor)
    if torch.compiler.is_compiling():
        return _write("allreduce", (True, op, name, scale, process_set, None), tensors)
    request = reduction(c.ALLREDUCE, Output.SAME, name, op, scale, process_set)
    return in_place(request, tensors, True).wait()  # type: ignore[no-any-return]


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """As `allreduce` of each, all together or not at all; differentiable."""
    op, scale = reduce_op(op, average), (prescale_factor, postscale_factor)
    return _reduced("allreduce", tensors, True, op, name, compression, scale, process_set)


# ---- sparse ----


class SparseHandle:
    """Of a sparse allreduce under way."""

    def __init__(self, parts: Handle[list[torch.Tensor]], finish: Callable[[Any], Any]) -> None:
        self._parts = parts
        self._finish = finish

    def poll(self) -> bool:
        """Whether it has ended."""
        return self._parts.poll()

    def wait(self) -> torch.Tensor:
        """Waits for it, and returns a sparse tensor."""
        return self._finish(self._parts.wait())  # type: ignore[no-any-return]

    __call__ = wait


def _exact_average(
    indices: torch.Tensor, values: torch.Tensor, shape: torch.Size, ranks: int
) -> torch.Tensor:
    """Of integers: what has the same indices is added up in int64, divided and truncated."""
    total = torch.sparse_coo_tensor(indices, values.long(), shape).coalesce()
    mean = total.values().div(ranks, rounding_mode="trunc").to(values.dtype)
    return torch.sparse_coo_tensor(total.indices(), mean, shape, is_coalesced=True)


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> SparseHandle:
    """Adds up all ranks' sparse COO tensors of one shape, or averages them, in the background.
    Elements with the same indices are kept apart: ``coalesce()`` adds them up. An average of
    integers is coalesced, as `allreduce` would give it: the sum is divided and truncated.

    Raises:
        TypeError: the layout is another one, or it is an average of bool or uint64.
        ValueError: another operation.
    """
    if tensor.layout is not torch.sparse_coo:
        raise TypeError(f"sparse_allreduce_async: a tensor with the layout {tensor.layout}")
    if op not in (Average, Sum):
        raise ValueError("sparse_allreduce_async: there are op=Average and op=Sum")
    exact = op == Average and not tensor.is_floating_point() and not tensor.is_complex()
    if exact and tensor.dtype in (torch.bool, torch.uint64):
        raise TypeError(f"sparse_allreduce_async: there is no average of {tensor.dtype}")
    # Integers are added up at the end alone, where they don't wrap around.
    parts = tensor if exact or tensor.is_coalesced() else tensor.coalesce()
    rows = parts._indices().t().contiguous()
    # Two names, as the two are of different types: an allgather of each, done together.
    request = Operation(c.ALLGATHER, Output.TAKEN, name, process_set)
    handle: Handle[list[torch.Tensor]] = request.submit_group([rows, parts._values()])
    ranks = process_set.size()

    def finish(parts: list[torch.Tensor]) -> torch.Tensor:
        indices, values = parts
        if exact:
            return _exact_average(indices.t(), values, tensor.shape, ranks)
        if op == Average:
            values = values / ranks
        return torch.sparse_coo_tensor(indices.t(), values, tensor.shape)

    return SparseHandle(handle, finish)


# ---- moving ----


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor]:
    """As `allgather`, in the background."""
    return Operation(c.ALLGATHER, Output.TAKEN, name, process_set).submit(tensor)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[torch.Tensor]]:
    """As `grouped_allgather`, in the background."""
    return Operation(c.ALLGATHER, Output.TAKEN, name, process_set).submit_group(tensors)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        group: bool,
        name: str | None,
        process_set: ProcessSet,
        convention: str,
        *tensors: torch.Tensor,
    ) -> Any:
        ctx.arguments = (group, name, process_set, convention)
        ctx.rows = rows_of(tensors)
        request = Operation(c.ALLGATHER, Output.TAKEN, name, process_set)
        handle: Handle[Any] = request.submit_group(tensors) if group else request.submit(tensors[0])
        splits = operations.received_splits(handle, len(tensors))
        results = handle.wait()
        rank = process_set.rank()
        ctx.begins = [sum(split[:rank]) for split in splits]
        return tuple(results) if group else (results,)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        group, name, process_set, convention = ctx.arguments
        op, scale = _gradients.total_op(convention), (1.0, 1.0)
        name = _gradients.name_of(name)
        _gradients.tell("allgather", convention, process_set)
        with _gradients.explained():
            totals = _reduced(
                "allreduce", gradients, group, op, name, Compression.none, scale, process_set
            )
        parts = (
            _part(whole, begin, count)
            for whole, begin, count in zip(totals, ctx.begins, ctx.rows, strict=True)
        )
        return (None, None, None, None, *parts)


def rows_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """A number counts as a row."""
    return [t.shape[0] if t.dim() else 1 for t in tensors]


def _part(whole: torch.Tensor, begin: int | torch.Tensor, count: int) -> torch.Tensor:
    """So many rows. Where it begins is a tensor when it is not known yet."""
    if isinstance(begin, int):
        return whole.narrow(0, begin, count)
    return whole.index_select(0, (begin + torch.arange(count)).to(whole.device))


def gathered(
    tensors: Sequence[torch.Tensor],
    group: bool,
    name: str | None,
    process_set: ProcessSet,
    convention: str,
) -> list[torch.Tensor]:
    """An allgather whose gradient follows this convention."""
    if _is_recorded(*tensors):
        return list(_apply("allgather", (group, name, process_set, convention), tensors))[
            : len(tensors)
        ]
    return _run(Operation(c.ALLGATHER, Output.TAKEN, name, process_set), tensors, group)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """All ranks' tensors, joined along the first dimension in rank order; that may differ by rank.
    Differentiable: the gradients that all ranks have for this rank's rows are averaged, or summed
    up by `gradients("sum")`."""
    return gathered([tensor], False, name, process_set, _gradients.gradients())[0]


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """As `allgather` of each, all together or not at all; differentiable."""
    return gathered(tensors, True, name, process_set, _gradients.gradients())


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """As `broadcast`, in the background."""
    request = operation(c.BROADCAST, Output.NEW, name, process_set, root=root_rank)
    return request.submit(tensor)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """As `broadcast_`, in the background."""
    request = operation(c.BROADCAST, Output.SAME, name, process_set, root=root_rank)
    return submit_in_place(request, tensor)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrites the tensor with the root's, a world rank; not differentiable."""
    if torch.compiler.is_compiling():
        return _write("broadcast", (root_rank, name, process_set, ""), [tensor])[0]
    request = operation(c.BROADCAST, Output.SAME, name, process_set, root=root_rank)
    return execute_in_place(request, tensor)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet,
        convention: str,
        tensor: torch.Tensor,
    ) -> Any:
        ctx.arguments = (root_rank, name, process_set, convention)
        request = operation(c.BROADCAST, Output.NEW, name, process_set, root=root_rank)
        return (request.execute(tensor),)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        root_rank, name, process_set, convention = ctx.arguments
        op, name = _gradients.total_op(convention), _gradients.name_of(name)
        _gradients.tell("broadcast", convention, process_set)
        with _gradients.explained():
            total = allreduce(gradients[0], name=name, op=op, process_set=process_set)
        if core.rank() != root_rank:
            # Zeros that depend on the total: in a second backward pass all ranks take part.
            total = total.masked_fill(total.new_ones((), dtype=torch.bool), 0)
        return None, None, None, None, total


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The tensor of the root, a world rank. Differentiable: the root gets the average of the
    gradients, or by `gradients("sum")` their sum; the others get zeros."""
    if _is_recorded(tensor):
        fixed = (root_rank, name, process_set, _gradients.gradients())
        return _apply("broadcast", fixed, [tensor])[0]  # type: ignore[no-any-return]
    return operation(c.BROADCAST, Output.NEW, name, process_set, root=root_rank).execute(tensor)


def _exchange_async(
    tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet, tells_rows: bool
) -> Handle[Any]:
    """The tensor; if `tells_rows`, also how many of its rows came from each rank."""
    request = Operation(c.ALLTOALL, Output.TAKEN, name, process_set, splits=splits)
    handle: Handle[Any] = request.submit(tensor)
    if tells_rows:
        received = operations.received_splits(handle)
        handle.then(lambda result: (result, torch.tensor(received[0], dtype=torch.int32)))
    return handle


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Any]:
    """As `alltoall`, in the background."""
    return _exchange_async(tensor, splits, name, process_set, splits is not None)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        splits: Any,
        rows: int | None,
        name: str | None,
        process_set: ProcessSet,
        tensor: torch.Tensor,
    ) -> Any:
        """`rows`: of the result, if it is known."""
        result, received = _exchange_async(tensor, splits, name, process_set, True).wait()
        ctx.arguments = (received, rows_of([tensor])[0], name, process_set)
        ctx.mark_non_differentiable(received)
        return result, received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        received, rows, name, process_set = ctx.arguments
        name = _gradients.name_of(name)
        back, _ = _apply("alltoall", (received, rows, name, process_set), gradients[:1])
        return None, None, None, None, back


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows of `tensor` to each rank, and returns what all sent to this one, in rank order.
    Differentiable.

    Args:
        splits: rows for each rank of the process set (a tensor or a list of integers), which add up
            to the tensor's; None: equal parts.

    Returns:
        The tensor; if splits were given (tensor, how many of its rows came from each rank).
    """
    if not _is_recorded(tensor):
        return alltoall_async(tensor, splits, name, process_set).wait()
    sent = splits
    if torch.compiler.is_compiling() and splits is not None:
        sent = torch.as_tensor(splits)
    result = _apply("alltoall", (sent, None, name, process_set), [tensor])
    return result[0] if splits is None else result


# ---- reducescatter ----


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[torch.Tensor]:
    """As `reducescatter`, in the background."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(c.REDUCESCATTER, Output.TAKEN, name, op, scale, process_set)
    return request.submit(tensor)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[list[torch.Tensor]]:
    """As `grouped_reducescatter`, in the background."""
    scale = (prescale_factor, postscale_factor)
    request = reduction(c.REDUCESCATTER, Output.TAKEN, name, op, scale, process_set)
    return request.submit_group(tensors)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        group: bool,
        op: int,
        name: str | None,
        scale: tuple[float, float],
        process_set: ProcessSet,
        compressor: str | None,
        convention: str,
        *tensors: torch.Tensor,
    ) -> Any:
        ctx.arguments = (group, op, name, scale, process_set, compressor, convention)
        request = reduction(c.REDUCESCATTER, Output.TAKEN, name, op, scale, process_set, compressor)
        return tuple(_run(request, tensors, group))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        group, op, name, scale, process_set, _, convention = ctx.arguments
        _gradients.check_exists("reducescatter", op)
        factor = _gradients.scattered_factor(convention, op, scale, process_set.size())
        name = _gradients.name_of(name)
        marks = convention == _gradients.HOROVOD
        sent = [g * factor for g in gradients]
        if marks:
            sent = [g.unsqueeze(-1) for g in sent]
        _gradients.tell("reducescatter", convention, process_set)
        with _gradients.explained():
            wholes = gathered(sent, group, name, process_set, convention)
        return (None,) * 7 + tuple(g.squeeze(-1) if marks else g for g in wholes)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Combines all ranks' tensors and returns this rank's rows of the result: equal parts, the
    lowest ranks one row more. Differentiable, for averages and sums: gradients are joined as by
    `allgather`. Those of sums are multiplied with the number of ranks, as Horovod's are; by
    `gradients("sum")` those of averages are divided by it instead."""
    scale = (prescale_factor, postscale_factor)
    return _reduced("reducescatter", [tensor], False, op, name, compression, scale, process_set)[0]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """As `reducescatter` of each, all together or not at all; differentiable."""
    scale = (prescale_factor, postscale_factor)
    return _reduced("reducescatter", tensors, True, op, name, compression, scale, process_set)


# What autograd knows of.
NODES: dict[str, Any] = {
    "allreduce": _Allreduce,
    "allgather": _Allgather,
    "broadcast": _Broadcast,
    "alltoall": _Alltoall,
    "reducescatter": _Reducescatter,
}


# ---- without tensors ----


def join(device: int = -1, process_set: ProcessSet = global_process_set) -> int:
    """Says that this rank has no more data: the others' operations go on without it. It brings no
    rows, and nothing to reductions; averages divide by the number of all ranks. Waits until all
    ranks have joined, and returns the one that joined last.

    Args:
        device: not needed, and not looked at.

    Raises:
        RuedaError: a rank left without joining. On the others, while a rank has joined: an
            operation has it as its root, sends to it or receives from it, or changes process sets.
    """
    return core.join(process_set=process_set)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks are here."""
    core.barrier(process_set=process_set)
