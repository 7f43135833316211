"""Gradients averaged over the ranks, and parameters that all ranks begin with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax

from rueda.core._collectives import Average
from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.jax._operations import broadcast, grouped_allreduce

T = TypeVar("T")


def allreduce_gradients(
    gradients: T,
    op: int = Average,
    *,
    name: str | None = "gradients",
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | int = global_process_set,
    compression: Any = None,
) -> T:
    """The average over all ranks of a pytree of gradients, in one call; see `grouped_allreduce`."""
    return grouped_allreduce(
        gradients,
        name,
        op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        compression=compression,
    )


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """As jax.value_and_grad, with gradients that are averaged over all ranks; the value is this
    rank's.

    Args:
        fun: a function with a scalar result.
        argnums: by which arguments.
        has_aux: whether it returns (result, something else).
        options: those of `allreduce_gradients`.
    """
    local = jax.value_and_grad(fun, argnums=argnums, has_aux=has_aux)

    @functools.wraps(fun)
    def distributed(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        value, gradients = local(*args, **kwargs)
        return value, allreduce_gradients(gradients, **options)

    return distributed


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """As jax.grad, with gradients that are averaged over all ranks; see `value_and_grad`."""
    both = value_and_grad(fun, argnums, has_aux, **options)

    @functools.wraps(fun)
    def distributed(*args: Any, **kwargs: Any) -> Any:
        value, gradients = both(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return distributed


class GradientTransformation(NamedTuple):
    """As optax has it, for optax.chain."""

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


def DistributedGradients(**options: Any) -> GradientTransformation:
    """Averages gradients on their way into an optimizer of optax:
    ``optax.chain(rx.DistributedGradients(), optax.adam(1e-3))``.

    Args:
        options: those of `allreduce_gradients`.
    """

    def update(updates: Any, state: Any, params: Any = None, **_: Any) -> tuple[Any, Any]:
        return allreduce_gradients(updates, **options), state

    return GradientTransformation(lambda params: (), update)


def broadcast_parameters(
    params: T,
    root_rank: int = 0,
    *,
    name: str | None = None,
    process_set: ProcessSet | int = global_process_set,
) -> T:
    """The root's pytree: parameters, or an optimizer's state. It has the same structure on all
    ranks."""
    leaves, tree = jax.tree.flatten(params)
    received = [
        broadcast(leaf, root_rank, None if name is None else f"{name}.{i}", process_set=process_set)
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(tree, received)  # type: ignore[no-any-return]
