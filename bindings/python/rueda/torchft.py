"""A process group for torchft, whose jobs train on when replica groups are lost or come.

    from rueda.torchft import ProcessGroupRueda

    manager = torchft.Manager(pg=ProcessGroupRueda(timeout=timedelta(seconds=30)), ...)

It takes the place of torchft's ``ProcessGroupGloo``. When a member dies, the operations of the
others fail within milliseconds: they don't wait for the timeout.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft import ddp as _ddp
from torchft import manager as _manager
from torchft.process_group import ProcessGroupWrapper

from rueda import errors
from rueda.core import _context
from rueda.distributed import _meeting, _native

__all__ = ["ProcessGroupRueda"]

# How long a member that leaves serves the others, who may have to finish what all began.
_LEAVE_S = 5.0
_POLL_S = 0.01


class ProcessGroupRueda(ProcessGroupWrapper):  # type: ignore[misc]
    """A process group over Rueda, which torchft configures anew whenever its members change.

    ``configure`` ends the group that there is and makes the next one, in the same process. Every
    method may be called on any thread.

    Args:
        timeout: how long an operation may take, and how long ``configure`` waits for members that
            have not come to the store. When all have come, it waits for ``RUEDA_START_TIMEOUT_S``
            at most.
    """

    _pg: Any  # torchft's: the group; None: there is none

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        super().__init__(timeout)
        # Held while a group is ended, or is asked how it ended.
        self._ending = threading.Lock()
        self._context: int | None = None
        self._aborted: errors.AbortedError | None = None
        _all.add(self)

    def getBackendName(self) -> str:
        """The name that ``register`` begins with."""
        return "torchft-rueda"

    def configure(self, *args: Any, **kwargs: Any) -> None:
        """Leaves the group that there is, as ``shutdown`` does, and makes another; see torchft.

        Raises:
            DistError, RuedaError: the members did not meet. There is no group then.
        """
        self.shutdown()
        super().configure(*args, **kwargs)

    def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
        name = "torchft" if self._quorum_id is None else f"torchft quorum {self._quorum_id}"
        native = _native.module  # a RuedaError of its is told to all members
        met = _meeting.meet(store, rank, world_size, name, prepare=native)
        backend = native().GroupBackend(
            met.context, met.store, rank, world_size, self._timeout, name, list(range(world_size))
        )
        group: Any = dist.ProcessGroup(store, rank, world_size)
        custom = dist.ProcessGroup.BackendType.CUSTOM
        group._set_default_backend(custom)
        for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
            group._register_backend(torch.device(device), custom, backend)
        self._context, self._aborted = met.context, None
        return group

    def abort(self, errored: bool = True) -> None:
        """Ends the group: what is under way fails with an AbortedError, on all members."""
        with self._ending:
            if errored and self._pg is not None:
                self._aborted = errors.AbortedError("the process group was aborted on this rank")
            super().abort(errored=errored)

    def shutdown(self) -> None:
        """Leaves the group. Waits until the others have left it too, but for 5 s at most."""
        with self._ending:
            group, self._pg = self._pg, None
        if group is None:
            return
        last = threading.Timer(_LEAVE_S, _let_go, [self._context])
        last.start()
        group.shutdown()
        last.cancel()

    def errored(self) -> Exception | None:
        """Why the group has to be configured anew; None while it works."""
        with self._ending:
            if self._pg is None:
                return self._aborted
            cause = _context.first_cause(self._context)
            return _context.aborted(cause, errors.text(cause.message)) if cause.code else None

    def set_timeout(self, timeout: timedelta) -> None:
        """Of the operations that begin from now on, and of the next ``configure``."""
        super().set_timeout(timeout)
        group = self._pg
        if group is not None:
            group.set_timeout(timeout)


_all: weakref.WeakSet[ProcessGroupRueda] = weakref.WeakSet()


def _let_go(context: int | None) -> None:
    _context.lib.rueda_abort(context, b"a member has left the process group")


def _leave(error: BaseException | None) -> Callable[[], None]:
    """At exit all groups of the process are left, and the others are waited for without a limit.
    Members of these may go on for long: they are not."""
    contexts = [] if error else [each._context for each in list(_all) if each._pg is not None]
    until = time.monotonic() + _LEAVE_S

    def end() -> None:
        for context in contexts:
            while time.monotonic() < until and _context.lib.rueda_size(context) > 0:
                time.sleep(_POLL_S)
            _let_go(context)

    return end


def _let_failures_through() -> None:
    """torchft's DistributedDataParallel returns a future of each allreduce. torchft makes none when
    the wait for it raises, as waits on the CPU do, and then asserts that there is one. The future
    reports the error to the Manager, which discards the step."""
    kind = _manager._ManagedWork
    original = kind.wait

    @functools.wraps(original)
    def wait(self: Any, timeout: timedelta | None = None) -> bool:
        if original(self, timeout):
            return True
        self._set_future_callback()
        return False

    kind.wait = wait
    _ddp.DistributedDataParallel._comm_hook = staticmethod(_reduce_bucket)


def _reduce_bucket(manager: Any, bucket: Any) -> Any:
    """For torchft's DistributedDataParallel, whose own takes the future of an allreduce that the
    Manager leaves out, as it does after an error, for one of its own kind."""
    work = manager.allreduce(bucket.buffer())
    work.wait()
    future = work.get_future()
    return getattr(future, "_fut", future)


_reduce_bucket.__annotations__.clear()  # torch wants other ones, or none
_context.at_exit.insert(0, _leave)
_let_failures_through()
