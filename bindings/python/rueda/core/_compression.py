"""How gradients are made smaller on their way: what concerns no framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Compressor:
    """A compression of one's own, as Horovod has it: what `compress` makes of a tensor is reduced,
    and `decompress` gets the result. Derive from it and override both."""

    #: The library's compressor that does it instead, while the tensor is on its way.
    compressor: str | None = None

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns what is sent, and whatever `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the result in the form of the tensor that was compressed."""
        return tensor


class NoneCompressor(Compressor):
    """As it is."""


class LibraryCompressor(Compressor):
    """One of the library's own; see `rueda.allreduce`. It remembers what a named tensor loses."""

    def __init__(self, compressor: str) -> None:
        self.compressor = compressor

    def __repr__(self) -> str:
        return f"LibraryCompressor({self.compressor!r})"


class Compression:
    """What there is for the argument `compression`; frameworks add fp16 and bf16."""

    none = NoneCompressor
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


_NAMES = ("none", "fp16", "bf16", "fp8", "int8", "1bit", "auto", "topk", "powersgd")


def name_of(compression: Any) -> str | None:
    """Of one of the library's compressors."""
    if isinstance(compression, str):
        return compression
    name: str | None = getattr(compression, "compressor", None)
    return name


def library_compressor(compression: Any, dtype: Any, floats: Mapping[str, Any]) -> str | None:
    """The library's compressor for tensors of this type; None: there is nothing to do, or it is one
    of the user's own (`is_own`). `floats`: a framework's types, by the compressor that makes
    such of others."""
    name = name_of(compression)
    if name is None or dtype not in floats.values() or floats.get(name) == dtype:
        return None
    return name


def check(compression: Any) -> None:
    """Raises ValueError or TypeError for an unknown compression, before it is needed."""
    name = name_of(compression)
    if isinstance(name, str) and name.partition(",")[0].partition(":")[0] not in ("", *_NAMES):
        raise ValueError(f"compression is {compression!r}: there are {', '.join(_NAMES)}")
    is_own(compression)


def is_own(compression: Any) -> bool:
    """Whether compress and decompress are to be called: a class of the user's. One derived from the
    library's is such if it overrides them, and names no compressor of its own. Raises TypeError for
    what has none of all that."""
    if compression is None or isinstance(compression, str) or compression is NoneCompressor:
        return False
    if getattr(compression, "compressor", None) is None:
        if not all(callable(getattr(compression, a, None)) for a in ("compress", "decompress")):
            raise TypeError(f"compression is {compression!r}, which has no compress and decompress")
        return True
    kind = compression if isinstance(compression, type) else type(compression)
    for owner in (compression, *kind.__mro__):  # the first that says anything
        if "compressor" in vars(owner):
            return False
        if "compress" in vars(owner) or "decompress" in vars(owner):
            return True
    return False
