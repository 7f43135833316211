"""Keras' optimizers, with gradients that are reduced over the ranks."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from rueda.core import _compression, _context
from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.tensorflow._compression import Compression
from rueda.tensorflow._gradients import (
    GradientReducer,
    Groups,
    check_groups,
    layers_of,
    predivided,
)
from rueda.tensorflow._operations import Average, Reduction, Sum


class _Accumulated:
    """Gradients of several backward passes, added up until they are reduced. It is none of the
    optimizer's own state, so that a model that is saved can be loaded without Rueda."""

    def __init__(self, passes: int, average: bool) -> None:
        self.passes = passes
        self._average = average
        self._sums: list[Any] = []
        self._count: Any = None
        _accumulated.add(self)

    def build(self, variables: Sequence[Any]) -> None:
        self._sums = [
            keras.Variable(
                keras.ops.zeros(variable.shape, variable.dtype),
                trainable=False,
                dtype=variable.dtype,
            )
            for variable in variables
        ]
        self._count = keras.Variable(0, trainable=False, dtype="int32")

    def clear(self) -> None:
        """As if there had been no backward pass since the last step."""
        for variable in [*self._sums, *([] if self._count is None else [self._count])]:
            variable.assign(keras.ops.zeros_like(variable))

    def add(
        self, numbers: Sequence[int], gradients: Sequence[Any], step: Callable[[list[Any]], None]
    ) -> None:
        """Adds gradients of the variables with these numbers; calls step(what has come together)
        every so many times."""
        for i, gradient in zip(numbers, gradients, strict=True):
            self._sums[i].assign(self._sums[i] + tf.convert_to_tensor(gradient))
        self._count.assign(self._count + 1)

        def take() -> None:
            factor = 1.0 / self.passes if self._average else 1.0
            step([keras.ops.multiply(self._sums[i], factor) for i in numbers])
            for i in numbers:
                self._sums[i].assign(keras.ops.zeros_like(self._sums[i]))
            self._count.assign(keras.ops.zeros_like(self._count))

        keras.ops.cond(self._count >= self.passes, take, lambda: None)


_accumulated: weakref.WeakSet[_Accumulated] = weakref.WeakSet()


def _after_regroup(_: int) -> None:
    for each in list(_accumulated):
        each.clear()


_context.after_regroup.append(_after_regroup)


class _Distributed:
    """What is added to an optimizer."""

    _rueda: GradientReducer
    _rueda_accumulated: _Accumulated

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable remains this rank's own."""
        self._rueda.add_local(var)

    def build(self, variables: Any) -> None:
        variables = list(variables)
        super().build(variables)  # type: ignore[misc]
        if self._rueda_accumulated.passes > 1:
            self._rueda_accumulated.build(variables)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """As the optimizer's, with gradients reduced over the ranks: a collective operation."""
        grads = list(grads)
        if trainable_variables is None:
            variables = list(self._trainable_variables)  # type: ignore[attr-defined]
        else:
            variables = list(trainable_variables)
        apply = super().apply  # type: ignore[misc]
        if self._rueda_accumulated.passes == 1:
            apply(self._rueda(grads, variables), trainable_variables)
            return
        if not self.built:  # type: ignore[has-type]
            self.build(variables)
            self.built = True
        present = [i for i, gradient in enumerate(grads) if gradient is not None]
        numbers = [self._get_variable_index(variables[i]) for i in present]  # type: ignore[attr-defined]
        some = [variables[i] for i in present]
        self._rueda_accumulated.add(
            numbers,
            [grads[i] for i in present],
            lambda sums: apply(self._rueda(sums, some), some),
        )


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A new optimizer like the given one, whose `apply` and `apply_gradients` reduce the gradients
    over the ranks first. Its class has the same name, so that a model that is saved with it can be
    loaded without Rueda.

    With the policy mixed_float16, give it the whole: ``DistributedOptimizer(LossScaleOptimizer(
    optimizer))``, as all ranks have to skip a step with infinities together. `compile` must not
    choose XLA (jit_compile=False), which knows no collectives.

    Args:
        optimizer: of Keras 3, on the backend TensorFlow.
        name: of the operations; None: "Distributed" and the class's name.
        device_dense: ignored; tensors are reduced where they are.
        device_sparse: ignored, as `device_dense` is.
        compression: a member of `Compression`, the name of a compressor, or one's own.
        sparse_as_dense: makes dense tensors of tf.IndexedSlices, whose values and indices are
            gathered otherwise.
        gradient_predivide_factor: divides before they are added up, and multiplies after.
        op: `Average` or `Sum`.
        backward_passes_per_step: adds up so many steps' gradients (as dense tensors) before they
            are reduced and applied.
        average_aggregated_gradients: divides them by that number.
        num_groups: deprecated; use `groups`.
        groups: how many groups, or lists of variables: what is in one is reduced together.
        process_set: the ranks that train together.
        scale_local_gradients: divides the gradients of variables that `register_local_var` was
            called with by the number of ranks.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"rueda.keras: Keras' backend is {keras.backend.backend()}: it has to be tensorflow "
            "(KERAS_BACKEND); for the others there are rueda.torch and rueda.jax"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"DistributedOptimizer: a {type(optimizer).__name__} is no optimizer of Keras'"
        )
    if isinstance(optimizer, _Distributed):
        raise ValueError("DistributedOptimizer: this optimizer is a distributed one already")
    if op not in (Average, Sum):
        raise ValueError("DistributedOptimizer: op is Average or Sum")
    passes = backward_passes_per_step
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(f"backward_passes_per_step is {passes!r}: a positive number")
    if passes > 1 and getattr(optimizer, "gradient_accumulation_steps", None):
        raise ValueError(
            "backward_passes_per_step and the optimizer's gradient_accumulation_steps: give one"
        )
    if keras.mixed_precision.dtype_policy().name == "mixed_float16" and not isinstance(
        optimizer, keras.optimizers.LossScaleOptimizer
    ):
        warnings.warn(
            "DistributedOptimizer: compile() puts a LossScaleOptimizer around it, which leaves out "
            "steps on one rank alone: give DistributedOptimizer a LossScaleOptimizer instead",
            RuntimeWarning,
            stacklevel=2,
        )
    _compression.check(compression)
    groups = check_groups(groups, num_groups)
    how = Reduction(op, predivided(op, gradient_predivide_factor), process_set, compression)
    base = type(optimizer)
    derived: Any = type(base.__name__, (_Distributed, base), {"__module__": base.__module__})
    distributed = derived.from_config(optimizer.get_config())
    distributed._rueda = GradientReducer(
        name or f"Distributed{base.__name__}", how, sparse_as_dense, groups, scale_local_gradients
    )
    distributed._rueda_accumulated = _Accumulated(passes, average_aggregated_gradients)
    if optimizer.built:
        distributed.build(optimizer._trainable_variables)
        for new, old in zip(distributed.variables, optimizer.variables, strict=True):
            new.assign(old)
    return distributed


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """As `DistributedOptimizer`, but the gradients of some layers remain this rank's own.

    Args:
        local_layers: a Keras layer, or several, whose weights exist already; else ValueError.
    """
    layers = layers_of(local_layers)
    distributed = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for layer in layers:
        for variable in layer.trainable_weights:
            distributed.register_local_var(variable)
    return distributed
