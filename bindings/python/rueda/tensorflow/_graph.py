"""Collectives as parts of graphs: Python that TensorFlow calls when it is there.

In a function that tf.function makes a graph of, collectives run in the order in which the function
has them, as all that has an effect: the same one on all ranks. In a tf.Graph that a session runs
they run in any order, so those that the program does not name are named after their node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from rueda import errors

# What the last collective in a graph failed with. TensorFlow keeps its text alone, and makes an
# InvalidArgumentError of a ValueError, an UnimplementedError of a NotImplementedError, and an
# UnknownError of all else that could be meant.
_failure: errors.RuedaError | None = None


def _remembering(body: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arrays: Any) -> Any:
        global _failure
        try:
            return body(*arrays)
        except errors.RuedaError as error:
            _failure = error
            if isinstance(error, errors.MismatchError):
                raise ValueError(f"{type(error).__name__}: {error}") from error
            raise

    return called


def call(
    body: Callable[..., Sequence[Any]], tensors: Sequence[Any], results: Sequence[tf.TensorSpec]
) -> list[Any]:
    """What `body` makes of eager tensors, at once; in a graph, of NumPy's arrays, when it runs.

    Args:
        body: does not change what it is given.
        results: of which type and shape, as far as is known.
    """
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(result) for result in body(*tensors)]
    made = tf.numpy_function(_remembering(body), list(tensors), [spec.dtype for spec in results])
    made = list(made) if isinstance(made, (list, tuple)) else [made]
    for tensor, spec in zip(made, results, strict=True):
        tensor.set_shape(spec.shape)
    return made


def node_name(kind: str, name: str | None) -> str | None:
    """The name of an operation that the program called `name`; None: it goes by its order."""
    if name is not None or tf.executing_eagerly():
        return name
    with tf.init_scope():  # out of functions
        if tf.executing_eagerly():
            return None
        made: str = tf.compat.v1.get_default_graph().unique_name(f"rueda/{kind}")
        return made


@contextlib.contextmanager
def rueda_errors() -> Iterator[None]:
    """A collective in a graph that fails is an error of TensorFlow's with Rueda's text in it
    (tf.errors.InvalidArgumentError if the ranks disagree, else mostly tf.errors.UnknownError); out
    of this block the library's own comes: AbortedError, MismatchError or another RuedaError. Also
    a decorator.

        with hvd.rueda_errors():
            model.fit(dataset)
    """
    global _failure
    _failure = None
    try:
        yield
    except tf.errors.OpError as error:
        own, _failure = _failure, None
        if own is None:
            raise
        raise own from error
