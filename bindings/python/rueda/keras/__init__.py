"""Rueda for Keras 3 on TensorFlow, in the manner of Horovod: change one import.

    import rueda.keras as hvd

    hvd.init()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size())), loss)
    model.fit(
        dataset.shard(hvd.size(), hvd.rank()),
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
        verbose=hvd.rank() == 0,
    )

It is rueda.tensorflow.keras, too.
"""

from __future__ import annotations

from typing import Any

import keras

from rueda.core import (
    ProcessSet,
    add_process_set,
    cross_rank,
    cross_size,
    global_process_set,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
    stop_timeline,
)
from rueda.core._horovod import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
    start_timeline,
)
from rueda.keras import callbacks, elastic
from rueda.keras._optimizer import DistributedOptimizer, PartialDistributedOptimizer
from rueda.tensorflow import _operations
from rueda.tensorflow._compression import Compression
from rueda.tensorflow._functions import broadcast_global_variables
from rueda.tensorflow._graph import rueda_errors
from rueda.tensorflow._operations import Adasum, Average, Sum


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Combines all ranks' values: tensors, arrays or numbers. Returns a NumPy array."""
    result = _operations.allreduce(
        value,
        average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )
    return result.numpy()


def allgather(value: Any, name: str | None = None) -> Any:
    """All ranks' values, joined along the first dimension. Returns a NumPy array."""
    return _operations.allgather(value, name).numpy()


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of the root, a world rank. Returns a NumPy array."""
    return _operations.broadcast(value, root_rank, name).numpy()


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Combines all ranks' values and returns this rank's rows: a NumPy array."""
    return _operations.reducescatter(value, op=op, name=name).numpy()


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model that Keras has saved, and makes its optimizer a distributed one, which goes on
    where it was.

    Args:
        filepath: a file of `model.save`.
        custom_optimizers: classes of one's own that it may have been saved with.
        custom_objects: as keras.models.load_model has it.
        compression: see `DistributedOptimizer`.
        legacy_opts: True is a ValueError: there are no legacy optimizers in Keras 3.
    """
    if legacy_opts:
        raise ValueError("load_model: there are no legacy optimizers in Keras 3")
    known = {each.__name__: each for each in custom_optimizers or ()} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model


__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "rueda_errors",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
