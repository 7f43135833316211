"""Gradients reduced over the ranks, and a tape that gives such."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import tensorflow as tf

from rueda.core._operations import Handle
from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.tensorflow._compression import Compression
from rueda.tensorflow._graph import call
from rueda.tensorflow._operations import (
    Average,
    Reduction,
    allreduce,
    differentiable,
    ranks_of,
    spec_of,
    wait_for,
)

#: Numbers of variables that belong together: how many groups, or lists of variables.
Groups = int | Sequence[Sequence[Any]] | None


def check_groups(groups: Groups, num_groups: int) -> Groups:
    """What both say together; `num_groups` is deprecated."""
    if num_groups != 0:
        warnings.warn("num_groups is deprecated: use groups", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if (
        groups is None
        or isinstance(groups, (list, tuple))
        or (isinstance(groups, int) and groups > 0)
    ):
        return groups
    raise ValueError(f"groups is {groups!r}: a positive number, or lists of variables")


def predivided(op: int, factor: float) -> tuple[float, float]:
    """What gradients are multiplied with before and after they are added up."""
    if factor == 1.0:
        return 1.0, 1.0
    if op != Average:
        raise ValueError("gradient_predivide_factor is for op=Average")
    return 1.0 / factor, factor


class GradientReducer:
    """Reduces the gradients of one step: all are on their way before the first is waited for."""

    def __init__(
        self,
        name: str,
        how: Reduction,
        sparse_as_dense: bool = False,
        groups: Groups = None,
        scale_local: bool = True,
    ) -> None:
        """
        Args:
            name: of the operations, with the gradients' numbers; the same on all ranks.
            scale_local: whether the gradients of what is local are divided by the number of ranks,
                as an average of the loss over all ranks has them.
        """
        self._name = name
        self._how = how
        self._sparse_as_dense = sparse_as_dense
        self._groups = groups
        self._scale_local = scale_local
        self._local: dict[int, Any] = {}
        self._handles: dict[str, Handle[Any]] = {}  # in a graph: from the submit to the wait

    def add_local(self, variable: Any) -> None:
        """Its gradient remains this rank's own."""
        self._local[id(variable)] = variable

    def is_local(self, variable: Any) -> bool:
        return id(variable) in self._local

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of these variables, in their order. None remains None, on all ranks."""
        results = list(gradients)
        dense: list[int] = []
        for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            if self.is_local(variable):
                results[i] = self._localized(gradient)
            elif isinstance(gradient, tf.IndexedSlices) and not self._sparse_as_dense:
                results[i] = self._sparse(gradient, i)
            else:
                dense.append(i)
        if dense:
            reduced = self._dense(
                [tf.convert_to_tensor(gradients[i]) for i in dense],
                self._units(dense, variables),
            )
            for i, result in zip(dense, reduced, strict=True):
                results[i] = result
        return results

    def _localized(self, gradient: Any) -> Any:
        ranks = ranks_of(self._how.process_set)
        if not self._scale_local or (isinstance(ranks, int) and ranks == 1):
            return gradient
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values / tf.cast(ranks, gradient.values.dtype)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / tf.cast(ranks, gradient.dtype)

    def _sparse(self, gradient: Any, number: int) -> Any:
        return allreduce(
            gradient,
            op=self._how.op,
            name=f"{self._name}.{number}",
            process_set=self._how.process_set,
        )

    def _units(
        self, numbers: Sequence[int], variables: Sequence[Any]
    ) -> list[tuple[str, list[int]]]:
        """What is reduced together: a name, and indices into `numbers`."""
        if isinstance(self._groups, int):
            count = min(self._groups, len(numbers))
            bounds = [len(numbers) * k // count for k in range(count + 1)]
            return [
                (f"{self._name}.group{k}", list(range(bounds[k], bounds[k + 1])))
                for k in range(count)
            ]
        group_of = {
            id(variable): k for k, group in enumerate(self._groups or ()) for variable in group
        }
        units: dict[str, list[int]] = {}
        for index, number in enumerate(numbers):
            k = group_of.get(id(variables[number]))
            name = f"{self._name}.{number}" if k is None else f"{self._name}.group{k}"
            units.setdefault(name, []).append(index)
        return list(units.items())

    def _dense(self, gradients: Sequence[Any], units: list[tuple[str, list[int]]]) -> list[Any]:
        pairs = [self._how.compress(gradient) for gradient in gradients]

        def forward(*sent: Any) -> tuple[list[Any], None]:
            return self._reduced(sent, units), None

        def backward(again: Sequence[Any], _: None) -> Sequence[Any]:
            how = Reduction(self._how.op, self._how.scale, self._how.process_set)
            names = [(f"{name}.gradient", members) for name, members in units]
            return GradientReducer(self._name, how)._dense(again, names)

        results = differentiable(forward, backward, [pair[0] for pair in pairs])
        return [
            self._how.decompress(result, pair[1])
            for result, pair in zip(results, pairs, strict=True)
        ]

    def _reduced(self, sent: Sequence[Any], units: list[tuple[str, list[int]]]) -> list[Any]:
        # The last layer's come first.
        backwards = units[::-1]
        submits = [
            self._submit_of(name, [sent[i].dtype for i in members]) for name, members in backwards
        ]
        wait = self._wait_of([name for name, _ in backwards])
        order = [i for _, members in backwards for i in members]
        # In a graph each is submitted when it is there: the results of these say so.
        tokens = [
            call(submit, [sent[i] for i in members], [tf.TensorSpec([], tf.int64)])[0]
            for submit, (_, members) in zip(submits, backwards, strict=True)
        ]
        specs = [spec_of(sent[i]) for i in order]
        results: list[Any] = [None] * len(sent)
        for i, result in zip(order, call(wait, tokens, specs), strict=True):
            results[i] = result
        return results

    def _submit_of(self, name: str, dtypes: list[Any]) -> Callable[..., list[Any]]:
        is_group = ".group" in name[len(self._name) :]

        def submit(*arrays: Any) -> list[Any]:
            request = self._how.request(name, dtypes)
            self._handles[name] = (
                request.submit_group(arrays) if is_group else request.submit(arrays[0])
            )
            return [numpy.int64(0)]

        return submit

    def _wait_of(self, names: list[str]) -> Callable[..., list[Any]]:
        def wait(*_: Any) -> list[Any]:
            return wait_for([self._handles.pop(name) for name in names])

        return wait


class _DistributedGradientTape:
    """What is added to a tf.GradientTape."""

    _rueda: GradientReducer

    def register_local_source(self, source: Any) -> None:
        """The gradient of this variable remains this rank's own."""
        self._rueda.add_local(source)

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """As tf.GradientTape's, reduced over the ranks: a collective operation.

        Args:
            use_generic_names: not looked at.
        """
        gradients = super().gradient(  # type: ignore[misc]
            target, sources, output_gradients, unconnected_gradients
        )
        flat_sources = tf.nest.flatten(sources)
        flat = tf.nest.flatten(gradients)
        reduced = self._rueda(flat, flat_sources)
        if len(flat_sources) == 1 and not tf.nest.is_nested(sources):
            return reduced[0]
        return tf.nest.pack_sequence_as(sources, reduced)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Sequence[Any],
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Pairs of sources and gradients: those that are this rank's own, and the reduced ones."""
        gradients = self.gradient(target, sources, output_gradients, use_generic_names)
        pairs = list(zip(sources, gradients, strict=True))
        return (
            [pair for pair in pairs if self._rueda.is_local(pair[0])],
            [pair for pair in pairs if not self._rueda.is_local(pair[0])],
        )


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """The same tape, whose gradients are reduced over the ranks. All ranks ask for the gradients of
    the same variables, in the same order.

    Args:
        gradtape: goes on recording for both.
        compression: a member of `Compression`, the name of a compressor, or one's own.
        sparse_as_dense: makes dense tensors of tf.IndexedSlices, whose values and indices are
            gathered otherwise.
        op: `Average`, `Sum`, or `Adasum` of dense gradients.
        gradient_predivide_factor: divides before they are added up, and multiplies after.
        num_groups: deprecated; use `groups`.
        groups: how many groups, or lists of variables: what is in one is reduced together.
        scale_local_gradients: divides the gradients of what is registered as local by the number of
            ranks.
    """
    groups = check_groups(groups, num_groups)
    how = Reduction(op, predivided(op, gradient_predivide_factor), process_set, compression)
    base: Any = type(gradtape)
    derived = type(base.__name__, (_DistributedGradientTape, base), {"__module__": base.__module__})
    tape: Any = object.__new__(derived)
    tape.__dict__ = gradtape.__dict__  # one recording
    tape._rueda = GradientReducer(
        "DistributedGradientTape", how, sparse_as_dense, groups, scale_local_gradients
    )
    return tape


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """As `DistributedGradientTape`, but the gradients of some layers remain this rank's own.

    Args:
        local_layers: a Keras layer, or several, whose weights exist already; else ValueError.
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for layer in layers_of(local_layers):
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape


def layers_of(given: Any) -> list[Any]:
    """A layer or several as a list."""
    layers = [] if given is None else given if isinstance(given, (list, tuple)) else [given]
    for layer in layers:
        if not hasattr(layer, "trainable_weights"):
            raise ValueError(f"local_layers: a {type(layer).__name__} is no layer of Keras'")
        if not getattr(layer, "built", True):
            raise ValueError(
                f"local_layers: the layer {layer.name!r} has no weights yet: call or build the "
                "model first"
            )
    return list(layers)
