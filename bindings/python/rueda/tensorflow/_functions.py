"""State that all ranks shall have alike, and Python objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from rueda.core import allgather_object, broadcast_object
from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.tensorflow._operations import broadcast_

__all__ = [
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> None:
    """Assigns the root's values to all ranks' variables: a model's, an optimizer's.

    Args:
        variables: tf.Variables or Keras', the same ones on all ranks in the same order.
        root_rank: the world rank that has them right.
        inplace: not looked at.
    """
    broadcast_(variables, root_rank, "broadcast_variables", process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function that broadcasts an object from the root, as `broadcast_object` does."""
    return lambda obj: broadcast_object(obj, root_rank, name, process_set)


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """There are no global variables in TensorFlow 2: raises RuntimeError, as Horovod does."""
    raise RuntimeError(
        f"broadcast_global_variables({root_rank}): there are no global variables since TensorFlow "
        f"2: use broadcast_variables(model.weights, {root_rank}), or the callback "
        f"BroadcastGlobalVariablesCallback({root_rank})"
    )
