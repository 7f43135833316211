"""The operations as operators that torch.compile records in its graphs (torch.ops.rueda_python),
made of the same nodes of autograd's.

Collectives have effects on other ranks: a compiler keeps each of them, and their order, also of the
C++ API's (torch.ops.rueda). The kernel of an operator is Python, and runs when the graph does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._compile import _disable_dynamo

from rueda.core._process_sets import ProcessSet
from rueda.torch import _operations

_NAMESPACE = "rueda_python"
_Library: Any = torch.library.Library  # without types
_library = _Library(_NAMESPACE, "DEF")  # its operators exist as long as it lives
_of_cpp = _Library("rueda", "FRAGMENT")

_Tensors = Sequence[torch.Tensor]


class _Kept:
    """What a node keeps for its backward pass, where autograd does not ask for it."""

    begins: list[int] | None = None

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        pass


def _unpacked(arguments: Sequence[Any], process_set: int) -> list[Any]:
    """As a node takes them, from what an operator does. `process_set`: which of them is its id."""
    fixed: list[Any] = [tuple(item) if isinstance(item, list) else item for item in arguments]
    fixed[process_set] = ProcessSet(id=fixed[process_set])
    return fixed


def _add(
    name: str,
    parameters: str,
    fake: Callable[..., list[torch.Tensor]],
    keep: Callable[[Any, Sequence[Any], _Tensors, _Tensors], None] = lambda *_: None,
) -> None:
    """The operator of one of NODES.

    Args:
        parameters: those before the tensors.
        fake: takes what the operator does, and returns tensors like its results.
        keep: sets what the backward pass needs besides ctx.arguments; takes ctx, the arguments,
            the tensors and the results.
    """
    function = _operations.NODES[name]
    names = [part.split()[-1] for part in parameters.split(", ")]
    process_set = names.index("process_set")
    _library.define(f"{name}({parameters}, Tensor[] tensors) -> Tensor[]")

    @_disable_dynamo
    def run(*arguments: Any) -> list[torch.Tensor]:
        kept = _Kept()
        fixed = _unpacked(arguments[:-1], process_set)
        results = list(function.forward(kept, *fixed, *arguments[-1]))
        if kept.begins is not None:
            results.append(torch.tensor(kept.begins, dtype=torch.int64))
        return results

    def setup_context(ctx: Any, inputs: Sequence[Any], output: _Tensors) -> None:
        ctx.arguments = _unpacked(inputs[:-1], process_set)
        keep(ctx, ctx.arguments, inputs[-1], output)
        ctx.count = len(inputs[-1])

    @_disable_dynamo
    def backward(ctx: Any, gradients: _Tensors) -> Any:
        results = function.backward(ctx, *gradients[: ctx.count])
        return (*results[: len(names)], list(results[len(names) :]))

    qualified = f"{_NAMESPACE}::{name}"
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, fake, lib=_library)
    torch.library.register_autograd(qualified, backward, setup_context=setup_context, lib=_library)
    _order(_library, [name])


def _order(library: Any, names: Sequence[str]) -> None:
    """These are kept, in their order; torch before 2.10 knows of no such thing."""
    register = getattr(library, "_register_effectful_op", None)
    if register is not None:
        from torch._library.effects import EffectType

        for name in names:
            register(f"{library.ns}::{name}", EffectType.ORDERED)


def _rows(tensor: torch.Tensor, rows: Any) -> torch.Tensor:
    return tensor.new_empty((rows, *tensor.shape[1:]))


def _like(*arguments: Any) -> list[torch.Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in arguments[-1]]


def _gathered(*arguments: Any) -> list[torch.Tensor]:
    context = torch.library.get_ctx()
    results = [_rows(tensor, context.new_dynamic_size()) for tensor in arguments[-1]]
    return [*results, torch.empty(len(results), dtype=torch.int64, device="cpu")]


def _exchanged(
    splits: Any, rows: Any, name: Any, process_set: int, tensors: _Tensors
) -> list[torch.Tensor]:
    known = torch.library.get_ctx().new_dynamic_size() if rows is None else rows
    ranks = ProcessSet(id=process_set).size()
    return [_rows(tensors[0], known), torch.empty(ranks, dtype=torch.int32, device="cpu")]


def _scattered(*arguments: Any) -> list[torch.Tensor]:
    """As the library shares rows: equal parts, the lowest ranks one row more."""
    process_set = ProcessSet(id=arguments[4])
    ranks, rank = process_set.size(), process_set.rank()
    results = []
    for tensor in arguments[-1]:
        if tensor.dim() == 0:
            raise ValueError("reducescatter: a scalar has no rows to share")
        results.append(_rows(tensor, (tensor.shape[0] + ranks - 1 - rank) // ranks))
    return results


def _keep_rows(ctx: Any, arguments: Sequence[Any], tensors: _Tensors, results: _Tensors) -> None:
    ctx.rows, ctx.begins = _operations.rows_of(tensors), results[-1].unbind()


def _keep_splits(ctx: Any, arguments: Sequence[Any], tensors: _Tensors, results: _Tensors) -> None:
    ctx.arguments = (results[-1], _operations.rows_of(tensors)[0], *arguments[2:])


_add(
    "allreduce",
    "bool group, int op, str? name, float[] scale, int process_set, str? compressor",
    _like,
)
_add(
    "allgather",
    "bool group, str? name, int process_set, str convention",
    _gathered,
    _keep_rows,
)
_add("broadcast", "int root_rank, str? name, int process_set, str convention", _like)
_add(
    "alltoall",
    "Tensor? splits, SymInt? rows, str? name, int process_set",
    _exchanged,
    _keep_splits,
)
_add(
    "reducescatter",
    "bool group, int op, str? name, float[] scale, int process_set, str? compressor, "
    "str convention",
    _scattered,
)
_order(
    _of_cpp,
    [
        *("allreduce", "grouped_allreduce", "broadcast", "allgather", "grouped_allgather"),
        *("alltoall", "reducescatter", "grouped_reducescatter", "reduce", "gather", "scatter"),
        *("send", "_recv", "_gathered_rows"),
    ],
)
