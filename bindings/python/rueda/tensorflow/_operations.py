"""The operations, with Horovod's names and arguments, eager and in graphs; differentiable where
that has a meaning.

Tensors are tf.Tensor, tf.Variable, what tf.convert_to_tensor takes, and tf.IndexedSlices where it
is said. Arguments that are not looked at: device_dense and device_sparse (tensors are reduced
where they are) and ignore_name_scope (names are what is given).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import tensorflow as tf

from rueda import core
from rueda.core import _context, _gradients
from rueda.core import _library as c
from rueda.core import _operations as operations
from rueda.core._horovod import reduce_op
from rueda.core._operations import Handle, Operation, Output, ReduceOp, reduction
from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.tensorflow import _compression
from rueda.tensorflow._compression import Compression
from rueda.tensorflow._graph import call, node_name

Average, Sum, Adasum = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM
Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT


def spec_of(tensor: Any) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _rows_spec(tensor: Any) -> tf.TensorSpec:
    """Of a result whose number of rows is not known."""
    shape = tensor.shape
    if shape.rank is None or shape.rank == 0:
        return tf.TensorSpec(None, tensor.dtype)
    return tf.TensorSpec([None, *shape[1:]], tensor.dtype)


def differentiable(
    forward: Callable[..., tuple[list[Any], Any]],
    backward: Callable[[Sequence[Any], Any], Sequence[Any]],
    tensors: Sequence[Any],
) -> list[Any]:
    """`forward(*tensors)` returns results and what `backward(gradients, that)` needs."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def function(*inputs: Any) -> Any:
        results, saved = forward(*inputs)

        def gradient(*gradients: Any) -> Sequence[Any]:
            return backward(
                [None if g is None else tf.convert_to_tensor(g) for g in gradients], saved
            )

        return results, gradient

    return list(function(*tensors))


def wait_for(handles: Sequence[Handle[Any]]) -> list[Any]:
    """All results, those of groups one behind the other. Waits for all, so that none is left under
    way, and raises the first error."""
    results: list[Any] = []
    failure: Exception | None = None
    for handle in handles:
        try:
            result = handle.wait()
            results += result if isinstance(result, list) else [result]
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return results


# ---- reductions ----


def ranks_of(process_set: ProcessSet) -> Any:
    """How many ranks there are: in an elastic job a tensor, as that may change under a graph."""
    return size_op(process_set.id) if _context.is_elastic() else process_set.size()


def _is_sparse(tensor: Any) -> bool:
    return isinstance(tensor, tf.IndexedSlices)


class Reduction:
    """How dense and sparse tensors are reduced."""

    def __init__(
        self,
        op: int,
        scale: tuple[float, float] = (1.0, 1.0),
        process_set: ProcessSet = global_process_set,
        compression: Any = Compression.none,
    ) -> None:
        self.op = op
        self.scale = scale
        self.process_set = process_set
        self.compression = compression
        self.is_own = _compression.is_own(compression)

    def request(
        self,
        name: str | None,
        dtypes: Sequence[Any],
        kind: int = c.ALLREDUCE,
        output: Output = Output.NEW,
    ) -> Operation:
        """For tensors of these types; a mixture is not compressed."""
        compressor = None
        if not self.is_own and self.op in (Average, Sum):
            names = {_compression.library_compressor(self.compression, dtype) for dtype in dtypes}
            compressor = names.pop() if len(names) == 1 else None
        return reduction(kind, output, name, self.op, self.scale, self.process_set, compressor)

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        return self.compression.compress(tensor) if self.is_own else (tensor, None)

    def decompress(self, tensor: Any, context: Any) -> Any:
        return self.compression.decompress(tensor, context) if self.is_own else tensor

    def check_sparse(self) -> None:
        if self.op not in (Average, Sum):
            raise NotImplementedError(
                f"{ReduceOp(self.op).name} of tf.IndexedSlices: there are Average and Sum; "
                "sparse_as_dense=True, or tf.convert_to_tensor, makes dense tensors of them"
            )
        if self.scale != (1.0, 1.0):
            raise NotImplementedError(
                "prescale_factor and postscale_factor of tf.IndexedSlices: scale its values"
            )


def _dense(
    tensors: Sequence[Any],
    group: bool,
    name: str | None,
    how: Reduction,
    of_gradients: bool = False,
) -> list[Any]:
    """`of_gradients`: whose convention a mismatch may be about."""
    sent, contexts = zip(*(how.compress(tensor) for tensor in tensors), strict=True)

    def forward(*inputs: Any) -> tuple[list[Any], None]:
        dtypes = [tensor.dtype for tensor in inputs]
        node = node_name("allreduce", name)

        def body(*arrays: Any) -> list[Any]:
            request = how.request(node, dtypes)
            with _gradients.explained(of_gradients):
                return request.execute_group(arrays) if group else [request.execute(arrays[0])]

        return call(body, inputs, [spec_of(tensor) for tensor in inputs]), None

    def backward(gradients: Sequence[Any], _: None) -> Sequence[Any]:
        _gradients.check_exists("allreduce", how.op)
        same = Reduction(how.op, how.scale, how.process_set)
        return _dense(gradients, group, _gradients.name_of(name), same)

    results = differentiable(forward, backward, sent)
    return [how.decompress(*pair) for pair in zip(results, contexts, strict=True)]


def _mean(values: Any, indices: Any, ranks: int) -> tuple[Any, Any]:
    """Values and indices of an average. Of integers those of one index are added up first, in 64
    bits, so that the sum is divided and truncated as that of dense tensors."""
    if not values.dtype.is_integer:
        return values / tf.cast(ranks, values.dtype), indices
    wide = values.dtype if values.dtype.size == 8 else tf.int64
    rows, row_of = tf.unique(indices)
    total = tf.math.unsorted_segment_sum(tf.cast(values, wide), row_of, tf.size(rows))
    return tf.cast(tf.truncatediv(total, tf.cast(ranks, wide)), values.dtype), rows


def _sparse(slices: Sequence[Any], group: bool, name: str | None, how: Reduction) -> list[Any]:
    how.check_sparse()
    ranks = ranks_of(how.process_set) if how.op == Average else 1
    parts: list[Any] = []
    for each in slices:
        parts += [each.values, each.indices]
    gathered = grouped_allgather(parts, name, process_set=how.process_set)
    pairs = list(zip(gathered[::2], gathered[1::2], strict=True))
    if not isinstance(ranks, int) or ranks > 1:
        pairs = [_mean(values, indices, ranks) for values, indices in pairs]
    return [
        tf.IndexedSlices(values, indices, dense_shape=each.dense_shape)
        for each, (values, indices) in zip(slices, pairs, strict=True)
    ]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Combines all ranks' tensors, of one shape and type; differentiable.

    Args:
        tensor: of tf.IndexedSlices, which sums and averages can be of, values and indices of all
            ranks are put together; an average of integers has each index once.
        average: deprecated; use `op`.
        compression: a member of `Compression`, the name of a compressor (see `rueda.allreduce`), or
            a `Compressor` of one's own.
        op: `Average` (the default), `Sum`, `Min`, `Max`, `Product` or `Adasum`.
        prescale_factor: each input is multiplied with it first.
        postscale_factor: and the result.
        name: matches the operation with the other ranks', in any order; None: by their order.
        process_set: the ranks that take part.
    """
    scale = (prescale_factor, postscale_factor)
    how = Reduction(reduce_op(op, average), scale, process_set, compression)
    if _is_sparse(tensor):
        return _sparse([tensor], False, name, how)[0]
    return _dense([tf.convert_to_tensor(tensor)], False, name, how)[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """As `allreduce` of each, all together or not at all (tf.IndexedSlices are a group of their
    own)."""
    scale = (prescale_factor, postscale_factor)
    how = Reduction(reduce_op(op, average), scale, process_set, compression)
    results: list[Any] = list(tensors)
    dense = [i for i, tensor in enumerate(tensors) if not _is_sparse(tensor)]
    sparse = [i for i, tensor in enumerate(tensors) if _is_sparse(tensor)]
    if dense:
        made = _dense([tf.convert_to_tensor(tensors[i]) for i in dense], True, name, how)
        for i, result in zip(dense, made, strict=True):
            results[i] = result
    if sparse:
        made = _sparse(
            [tensors[i] for i in sparse], True, None if name is None else f"{name}.sparse", how
        )
        for i, result in zip(sparse, made, strict=True):
            results[i] = result
    return results


def _scattered(tensors: Sequence[Any], group: bool, name: str | None, how: Reduction) -> list[Any]:
    convention = _gradients.gradients()
    sent, contexts = zip(*(how.compress(tensor) for tensor in tensors), strict=True)

    def forward(*inputs: Any) -> tuple[list[Any], None]:
        dtypes = [tensor.dtype for tensor in inputs]
        node = node_name("reducescatter", name)

        def body(*arrays: Any) -> list[Any]:
            request = how.request(node, dtypes, c.REDUCESCATTER, Output.TAKEN)
            return request.execute_group(arrays) if group else [request.execute(arrays[0])]

        return call(body, inputs, [_rows_spec(tensor) for tensor in inputs]), None

    def backward(gradients: Sequence[Any], _: None) -> Sequence[Any]:
        _gradients.check_exists("reducescatter", how.op)
        ranks = ranks_of(how.process_set)
        if not isinstance(ranks, int):
            ranks = tf.cast(ranks, tf.float32)
        factor = _gradients.scattered_factor(convention, how.op, how.scale, ranks)
        marks = convention == _gradients.HOROVOD
        sent = [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]
        if marks:
            sent = [tf.expand_dims(gradient, -1) for gradient in sent]
        _gradients.tell("reducescatter", convention, how.process_set)
        wholes = _gathered(sent, group, _gradients.name_of(name), how.process_set, convention, True)
        return [tf.squeeze(whole, -1) if marks else whole for whole in wholes]

    results = differentiable(forward, backward, sent)
    return [how.decompress(*pair) for pair in zip(results, contexts, strict=True)]


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Combines all ranks' tensors and returns this rank's rows of the result: equal parts, the
    lowest ranks one row more. Differentiable, for averages and sums: gradients are joined as by
    `allgather`. Those of sums are multiplied with the number of ranks, as Horovod's are; by
    `gradients("sum")` those of averages are divided by it instead."""
    how = Reduction(op, (prescale_factor, postscale_factor), process_set, compression)
    return _scattered([tf.convert_to_tensor(tensor)], False, name, how)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """As `reducescatter` of each, all together or not at all."""
    how = Reduction(op, (prescale_factor, postscale_factor), process_set, compression)
    return _scattered([tf.convert_to_tensor(tensor) for tensor in tensors], True, name, how)


# ---- moving ----


def _gathered(
    tensors: Sequence[Any],
    group: bool,
    name: str | None,
    process_set: ProcessSet,
    convention: str,
    of_gradients: bool = False,
) -> list[Any]:
    """`convention`: of its gradient. `of_gradients`: whose convention a mismatch may be about."""

    def forward(*inputs: Any) -> tuple[list[Any], tuple[Any, list[Any]]]:
        node = node_name("allgather", name)

        def body(*arrays: Any) -> list[Any]:
            request = Operation(c.ALLGATHER, Output.TAKEN, node, process_set)
            handle: Any = request.submit_group(arrays) if group else request.submit(arrays[0])
            splits = operations.received_splits(handle, len(arrays))
            with _gradients.explained(of_gradients):
                results = handle.wait()
            rank = process_set.rank()
            begins = numpy.array([sum(split[:rank]) for split in splits], numpy.int64)
            return [*(results if group else [results]), begins]

        specs = [*map(_rows_spec, inputs), tf.TensorSpec([len(inputs)], tf.int64)]
        *results, begins = call(body, inputs, specs)
        return results, (begins, [tf.shape(tensor, tf.int64)[0] for tensor in inputs])

    def backward(gradients: Sequence[Any], saved: tuple[Any, list[Any]]) -> Sequence[Any]:
        begins, rows = saved
        how = Reduction(_gradients.total_op(convention), process_set=process_set)
        _gradients.tell("allgather", convention, process_set)
        totals = _dense(gradients, group, _gradients.name_of(name), how, True)
        return [
            whole[begins[i] : begins[i] + count]
            for i, (whole, count) in enumerate(zip(totals, rows, strict=True))
        ]

    for tensor in tensors:
        if tensor.shape.rank == 0:
            raise ValueError("allgather: a scalar has no rows to be joined")
    return differentiable(forward, backward, tensors)


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """All ranks' tensors, joined along the first dimension in rank order; that may differ by rank.
    Differentiable: the gradients that all ranks have for this rank's rows are averaged, or summed
    up by `gradients("sum")`."""
    converted = [tf.convert_to_tensor(tensor)]
    return _gathered(converted, False, name, process_set, _gradients.gradients())[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """As `allgather` of each, all together or not at all."""
    converted = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if not converted:
        return []
    return _gathered(converted, True, name, process_set, _gradients.gradients())


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The tensor of the root, a world rank. Differentiable: the root gets the average of the
    gradients, or by `gradients("sum")` their sum; the others get zeros."""
    convention = _gradients.gradients()

    def forward(given: Any) -> tuple[list[Any], None]:
        node = node_name("broadcast", name)

        def body(array: Any) -> list[Any]:
            request = Operation(c.BROADCAST, Output.NEW, node, process_set, root=root_rank)
            return [request.execute(array)]

        return call(body, [given], [spec_of(given)]), None

    def backward(gradients: Sequence[Any], _: None) -> Sequence[Any]:
        how = Reduction(_gradients.total_op(convention), process_set=process_set)
        _gradients.tell("broadcast", convention, process_set)
        [total] = _dense(gradients, False, _gradients.name_of(name), how, True)
        # Elsewhere zeros that depend on the total: in a second backward pass all ranks take part.
        return [tf.where(core.rank() == root_rank, total, tf.zeros_like(total))]

    return differentiable(forward, backward, [tf.convert_to_tensor(tensor)])[0]


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Assigns the root's values, of a world rank, to variables (tf.Variable, Keras'); returns the
    variables."""
    variables = list(variables)
    if not variables:
        return variables
    node = node_name("broadcast_", name)

    def body(*arrays: Any) -> list[Any]:
        handles = [
            Operation(
                c.BROADCAST,
                Output.NEW,
                None if node is None else f"{node}.{i}",
                process_set,
                root=root_rank,
            ).submit(array)
            for i, array in enumerate(arrays)
        ]
        return wait_for(handles)

    values = [tf.convert_to_tensor(variable) for variable in variables]
    for variable, value in zip(
        variables, call(body, values, list(map(spec_of, values))), strict=True
    ):
        variable.assign(value)
    return variables


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows of `tensor` to each rank, and returns what all sent to this one, in rank order.
    Differentiable.

    Args:
        splits: rows for each rank of the process set (a tensor or a list of integers), which add up
            to the tensor's; None: equal parts.

    Returns:
        The tensor; if splits were given (tensor, how many of its rows came from each rank).
    """

    def forward(given: Any, *numbers: Any) -> tuple[list[Any], Any]:
        node = node_name("alltoall", name)

        def body(array: Any, *parts: Any) -> list[Any]:
            wanted = parts[0] if parts else None
            request = Operation(c.ALLTOALL, Output.TAKEN, node, process_set, splits=wanted)
            handle = request.submit(array)
            received = operations.received_splits(handle)
            result = handle.wait()
            return [result, numpy.array(received[0], numpy.int32)]

        ranks = None if _context.is_elastic() else process_set.size()
        specs = [_rows_spec(given), tf.TensorSpec([ranks], tf.int32)]
        result, received = call(body, [given, *numbers], specs)
        return [result, received], received

    def backward(gradients: Sequence[Any], received: Any) -> Sequence[Any]:
        back, _ = alltoall(
            gradients[0], received, _gradients.name_of(name), process_set=process_set
        )
        return [back] if splits is None else [back, None]

    inputs = [tf.convert_to_tensor(tensor)]
    if splits is not None:
        inputs.append(tf.convert_to_tensor(splits))
    result, received = differentiable(forward, backward, inputs)
    return result if splits is None else (result, received)


# ---- without tensors ----


def join() -> int:
    """Says that this rank has no more data: the others' operations go on without it. It brings no
    rows, and nothing to reductions; averages divide by the number of all ranks. Waits until all
    ranks have joined, and returns the one that joined last.

    Raises:
        RuedaError: a rank left without joining. On the others, while a rank has joined: an
            operation has it as its root, sends to it or receives from it, or changes process sets.
    """
    return core.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks are here."""
    core.barrier(process_set=process_set)


def _number(number: Callable[[], int]) -> Any:
    return call(lambda: [numpy.int32(number())], [], [tf.TensorSpec([], tf.int32)])[0]


def _set_of(process_set_id: int) -> ProcessSet:
    return ProcessSet(id=process_set_id)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The number of ranks, when the graph runs: an int32 scalar."""
    return _number(lambda: _set_of(process_set_id).size())


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this rank is in the process set, else 0, when the graph runs."""
    return _number(lambda: int(_set_of(process_set_id).included()))


def rank_op(name: str | None = None) -> Any:
    """This rank's number, when the graph runs."""
    return _number(core.rank)


def local_rank_op(name: str | None = None) -> Any:
    """Its number on this host, when the graph runs."""
    return _number(core.local_rank)


def local_size_op(name: str | None = None) -> Any:
    """The number of ranks on this host, when the graph runs."""
    return _number(core.local_size)
