"""Python objects, pickled: only between ranks of one job, which know each other by its secret."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

from rueda.core import _context
from rueda.core import _library as c
from rueda.core._operations import set_id
from rueda.core._process_sets import ProcessSet, global_process_set
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
    status = lib.rueda_broadcast_bytes(
        context,
        set_id(process_set),
        None if name is None else _context.encoded(name, "name"),
        root_rank,
        data,
        len(data or b""),
        ctypes.byref(result),
    )
    _context.check_operation(status, context)
    return _bytes(result)


def allgather_bytes(
    data: bytes, name: str | None, process_set: ProcessSet | int
) -> list[memoryview]:
    """All ranks' bytes, by rank."""
    context = _context.current()
    number = set_id(process_set)
    count = max(lib.rueda_process_set_size(context, number), 1)
    sizes = (ctypes.c_int64 * count)()
    result = _empty()
    status = lib.rueda_allgather_bytes(
        context,
        number,
        None if name is None else _context.encoded(name, "name"),
        data,
        len(data),
        ctypes.byref(result),
        sizes,
    )
    _context.check_operation(status, context)
    everything = _bytes(result)
    parts, begin = [], 0
    for size in sizes:
        parts.append(everything[begin : begin + size])
        begin += size
    return parts


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | int = global_process_set,
) -> Any:
    """The root's object, pickled there and unpickled here; the root gets its own back.

    Raises:
        Whatever pickle does with an object that it can't take, on the root; the others then wait
        until the root submits something else under this name, or the job ends.
    """
    is_root = _context.rank() == root_rank
    data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL) if is_root else None
    received = broadcast_bytes(data, root_rank, name, process_set)
    return obj if is_root else pickle.loads(received)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet | int = global_process_set
) -> list[Any]:
    """All ranks' objects, in rank order."""
    data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    return [pickle.loads(part) for part in allgather_bytes(data, name, process_set)]
