"""From the library's errors to exceptions, for the backend."""

from __future__ import annotations

from rueda import errors


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
    if status == errors.Status.ABORTED:
        lost = errors.LostRankError if pid != 0 else errors.AbortedError
        return lost(
            message,
            recoverable=recoverable,
            rank=rank if rank >= 0 else None,
            host=host,
            pid=pid,
            cause=cause,
            operation=operation,
            tensor=tensor,
            membership=membership,
        )
    if kind == "NotInitializedError":
        return errors.NotInitializedError(message, errors.Status.FAILED_PRECONDITION)
    if status == errors.Status.INVALID_ARGUMENT and kind == "":
        return ValueError(message)
    error = errors.from_status(status, message)
    if isinstance(error, (errors.MismatchError, errors.StalledError)):
        error.operation, error.tensor = operation, tensor
    return error
