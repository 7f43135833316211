"""From the library's errors to exceptions, for the backend."""

from __future__ import annotations

import ctypes

from rueda import errors
from rueda.core import _context
from rueda.core import _library as c


def exception(
    status: int,
    message: str,
    kind: str,
    recoverable: bool,
    rank: int,
    host: str,
    pid: int,
    cause: str,
    operation: str,
    tensor: str,
    membership: int,
) -> Exception:
    """What is raised for an error of the C++ API: `kind`, a class of rueda.errors; "": by its
    status, where what is wrong with a call is a ValueError."""
    if kind == "NotInitializedError":
        return errors.NotInitializedError(message, errors.Status.FAILED_PRECONDITION)
    if status == errors.Status.INVALID_ARGUMENT and kind == "":
        return ValueError(message)
    words = [word.encode() for word in (host, cause, operation, tensor)]
    details = c.Error(ctypes.sizeof(c.Error), status, recoverable, membership, rank, pid, *words)
    return _context.failure(status, message, details)
