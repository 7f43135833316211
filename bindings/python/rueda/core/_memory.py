"""Memory that the ranks of a host share: allreduces in it touch each byte once."""

from __future__ import annotations

import ctypes
import math
import os
import weakref
from collections.abc import Sequence
from typing import Any

from rueda.core import _context
from rueda.core import _library as c
from rueda.core._tensors import memory_at

lib = c.lib


class Arena:
    """`nbytes` bytes from rueda_mem_alloc, zeroed; freed when nothing refers to it any more. A
    forked child can't reach them: it faults there."""

    def __init__(self, nbytes: int) -> None:
        context = _context.current()
        pointer = ctypes.c_void_p()
        self._address = 0
        _context.check(lib.rueda_mem_alloc(context, max(nbytes, 1), ctypes.byref(pointer)), context)
        assert pointer.value is not None
        self._address = pointer.value
        self._pid = os.getpid()
        self.nbytes = nbytes
        _arenas.add(self)

    def memory(self) -> ctypes.Array[ctypes.c_char]:
        """Its bytes, which keep it alive: what the buffer protocol takes."""
        return memory_at(self._address, self.nbytes, self)

    def _is_inherited(self, address: int) -> bool:
        return self._pid != os.getpid() and 0 <= address - self._address < self.nbytes

    def __del__(self) -> None:
        if self._address != 0:
            lib.rueda_mem_free(self._address)


_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()


def is_inherited(address: int) -> bool:
    """Whether it lies in an arena of the process that this one was forked from."""
    return any(arena._is_inherited(address) for arena in _arenas)


def shared_empty(shape: int | Sequence[int], dtype: Any = "float32") -> Any:
    """A NumPy array of zeroes in memory that the ranks of this host share. Allreduces of such
    arrays, on all ranks, are the fastest: each byte is read and written once. A forked child can't
    read them, and crashes (SIGSEGV) if it tries: copy them before the fork.

    Args:
        shape: dimensions.
        dtype: what numpy.dtype takes.
    """
    import numpy

    kind = numpy.dtype(dtype)
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    count = math.prod(dims)
    if count == 0:
        return numpy.empty(dims, kind)
    memory: Any = Arena(count * kind.itemsize).memory()
    return numpy.frombuffer(memory, kind).reshape(dims)
