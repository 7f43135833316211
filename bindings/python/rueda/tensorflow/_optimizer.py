"""An optimizer whose gradients are reduced over the ranks."""

from __future__ import annotations

from typing import Any

import keras

from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.keras import _optimizer
from rueda.tensorflow._compression import Compression
from rueda.tensorflow._gradients import Groups
from rueda.tensorflow._operations import Average


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """As `rueda.tensorflow.keras.DistributedOptimizer`, which says what the arguments are.

    Args:
        optimizer: of Keras; those of TensorFlow 1 (tf.compat.v1) are a TypeError.
        use_locking: not looked at.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"DistributedOptimizer: {type(optimizer).__module__}.{type(optimizer).__name__} is no "
            "optimizer of Keras 3 (tf.keras.optimizers)"
        )
    return _optimizer.DistributedOptimizer(
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
