"""One JAX primitive for all collectives: eager, compiled, and with a batch dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from rueda.core import _library as c
from rueda.core._operations import Operation, Output, ReduceOp
from rueda.jax import _effects, _errors, _native

KINDS = {
    c.ALLREDUCE: "allreduce",
    c.BROADCAST: "broadcast",
    c.ALLGATHER: "allgather",
    c.BARRIER: "barrier",
    c.ALLTOALL: "alltoall",
    c.REDUCESCATTER: "reducescatter",
    c.SEND: "send",
    c.RECV: "recv",
}

#: How all operations are called that were given no name: they keep their order, so only one of them
#: is under way, and ranks that don't do the same thing are told so.
UNNAMED = "rueda.jax"


class Spec(NamedTuple):
    """What is asked for; known when a function is traced."""

    kind: int
    name: str
    process_set: int
    #: Of the process set.
    ranks: int
    group: bool = False
    op: int = c.NO_REDUCE_OP
    root: int = -1
    prescale: float = 1.0
    postscale: float = 1.0
    compressor: str = ""
    #: Of what is received.
    shape: tuple[int, ...] = ()
    dtype: str = ""

    def gradient(self, **changes: Any) -> Spec:
        """Of this operation's gradient."""
        name = self.name if self.name == UNNAMED else self.name + ".gradient"
        return self._replace(name=name, **changes)


def _result_shape(spec: Spec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Raises ValueError for what has no equal parts."""
    if spec.kind in (c.ALLREDUCE, c.BROADCAST):
        return shape
    kind = KINDS[spec.kind]
    if not shape:
        raise ValueError(f"{kind}: a scalar has no first dimension")
    rows, rest = shape[0], shape[1:]
    if spec.kind == c.ALLGATHER:
        return (rows * spec.ranks, *rest)
    if rows % spec.ranks != 0:
        raise ValueError(f"{kind}: {rows} rows have no equal parts for {spec.ranks} ranks")
    return shape if spec.kind == c.ALLTOALL else (rows // spec.ranks, *rest)


# ---- tracing ----


def _abstract(*operands: Any, spec: Spec) -> tuple[list[Any], set[Any]]:
    results: list[Any]
    if spec.kind == c.RECV:
        results = [jax.core.ShapedArray(spec.shape, np.dtype(spec.dtype))]
    elif spec.kind in (c.BARRIER, c.SEND):
        results = []
    else:
        results = [
            jax.core.ShapedArray(_result_shape(spec, operand.shape), operand.dtype)
            for operand in operands
        ]
    return results, {_effects.order}


# ---- at once ----

_OUTPUTS = {
    c.ALLREDUCE: Output.NEW,
    c.BROADCAST: Output.NEW,
    c.SEND: Output.NONE,
    c.BARRIER: Output.NONE,
    c.RECV: Output.GIVEN,
}


def execute(*operands: Any, spec: Spec) -> Sequence[Any]:
    """By the library's own way, with its own exceptions."""
    _errors.forget()  # what compiled functions have begun comes first
    operation = Operation(
        spec.kind,
        _OUTPUTS.get(spec.kind, Output.TAKEN),
        None if spec.kind == c.BARRIER else spec.name,
        spec.process_set,
        spec.op,
        spec.root,
        spec.prescale,
        spec.postscale,
        spec.compressor.encode() or None,
    )
    if spec.kind == c.BARRIER:
        operation.execute(None)
        return []
    if spec.kind == c.SEND:
        operation.execute(operands[0])
        return []
    if spec.kind == c.RECV:
        return [jnp.asarray(operation.execute(np.empty(spec.shape, spec.dtype)))]
    for operand in operands:
        _result_shape(spec, operand.shape)
    if spec.group:
        return operation.execute_group(operands)
    return [operation.execute(operands[0])]


# ---- compiled ----


def _lower(ctx: Any, *operands: Any, spec: Spec) -> Any:
    _native.register()
    attributes = {
        "kind": np.int64(spec.kind),
        "name": spec.name,
        "process_set": np.int64(spec.process_set),
        "ranks": np.int64(spec.ranks),
        "group": np.int64(spec.group),
        "op": np.int64(spec.op),
        "root": np.int64(spec.root),
        "prescale": np.float64(spec.prescale),
        "postscale": np.float64(spec.postscale),
        "compressor": spec.compressor,
    }
    return _effects.lower(ctx, _native.TARGET, operands, attributes)


def _refuse(ctx: Any, *_: Any, spec: Spec) -> Any:
    raise NotImplementedError(
        f"{KINDS[spec.kind]}: compiled for {', '.join(ctx.module_context.platforms)}, and "
        "rueda.jax has compiled collectives on the CPU only; call it outside of jit"
    )


# ---- vmap ----


def _batch(
    operands: Sequence[Any], dims: Sequence[int | None], *, spec: Spec
) -> tuple[Sequence[Any], Sequence[int | None]]:
    """One operation for the whole batch, which lies behind the rows."""
    kind = KINDS[spec.kind]
    if spec.kind == c.SEND:
        raise NotImplementedError("vmap of send: a receiver does not know of the batch")
    if spec.compressor.startswith(("powersgd", "auto")) or spec.op == ReduceOp.ADASUM:
        raise NotImplementedError(
            f"vmap of {kind} with Adasum or {spec.compressor!r}: it is not by element"
        )
    by_rows = spec.kind in (c.ALLGATHER, c.ALLTOALL, c.REDUCESCATTER)
    moved: list[Any] = []
    to: list[int | None] = []
    for operand, dim in zip(operands, dims, strict=True):
        if dim is None:
            moved.append(operand)
            to.append(None)
            continue
        if by_rows and operand.ndim < 2:
            raise ValueError(f"{kind}: a scalar has no first dimension")
        to.append(1 if by_rows else 0)
        moved.append(jnp.moveaxis(operand, dim, int(by_rows)))
    return collective.bind(*moved, spec=spec), to


#: Takes one tensor, or a group; returns a list.
collective: Any = Primitive("rueda")
collective.multiple_results = True
collective.def_effectful_abstract_eval(_abstract)
collective.def_impl(execute)
mlir.register_lowering(collective, _refuse)
mlir.register_lowering(collective, _lower, platform="cpu")
batching.primitive_batchers[collective] = _batch
