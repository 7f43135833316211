"""How gradients are made smaller on their way."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from rueda.core import _compression
from rueda.core._compression import Compressor, is_own

__all__ = [
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "is_own",
    "library_compressor",
]


class _Cast(Compressor):
    dtype = tf.float16

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Floating-point tensors in fewer bits."""
        if tensor.dtype.is_floating:
            return tf.cast(tensor, cls.dtype), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """In the type that it had."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_Cast):
    """float16 on the way; added up in float32 inside a host."""

    compressor = "fp16"


class BF16Compressor(_Cast):
    """bfloat16 on the way."""

    dtype = tf.bfloat16
    compressor = "bf16"


class Compression(_compression.Compression):
    """What there is for the argument `compression`."""

    fp16 = FP16Compressor
    bf16 = BF16Compressor


_FLOATS = {"fp16": tf.float16, "bf16": tf.bfloat16, "fp32": tf.float32}


def library_compressor(compression: Any, dtype: Any) -> str | None:
    """The library's compressor for tensors of this type, if it is one and there is something to
    do."""
    return _compression.library_compressor(compression, dtype, _FLOATS)
