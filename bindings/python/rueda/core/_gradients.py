"""By which convention the drop-in modules scale the gradients of operations: Horovod's, or that of
the sum of all ranks' losses.

With N ranks in the process set, Horovod's gradients of allgather and broadcast are 1/N of those
that the sum of all ranks' losses has, and its gradient of reducescatter is N times that. Those of
allreduce and alltoall are the same by both conventions.

Ranks that differ get a MismatchError. In the backward pass of allgather and broadcast the reduce
operations differ. That of reducescatter is an allgather; by Horovod's convention its rows have one
more dimension of size 1.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from rueda import errors
from rueda.core import _context
from rueda.core._operations import ReduceOp
from rueda.core._process_sets import ProcessSet

HOROVOD, SUM = "horovod", "sum"

_chosen: str | None = None  # by the program
_told = False


def _given() -> str | None:
    return _chosen or _context.knob("gradients")


def gradients(convention: str | None = None) -> str:
    """By which convention the gradients of allgather, broadcast and reducescatter are scaled. A
    convention that is given holds in this process for operations that are called from then on; give
    all ranks the same one.

    Args:
        convention: "horovod" (the default): Horovod's gradients. "sum": the derivative of the sum
            of all ranks' losses. None: changes nothing. The knob RUEDA_GRADIENTS is the convention
            of a program that sets none.

    Returns:
        The convention that holds now.

    Raises:
        ValueError: there is no such convention.
    """
    global _chosen
    if convention is not None:
        if convention not in (HOROVOD, SUM):
            raise ValueError(f"gradients: {convention!r}; expected 'horovod' or 'sum'")
        _chosen = convention
    return _given() or HOROVOD


def name_of(name: str | None) -> str | None:
    """Of the gradient of an operation with this name."""
    return None if name is None else name + ".gradient"


_LINEAR = {
    "allreduce": (ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.AVERAGE_LIVE, ReduceOp.ADASUM),
    "reducescatter": (ReduceOp.AVERAGE, ReduceOp.SUM),
}


def check_exists(operation: str, op: int) -> None:
    """Raises NotImplementedError for a reduction that has no gradient."""
    if op not in _LINEAR[operation]:
        have = ", ".join(linear.name for linear in _LINEAR[operation])
        raise NotImplementedError(
            f"the gradient of {operation} with op={ReduceOp(op).name}: only {have} have one"
        )


def total_op(convention: str) -> ReduceOp:
    """How the backward passes of allgather and broadcast combine the ranks' gradients."""
    return ReduceOp.SUM if convention == SUM else ReduceOp.AVERAGE


def scattered_factor(convention: str, op: int, scale: tuple[float, float], ranks: int) -> float:
    """What the backward pass of a reducescatter multiplies gradients with before it gathers them.

    Args:
        op: Average or Sum, of the forward pass.
        scale: its prescale_factor and postscale_factor.
        ranks: how many the process set has.
    """
    factor = scale[0] * scale[1]
    if convention == SUM:
        return factor / ranks if op == ReduceOp.AVERAGE else factor
    return factor * ranks if op == ReduceOp.SUM else factor


def tell(operation: str, convention: str, process_set: ProcessSet) -> None:
    """Says once, on rank 0, that this gradient is not that of earlier versions, unless the program
    or the knob has chosen a convention."""
    global _told
    if _told or convention == SUM or _given() or process_set.size() == 1 or _context.rank() != 0:
        return
    _told = True
    change = "N times" if operation == "reducescatter" else "1/N of"
    print(
        f"rueda: the gradient of {operation} is Horovod's now: {change} that of earlier versions, "
        f"where N is the {process_set.size()} ranks that take part. Those of allgather, broadcast "
        'and reducescatter have changed. hvd.gradients("sum") on all ranks restores the earlier '
        'ones, hvd.gradients("horovod") only turns this message off.',
        file=sys.stderr,
        flush=True,
    )


@contextlib.contextmanager
def explained(of_gradient: bool = True) -> Iterator[None]:
    """A MismatchError in a backward pass also says that the ranks' conventions may differ."""
    try:
        yield
    except errors.MismatchError as error:
        if of_gradient:
            hint = "This is a backward pass: hvd.gradients() must be the same on all ranks, too."
            error.args = (f"{error}. {hint}",)
        raise
