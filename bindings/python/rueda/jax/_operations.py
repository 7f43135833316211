"""The operations: on JAX's arrays, at once and in compiled functions, with gradients.

In a function that jax.jit compiles they are calls out of XLA's program: no Python runs, and tensors
are used where they lie. Operations of one rank are done in the order in which they were traced, one
after the other, and those of a function that is called later come later: all ranks have to do the
same ones in the same order. What belongs together goes into one `grouped_allreduce`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from rueda import errors
from rueda.core import _context, _gradients
from rueda.core import _library as c
from rueda.core import _operations as operations
from rueda.core._collectives import Average
from rueda.core._operations import ReduceOp
from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.jax import _effects
from rueda.jax._primitive import KINDS, UNNAMED, Spec, collective, execute

T = TypeVar("T")
_World = ProcessSet | int

# ---- gradients ----


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _apply(spec: Spec, *operands: Any) -> tuple[Any, ...]:
    return tuple(collective.bind(*operands, spec=spec))


def _forward(spec: Spec, *operands: Any) -> tuple[tuple[Any, ...], None]:
    if spec.kind in (c.ALLREDUCE, c.REDUCESCATTER):
        _gradients.check_exists(KINDS[spec.kind], spec.op)
    return _apply(spec, *operands), None


def _backward(spec: Spec, _: None, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    """None for a tensor of integers, which has no gradient."""
    has = [gradient.dtype != jax.dtypes.float0 for gradient in gradients]
    results = iter(_combine(spec, [g for g, yes in zip(gradients, has, strict=True) if yes]))
    return tuple(next(results) if yes else None for yes in has)


def _combine(spec: Spec, gradients: list[Any]) -> Sequence[Any]:
    if not gradients:
        return ()
    if spec.kind == c.ALLREDUCE:
        return _apply(spec.gradient(), *gradients)
    if spec.kind == c.BROADCAST:
        sums = _apply(spec.gradient(kind=c.ALLREDUCE, op=int(ReduceOp.SUM), root=-1), *gradients)
        # Elsewhere zeros that depend on the sums: in a second backward pass all ranks take part.
        return [jnp.where(_context.rank() == spec.root, g, jnp.zeros_like(g)) for g in sums]
    if spec.kind == c.ALLGATHER:
        return _apply(spec.gradient(kind=c.REDUCESCATTER, op=int(ReduceOp.SUM)), *gradients)
    if spec.kind == c.REDUCESCATTER:
        factor = spec.prescale * spec.postscale
        if spec.op == ReduceOp.AVERAGE:
            factor /= spec.ranks
        plain = spec.gradient(
            kind=c.ALLGATHER, op=c.NO_REDUCE_OP, prescale=1.0, postscale=1.0, compressor=""
        )
        return [whole * factor for whole in _apply(plain, *gradients)]
    return _apply(spec.gradient(), *gradients)  # an alltoall's


_apply.defvjp(_forward, _backward)


def _perform(spec: Spec, *operands: Any) -> Sequence[Any]:
    """As _apply, which is slow where there is nothing to be differentiated."""
    if _effects.is_eager():
        return execute(*operands, spec=spec)
    return _apply(spec, *operands)


def _array(value: Any) -> Any:
    return value if isinstance(value, jax.Array) else jnp.asarray(value)


# ---- specs ----

_COMPRESSED = ("float32", "float16", "bfloat16")


def _spec(kind: int, name: str | None, process_set: _World, **fields: Any) -> Spec:
    number = operations.set_id(process_set)
    ranks = c.lib.rueda_process_set_size(_context.current(), number)
    if ranks < 0:
        text = f"{KINDS[kind]}: {_context.last_error()}"
        if _context.is_initialized():
            raise ValueError(text)
        raise errors.NotInitializedError(text, errors.Status.FAILED_PRECONDITION)
    if name is not None:
        _context.encoded(name, "name")
    return Spec(kind, UNNAMED if name is None else name, number, ranks, **fields)


def _reduction(
    kind: int,
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: _World,
    compression: Any,
    group: bool,
) -> Sequence[Any]:
    operations.check_op(op)
    compressor = (operations.compressor_of(compression) or b"").decode()
    if compressor in ("", "none"):
        compressor = ""
    else:
        for tensor in tensors:
            if str(tensor.dtype) not in _COMPRESSED:
                raise ValueError(
                    f"{KINDS[kind]}: compression={compressor!r} is for {', '.join(_COMPRESSED)}, "
                    f"and there is a tensor of {tensor.dtype}"
                )
        if name is None and "no_feedback" not in compressor:
            compressor += ",no_feedback"  # what is lost is remembered by name
    spec = _spec(
        kind,
        name,
        process_set,
        group=group,
        op=int(op),
        prescale=float(prescale_factor),
        postscale=float(postscale_factor),
        compressor=compressor,
    )
    return _perform(spec, *tensors)


# ---- reductions ----


def allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
    compression: Any = None,
) -> jax.Array:
    """Combines all ranks' tensors, of one shape and dtype, into one that all get. Differentiable
    for averages, sums and Adasum: the gradient is combined likewise.

    Args:
        tensor: any shape.
        name: what errors, the timeline and compression call it; the same on all ranks.
        op: `Average`, `Sum`, `Min`, `Max`, `Product`, `Band`, `Bor`, `Bxor`, `Adasum` or
            `AverageLive`. An average of integers is the sum, divided and
            truncated toward zero: exact up to 32 bits, while a sum of 64 bits wraps around.
        prescale_factor: each input is multiplied with it first.
        postscale_factor: and the result.
        process_set: the ranks that take part.
        compression: makes sums and averages of floats smaller on their way: "fp16", "bf16", "fp8",
            "int8", "1bit", "topk:0.01", "powersgd:4", "auto" (see rueda.h). What a tensor loses is
            added the next time if it has a name.
    """
    scale = (prescale_factor, postscale_factor)
    tensors = [_array(tensor)]
    results = _reduction(c.ALLREDUCE, tensors, name, op, *scale, process_set, compression, False)
    return results[0]  # type: ignore[no-any-return]


def grouped_allreduce(
    tensors: T,
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
    compression: Any = None,
) -> T:
    """As `allreduce` of each leaf of a pytree, all together or not at all: one call, which fuses
    them. Errors call them "name.0", "name.1", ..."""
    leaves, tree = jax.tree.flatten(tensors)
    if not leaves:
        return tensors
    scale = (prescale_factor, postscale_factor)
    arrays = [_array(leaf) for leaf in leaves]
    results = _reduction(c.ALLREDUCE, arrays, name, op, *scale, process_set, compression, True)
    return jax.tree.unflatten(tree, results)  # type: ignore[no-any-return]


def reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _World = global_process_set,
    compression: Any = None,
) -> jax.Array:
    """Combines all ranks' tensors and gives each rank its part of the result's rows, which are a
    multiple of the ranks. Differentiable for averages and sums."""
    scale = (prescale_factor, postscale_factor)
    tensors = [_array(tensor)]
    results = _reduction(
        c.REDUCESCATTER, tensors, name, op, *scale, process_set, compression, False
    )
    return results[0]  # type: ignore[no-any-return]


# ---- moving ----


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> jax.Array:
    """The tensor of the root, a world rank; all ranks' are of its shape and dtype. Differentiable:
    the root gets the sum of the gradients, the others zeros."""
    spec = _spec(c.BROADCAST, name, process_set, root=int(root_rank))
    return _perform(spec, _array(tensor))[0]  # type: ignore[no-any-return]


def allgather(
    tensor: Any, name: str | None = None, *, process_set: _World = global_process_set
) -> jax.Array:
    """All ranks' tensors, joined along the first dimension in rank order. In compiled functions and
    for gradients they are of one shape; else the first dimension may differ by rank.
    Differentiable: the gradients that all ranks have for this rank's rows are added up."""
    return _perform(_spec(c.ALLGATHER, name, process_set), _array(tensor))[0]  # type: ignore[no-any-return]


def alltoall(
    tensor: Any, name: str | None = None, *, process_set: _World = global_process_set
) -> jax.Array:
    """Sends equal parts of the tensor's rows to each rank, and returns what all sent to this one,
    in rank order. Differentiable."""
    return _perform(_spec(c.ALLTOALL, name, process_set), _array(tensor))[0]  # type: ignore[no-any-return]


def send(
    tensor: Any,
    rank: int,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> None:
    """Sends the tensor to a rank, which must receive it by the same name; two that send to each
    other need one to receive first."""
    spec = _spec(c.SEND, name, process_set, root=int(rank))
    collective.bind(_array(tensor), spec=spec)


def recv(
    like: Any,
    rank: int,
    name: str | None = None,
    *,
    process_set: _World = global_process_set,
) -> jax.Array:
    """What a rank sends.

    Args:
        like: has its shape and dtype: an array or a jax.ShapeDtypeStruct.
    """
    shape = tuple(int(dim) for dim in like.shape)
    spec = _spec(
        c.RECV, name, process_set, root=int(rank), shape=shape, dtype=jnp.dtype(like.dtype).name
    )
    return collective.bind(spec=spec)[0]  # type: ignore[no-any-return]


def barrier(*, process_set: _World = global_process_set) -> None:
    """Waits until all ranks are here; in a compiled function what comes after it does."""
    collective.bind(spec=_spec(c.BARRIER, None, process_set))
