"""Elastic jobs with TensorFlow 2, in the manner of Horovod.

state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0, epoch=0)

@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, epochs):
        for state.batch in range(state.batch, batches):
            ...
            state.commit()
        state.batch = 0

train(state)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy
import tensorflow as tf

from rueda.core.elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    Kind,
    ObjectState,
    Own,
    Sharded,
    State,
    run_with,
)
from rueda.tensorflow._functions import broadcast_variables
from rueda.tensorflow._graph import rueda_errors

__all__ = [
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "Own",
    "Sharded",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "run",
]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """As `rueda.elastic.run`. Errors of collectives in graphs are the library's own within it."""
    return run_with(func, rueda_errors)


#: Parts of a layer's state that ranks do not share: where its random numbers have come to.
_RANDOM = "seed_generator_state"


class _Variables(Kind):
    """What has variables."""

    def __init__(self, variables_of: Callable[[Any], Sequence[Any]]) -> None:
        self._variables_of = variables_of

    def keep(self, value: Any) -> Any:
        return [numpy.array(variable.numpy()) for variable in self._variables_of(value)]

    def load(self, value: Any, kept: Any) -> None:
        for variable, copy in zip(self._variables_of(value), kept, strict=True):
            variable.assign(copy)

    def sync(self, value: Any, root: int, name: str) -> None:
        shared = [each for each in self._variables_of(value) if each.name != _RANDOM]
        if shared:
            broadcast_variables(shared, root)

    def replicated(self, value: Any, kept: Any) -> Any:
        variables = self._variables_of(value)
        return [
            copy for variable, copy in zip(variables, kept, strict=True) if variable.name != _RANDOM
        ]


_ONE = _Variables(lambda variable: [variable])
_SEVERAL = _Variables(lambda variables: variables)
_MODEL = _Variables(lambda model: model.weights)
_OPTIMIZER = _Variables(lambda optimizer: optimizer.variables)


def _is_variable(value: Any) -> bool:
    return isinstance(value, (tf.Variable, keras.Variable))


def _kind_of(value: Any) -> Kind | None:
    if _is_variable(value):
        return _ONE
    if isinstance(value, keras.layers.Layer):
        return _MODEL
    if isinstance(value, keras.optimizers.Optimizer):
        return _OPTIMIZER
    if isinstance(value, (list, tuple)) and value and all(map(_is_variable, value)):
        return _SEVERAL
    return None


class TensorFlowState(ObjectState):
    """The state of a program whose variables are given. Each argument becomes an attribute.

    Variables, also lists of them, Keras' layers, models and optimizers are kept and synced in
    place. Everything else is copied and pickled.

    Args:
        variables: tf.Variables.
        session: None: there are no sessions in TensorFlow 2, else ValueError.
        kwargs: more attributes.
    """

    def __init__(
        self, variables: Sequence[Any] | None = None, session: None = None, **kwargs: Any
    ) -> None:
        if session is not None:
            raise ValueError("TensorFlowState: there are no sessions in TensorFlow 2")
        variables = tf.compat.v1.global_variables() if variables is None else list(variables)
        super().__init__(variables=variables, **kwargs)

    def _kind_of(self, value: Any) -> Kind | None:
        return _kind_of(value) or super()._kind_of(value)


class TensorFlowKerasState(ObjectState):
    """The state of a program with a model of Keras. Each argument becomes an attribute.

    Variables, also lists of them, Keras' layers, models and optimizers are kept and synced in
    place. Everything else is copied and pickled. Where a layer's random numbers have come to
    remains each rank's own.

    Args:
        model: has its weights already, else ValueError.
        optimizer: None: that of `model.compile`, if there is one.
        backend: not looked at.
        kwargs: more attributes.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        if not model.built:
            raise ValueError(
                "elastic state: the model has no weights yet: call model.build(input_shape), or "
                "the model itself, first"
            )
        optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if isinstance(optimizer, keras.optimizers.Optimizer) and not optimizer.built:
            optimizer.build(model.trainable_variables)
        super().__init__(model=model, optimizer=optimizer, **kwargs)

    def _kind_of(self, value: Any) -> Kind | None:
        return _kind_of(value) or super()._kind_of(value)
