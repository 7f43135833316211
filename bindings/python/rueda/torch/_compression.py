"""How gradients are made smaller on their way."""

from __future__ import annotations

from typing import Any

import torch

from rueda.core import _compression
from rueda.core._compression import Compressor, LibraryCompressor, NoneCompressor, is_own

__all__ = [
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "LibraryCompressor",
    "NoneCompressor",
    "is_own",
    "library_compressor",
]


class _Cast(Compressor):
    dtype = torch.float16

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Floating-point tensors in fewer bits."""
        if tensor.dtype.is_floating_point:
            return tensor.to(cls.dtype), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """In the type that it had."""
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_Cast):
    """float16 on the way; added up in float32 inside a host."""

    compressor = "fp16"


class BF16Compressor(_Cast):
    """bfloat16 on the way."""

    dtype = torch.bfloat16
    compressor = "bf16"


class Compression(_compression.Compression):
    """What there is for the argument `compression`."""

    fp16 = FP16Compressor
    bf16 = BF16Compressor


_FLOATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def library_compressor(compression: Any, dtype: torch.dtype) -> str | None:
    """The library's compressor for tensors of this type, if it is one and there is something to
    do."""
    return _compression.library_compressor(compression, dtype, _FLOATS)
