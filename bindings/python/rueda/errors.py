"""What goes wrong, as exceptions.

A mistake of the caller's (a shape, a name in flight, splits that don't add up) is a ValueError or
a TypeError at once, on the rank that made it. Everything else is a RuedaError; its subclasses tell
what may go better another time from what won't.
"""

from __future__ import annotations

import enum
import warnings


class Status(enum.IntEnum):
    """The statuses of the C API (rueda_status)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RuedaError(RuntimeError):
    """An operation, or the job, went wrong. The text says what, where, and what to do."""

    def __init__(self, message: str, status: Status = Status.UNKNOWN) -> None:
        super().__init__(message)
        #: Which kind of error.
        self.status = status

    #: Whether the same ranks could go on in a new membership, all of them or, where one was lost,
    #: those that live. If not, trying again changes nothing.
    recoverable: bool = False


class AbortedError(RuedaError):
    """The membership has ended: a rank or the network was lost, or a rank called abort().

    Every operation in flight and every later one has the same first cause.
    """

    def __init__(
        self,
        message: str,
        *,
        recoverable: bool = True,
        rank: int | None = None,
        host: str = "",
        pid: int = 0,
        cause: str = "",
        operation: str = "",
        tensor: str = "",
        membership: int = 0,
    ) -> None:
        super().__init__(message, Status.ABORTED)
        self.recoverable = recoverable
        #: The rank that was lost (a LostRankError), or else the one that ended the membership: it
        #: called abort(), or could not go on. None: nobody in particular.
        self.rank = rank
        #: Where the lost rank ran.
        self.host = host
        #: Its process; 0: no rank was lost.
        self.pid = pid
        #: How it was lost: "killed by signal 9 (SIGKILL)". How the membership ended otherwise:
        #: "rank 1 aborted the job: ...".
        self.cause = cause
        #: What it was doing, or what was awaited of it: the text says which.
        self.operation = operation
        #: With which tensor.
        self.tensor = tensor
        #: The membership that ended.
        self.membership = membership

    @property
    def epoch(self) -> int:
        """Deprecated: the old name of membership. It goes with 0.3."""
        warnings.warn("epoch is deprecated: use membership", DeprecationWarning, stacklevel=2)
        return self.membership

    def __reduce__(self) -> tuple[object, ...]:
        fields = {k: v for k, v in vars(self).items() if k != "status"}
        return (_aborted, (type(self), self.args[0], fields))


def _aborted(kind: type[AbortedError], message: str, fields: dict[str, object]) -> AbortedError:
    return kind(message, **fields)  # type: ignore[arg-type]


class LostRankError(AbortedError):
    """A rank was lost, and the membership ended with it.

    `rank`, `host`, `pid` and `cause` say how.
    """


class _OperationError(RuedaError):
    """An operation has failed, and the job goes on."""

    def __init__(
        self,
        message: str,
        status: Status = Status.INVALID_ARGUMENT,
        *,
        operation: str = "",
        tensor: str = "",
    ) -> None:
        super().__init__(message, status)
        #: Which operation: "allreduce".
        self.operation = operation
        #: With which tensor.
        self.tensor = tensor


class MismatchError(_OperationError, ValueError):
    """The ranks disagree about an operation, or one of them gave it wrong splits: all of them have
    this error, and the job goes on."""


class NotInitializedError(RuedaError, ValueError):
    """There is no job: call init() first. (A ValueError, as Horovod's is.)"""


class TimeIsUpError(RuedaError, TimeoutError):
    """The time that the call was given is over. An operation goes on all the same."""


class StalledError(_OperationError):
    """Some ranks did not submit an operation within ``RUEDA_STALL_TIMEOUT_S``, or all ranks waited
    for each other for ``RUEDA_DEADLOCK_TIMEOUT_S``: it has ended with this error on the ranks that
    did, and names the others. The job goes on."""


class DismissedError(RuedaError):
    """The launcher of an elastic job does not want this process any more: its host is taken away,
    or the job is over. `elastic.run` ends the process with status 0 then."""


class LostStateError(RuedaError):
    """What only a lost rank of an elastic job had (`rueda.elastic.Sharded`, `Own`) is lost with all
    who had it open or had a copy. Raised on all ranks."""


class UnsupportedError(RuedaError, NotImplementedError):
    """There is no such thing here, or not for this device or type."""


class RemoteError(RuedaError):
    """A function that run() started on several ranks raised on one of them, or a rank was lost."""

    def __init__(self, message: str, rank: int | None = None, traceback: str = "") -> None:
        super().__init__(message, Status.UNKNOWN)
        #: The rank where it happened first; None: none in particular.
        self.rank = rank
        #: That rank's traceback, for people.
        self.traceback = traceback


_CLASSES: dict[int, type[RuedaError]] = {
    Status.CANCELLED: StalledError,
    Status.INVALID_ARGUMENT: MismatchError,
    Status.DEADLINE_EXCEEDED: TimeIsUpError,
    Status.UNIMPLEMENTED: UnsupportedError,
}


def from_status(status: int, message: str) -> RuedaError:
    """The exception for how an operation ended: a status other than OK and ABORTED."""
    kind = Status(status) if status in Status._value2member_map_ else Status.UNKNOWN
    return _CLASSES.get(status, RuedaError)(message, kind)


def text(value: bytes | None) -> str:
    """A string of the library's."""
    return (value or b"").decode("utf-8", "replace")
