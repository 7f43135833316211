"""Some of the ranks."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence

from rueda import errors
from rueda.core import _context
from rueda.core import _library as c

lib = c.lib


class ProcessSet:
    """Some of the ranks, which operations are limited to.

    Made with a list of ranks, it exists once it is given to init() or add_process_set(); made by
    these, it has a number.
    """

    def __init__(self, ranks: Iterable[int] = (), id: int | None = None) -> None:
        self._ranks: list[int] | None = sorted(int(rank) for rank in ranks) or None
        self._id = id

    def _become(self, number: int) -> None:
        """It exists now, in the current context."""
        self._id = number
        _added.setdefault(_context.current(), []).append(weakref.ref(self))

    @property
    def id(self) -> int:
        """Its number, the same on all ranks; the world's is 0."""
        if self._id is None:
            raise errors.RuedaError(
                f"{self!r} is not known yet: give it to init(process_sets=...) or to "
                "add_process_set()",
                errors.Status.FAILED_PRECONDITION,
            )
        return self._id

    process_set_id = id

    @property
    def ranks(self) -> list[int]:
        """Its world ranks, ascending."""
        if self._id is None or (self._ranks is not None and self._id != c.WORLD):
            return list(self._ranks or ())
        return ranks_of(self._id)

    def size(self) -> int:
        """How many ranks it has."""
        return _known(lib.rueda_process_set_size(_context.current(), self.id), self)

    def rank(self) -> int:
        """This rank's index in it; raises when this rank is not in it."""
        return _known(lib.rueda_process_set_rank(_context.current(), self.id), self)

    def included(self) -> bool:
        """Whether this rank is in it."""
        return bool(lib.rueda_process_set_rank(_context.current(), self.id) >= 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcessSet):
            return NotImplemented
        if self._id is not None or other._id is not None:
            return self._id == other._id
        return self._ranks == other._ranks

    def __hash__(self) -> int:
        return hash((self._id, tuple(self._ranks or ())))

    def __repr__(self) -> str:
        if self._id == c.WORLD:
            return "global_process_set"
        ranks = "" if self._ranks is None else f"ranks={self._ranks}"
        number = "" if self._id is None else f"id={self._id}"
        return f"ProcessSet({', '.join(part for part in (ranks, number) if part)})"


# Those that exist, by context.
_added: dict[int, list[weakref.ref[ProcessSet]]] = {}


def _forget(context: int) -> None:
    """After a regroup: they are gone. A program that goes on with one has to add it again."""
    for reference in _added.pop(context, []):
        process_set = reference()
        if process_set is not None:
            process_set._id = None


def _leave(context: int) -> None:
    _added.pop(context, None)


_context.after_regroup.append(_forget)
_context.before_destroy.append(_leave)

#: All ranks.
global_process_set = ProcessSet(id=c.WORLD)


def _known(number: int, process_set: ProcessSet) -> int:
    if number < 0:
        raise errors.RuedaError(
            f"{process_set!r}: {_context.last_error()}", errors.Status.NOT_FOUND
        )
    return number


def ranks_of(id: int) -> list[int]:
    context = _context.current()
    count = ctypes.c_size_t()
    _context.check(lib.rueda_process_set_ranks(context, id, None, 0, ctypes.byref(count)), context)
    ranks = (ctypes.c_int32 * max(count.value, 1))()
    _context.check(
        lib.rueda_process_set_ranks(context, id, ranks, count.value, ctypes.byref(count)), context
    )
    return list(ranks)[: count.value]


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a process set of these world ranks. Collective: all ranks of the world call it with the
    same ones, whether they are in it or not.

    Raises:
        ValueError: there is such a set already, or no such ranks.
    """
    wanted = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    context = _context.current()
    ranks = wanted._ranks or []
    if wanted._id is not None:
        raise ValueError(f"add_process_set: {wanted!r} has been added already")
    numbers = (ctypes.c_int32 * max(len(ranks), 1))(*ranks)
    number = ctypes.c_int32()
    status, message = _context.interruptible(
        lambda: lib.rueda_process_set_add(
            context, numbers, len(ranks), c.FOREVER, ctypes.byref(number)
        )
    )
    if status == errors.Status.ALREADY_EXISTS:
        raise ValueError(f"add_process_set: ProcessSet(id={number.value}) has the ranks {ranks}")
    if status != 0:
        _context.fail(status, context, message)
    wanted._become(number.value)
    return wanted


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set that has no operation in flight. Collective over the world. False: it
    was not there any more."""
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"remove_process_set: {process_set!r} is no ProcessSet")
    context = _context.current()
    if process_set._id is None:
        return False
    wanted = process_set._id
    status, message = _context.interruptible(
        lambda: lib.rueda_process_set_remove(context, wanted, c.FOREVER)
    )
    if status == errors.Status.NOT_FOUND:
        return False
    if status != 0:
        _context.fail(status, context, message)
    process_set._id = None
    return True
