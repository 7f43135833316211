"""Memory that the ranks of a host share: allreduces in it touch each byte once."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import weakref
from collections.abc import Sequence
from typing import Any

from rueda import errors
from rueda.core import _context
from rueda.core import _library as c
from rueda.core._tensors import memory_at

lib = c.lib


class _Shared:
    """Memory that is given back when nothing refers to it any more. A forked child can't reach it:
    it faults there."""

    def __init__(self, nbytes: int) -> None:
        context = _context.current()
        pointer = ctypes.c_void_p()
        self._address = 0
        self._pid = os.getpid()
        self.nbytes = nbytes
        _context.check(self._get(context, pointer), context)
        assert pointer.value is not None
        self._address = pointer.value
        _all_shared.add(self)

    def _get(self, context: Any, pointer: ctypes.c_void_p) -> int:
        raise NotImplementedError

    def memory(self) -> ctypes.Array[ctypes.c_char]:
        """Its bytes, which keep it alive: what the buffer protocol takes."""
        return memory_at(self._address, self.nbytes, self)

    @property
    def is_of_parent(self) -> bool:
        """Whether the process that this one was forked from has it."""
        return self._pid != os.getpid()

    def _is_inherited(self, address: int) -> bool:
        return self.is_of_parent and 0 <= address - self._address < self.nbytes

    def __del__(self) -> None:
        if self._address != 0 and not sys.is_finalizing():  # all goes with the process
            lib.rueda_mem_free(self._address)


_all_shared: weakref.WeakSet[_Shared] = weakref.WeakSet()


class Arena(_Shared):
    """`nbytes` bytes from rueda_mem_alloc, zeroed."""

    def _get(self, context: Any, pointer: ctypes.c_void_p) -> int:
        return int(lib.rueda_mem_alloc(context, max(self.nbytes, 1), ctypes.byref(pointer)))

    def keep(self, nbytes: int, name: str, number: int, oldest: int, checksum: int) -> None:
        """Lets the launcher hold the first bytes open beyond the end of this process.

        Args:
            oldest: nobody needs those of lower numbers any more.
        """
        context = _context.current()
        _context.check(
            lib.rueda_mem_keep(
                context, self._address, nbytes, name.encode(), number, oldest, checksum
            ),
            context,
        )

    @property
    def offset(self) -> int:
        """By which other ranks of the host open it."""
        offset = ctypes.c_uint64()
        _context.check(lib.rueda_mem_offset(self._address, ctypes.byref(offset)), None)
        return offset.value


class Opened(_Shared):
    """`nbytes` bytes of another rank's Arena, to be read, whatever becomes of that rank.

    Args:
        rank: of the same host.
        offset: of its Arena.
    """

    def __init__(self, rank: int, offset: int, nbytes: int) -> None:
        self._rank, self._offset = rank, offset
        super().__init__(nbytes)

    def _get(self, context: Any, pointer: ctypes.c_void_p) -> int:
        return int(
            lib.rueda_mem_open(
                context, self._rank, self._offset, self.nbytes, ctypes.byref(pointer)
            )
        )


class Kept(_Shared):
    """What a rank of an earlier membership has kept on this host, and lost with its process.

    Raises:
        KeyError: there is none.
    """

    def __init__(self, name: str, number: int, membership: int, rank: int) -> None:
        self._wanted = (name.encode(), number, membership, rank)
        #: What that rank has told.
        self.checksum = 0
        super().__init__(0)

    def _get(self, context: Any, pointer: ctypes.c_void_p) -> int:
        nbytes, checksum = ctypes.c_size_t(), ctypes.c_uint64()
        status = lib.rueda_mem_kept(
            context,
            *self._wanted,
            ctypes.byref(pointer),
            ctypes.byref(nbytes),
            ctypes.byref(checksum),
        )
        if status == errors.Status.NOT_FOUND:
            raise KeyError(self._wanted)
        self.nbytes, self.checksum = nbytes.value, checksum.value
        return int(status)


def is_inherited(address: int) -> bool:
    """Whether it lies in shared memory of the process that this one was forked from."""
    return any(shared._is_inherited(address) for shared in _all_shared)


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
