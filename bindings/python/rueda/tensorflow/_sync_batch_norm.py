"""Batch normalization with the statistics of all ranks' batches."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from rueda import core
from rueda.core import _context
from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.tensorflow._operations import Sum, allreduce


@keras.saving.register_keras_serializable(package="rueda")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """As keras.layers.BatchNormalization; while training, mean and variance are those of what all
    ranks have in this step, whose batches need not be of one size."""

    def __init__(
        self,
        fused: bool = False,
        process_set: ProcessSet = global_process_set,
        **kwargs: Any,
    ) -> None:
        """
        Args:
            fused: False: there is no fused form.
            kwargs: those of keras.layers.BatchNormalization.
        """
        if fused is not False:
            raise ValueError("SyncBatchNormalization: fused has to be False")
        super().__init__(**kwargs)
        self._process_set = process_set

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        # Elastic, one rank may get company, which a graph would not hear of.
        if not core.is_initialized() or (
            self._process_set.size() == 1 and not _context.is_elastic()
        ):
            return super()._moments(inputs, mask)  # type: ignore[no-any-return]
        values = tf.cast(inputs, tf.float32)
        if mask is None:
            weights = tf.ones_like(values[..., :1])
        else:
            weights = tf.cast(tf.expand_dims(mask, -1), tf.float32)
        # Of float32 and in one go: sum, sum of squares, and how many.
        axes = list(self._reduction_axes)
        total = tf.reduce_sum(values * weights, axes)
        squares = tf.reduce_sum(tf.square(values) * weights, axes)
        count = tf.reduce_sum(weights * tf.ones_like(values), axes)
        total, squares, count = tf.unstack(
            allreduce(
                tf.stack([total, squares, count]),
                op=Sum,
                name=f"sync_batch_norm.{self.path}",
                process_set=self._process_set,
            )
        )
        mean = tf.math.divide_no_nan(total, count)
        variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)
