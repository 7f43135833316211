"""How gradients are made smaller on their way."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """A compression of one's own, as Horovod has it: what `compress` makes of a tensor is reduced,
    and `decompress` gets the result. Derive from it and override both."""

    #: The library's compressor that does it instead, while the tensor is on its way.
    compressor: str | None = None

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns what is sent, and whatever `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns the result in the form of the tensor that was compressed."""
        return tensor


class NoneCompressor(Compressor):
    """As it is."""


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


class LibraryCompressor(Compressor):
    """One of the library's own; see `rueda.allreduce`. It remembers what a named tensor loses."""

    def __init__(self, compressor: str) -> None:
        self.compressor = compressor

    def __repr__(self) -> str:
        return f"LibraryCompressor({self.compressor!r})"


class Compression:
    """What there is for the argument `compression`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    fp8 = LibraryCompressor("fp8")
    int8 = LibraryCompressor("int8")
    onebit = LibraryCompressor("1bit")
    auto = LibraryCompressor("auto")

    @staticmethod
    def topk(ratio: float) -> LibraryCompressor:
        """The given part of the numbers, those of largest magnitude."""
        return LibraryCompressor(f"topk:{ratio}")

    @staticmethod
    def powersgd(rank: int) -> LibraryCompressor:
        """Of matrices two factors of this rank (arXiv 1905.13727)."""
        return LibraryCompressor(f"powersgd:{rank}")


_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def library_compressor(compression: Any, dtype: torch.dtype) -> str | None:
    """The library's compressor for tensors of this type; None: there is nothing to do, or it is one
    of the user's own (`is_own`)."""
    name = compression if isinstance(compression, str) else getattr(compression, "compressor", None)
    if name is None or dtype not in _FLOATS:
        return None
    if (name, dtype) in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        return None
    return str(name)


def is_own(compression: Any) -> bool:
    """Whether compress and decompress are to be called: a class of the user's."""
    if compression is None or isinstance(compression, str):
        return False
    return compression is not NoneCompressor and getattr(compression, "compressor", None) is None
