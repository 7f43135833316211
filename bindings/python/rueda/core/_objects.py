"""Python objects, pickled: only between ranks of one job, which know each other by its secret."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

from rueda.core import _context
from rueda.core import _library as c
from rueda.core._operations import set_id
from rueda.core._process_sets import ProcessSet, global_process_set, ranks_of
from rueda.core._tensors import Owned

lib = c.lib


def _empty() -> c.Result:
    return c.Result(size=ctypes.sizeof(c.Result))


def _bytes(result: c.Result) -> memoryview:
    owned = Owned(result)
    return memoryview(owned.memory()).cast("B") if owned.nbytes else memoryview(b"")


def broadcast_bytes(
    data: bytes | None, root_rank: int, name: str | None, process_set: ProcessSet | int
) -> memoryview:
    """The root's bytes."""
    context = _context.current()
    result = _empty()
    number = set_id(process_set)
    encoded = None if name is None else _context.encoded(name, "name")
    ended = _context.interruptible(
        lambda: lib.rueda_broadcast_bytes(
            context, number, encoded, root_rank, data, len(data or b""), ctypes.byref(result)
        )
    )
    _context.check_operation(ended, context)
    return _bytes(result)


def allgather_bytes(
    data: bytes, name: str | None, process_set: ProcessSet | int
) -> list[memoryview]:
    """All ranks' bytes, by rank: none of a rank that has joined."""
    context = _context.current()
    number = set_id(process_set)
    count = max(lib.rueda_process_set_size(context, number), 1)
    sizes = (ctypes.c_int64 * count)()
    result = _empty()
    encoded = None if name is None else _context.encoded(name, "name")
    ended = _context.interruptible(
        lambda: lib.rueda_allgather_bytes(
            context, number, encoded, data, len(data), ctypes.byref(result), sizes
        )
    )
    _context.check_operation(ended, context)
    everything = _bytes(result)
    parts, begin = [], 0
    for size in sizes:
        parts.append(everything[begin : begin + size])
        begin += size
    return parts


class _NotPickled:
    """Sent in place of an object that could not be."""

    def __init__(self, text: str) -> None:
        self.text = text


def _pickled(obj: Any) -> tuple[bytes, Exception | None]:
    """With the error, if there is one, and bytes that say so to the other ranks."""
    try:
        # It takes what notebooks and functions have defined, too.
        import cloudpickle  # type: ignore[import-untyped]

        return cloudpickle.dumps(obj, pickle.HIGHEST_PROTOCOL), None
    except Exception as error:  # objects may raise whatever they like
        text = f"{type(error).__name__}: {error}"
        return pickle.dumps(_NotPickled(text), pickle.HIGHEST_PROTOCOL), error


def _unpickled(data: memoryview, function: str, rank: int) -> Any:
    obj = pickle.loads(data)
    if isinstance(obj, _NotPickled):
        raise ValueError(f"{function}: the object of rank {rank} can't be pickled: {obj.text}")
    return obj


def _is_newcomer() -> bool:
    """Of an elastic job, and alone until `elastic.run`; its rank is what it will be."""
    return _context.membership() == 0


def _check_member(
    function: str, process_set: ProcessSet | int, root_rank: int | None = None
) -> list[int]:
    """The process set's ranks. Raises for the caller's mistakes, which the library takes for a
    difference between ranks."""
    ranks = ranks_of(set_id(process_set))
    if _context.rank() not in ranks:
        raise ValueError(f"{function}: rank {_context.rank()} is not in {process_set!r}")
    if root_rank is not None and root_rank not in ranks:
        raise ValueError(f"{function}: the root {root_rank} is not in {process_set!r}: {ranks}")
    return ranks


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | int = global_process_set,
) -> Any:
    """The root's object, pickled there and unpickled here; the root gets its own back.

    Raises:
        ValueError: this rank or the root is not in the process set; the root's object can't be
            pickled. The root raises what pickling it did.
    """
    if _is_newcomer():
        return obj
    _check_member("broadcast_object", process_set, root_rank)
    is_root = _context.rank() == root_rank
    data, error = _pickled(obj) if is_root else (None, None)
    received = broadcast_bytes(data, root_rank, name, process_set)
    if error is not None:
        raise error
    return obj if is_root else _unpickled(received, "broadcast_object", root_rank)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet | int = global_process_set
) -> list[Any]:
    """All ranks' objects, in rank order, without those of ranks that have joined.

    Raises:
        ValueError: another rank's object can't be pickled. That rank raises what pickling it did.
    """
    if _is_newcomer():
        return [obj]
    ranks = _check_member("allgather_object", process_set)
    data, error = _pickled(obj)
    parts = allgather_bytes(data, name, process_set)
    if error is not None:
        raise error
    return [
        _unpickled(part, "allgather_object", rank)
        for rank, part in zip(ranks, parts, strict=True)
        if part  # a pickled object has bytes
    ]
