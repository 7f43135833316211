"""torch.distributed's Work over a handle."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import queue
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rueda import errors
from rueda.core import _library as c
from rueda.core._operations import Handle


class _Threads:
    """As many as there is to do at once: what is done when a future is completed may wait for
    another future."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle = 0
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run(self, task: Callable[[], None]) -> None:
        """Soon."""
        self._tasks.put(task)
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
                return
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            task()
            del task  # and what it holds on to
            with self._lock:
                self._idle += 1


threads = _Threads()
# Those whose end is to be told, by number.
_waiting: dict[int, RuedaWork] = {}
_numbers = itertools.count(1)


def _tell_end(number: int, _handle: int, _status: int) -> None:
    """On the context's callback thread."""
    work = _waiting.pop(number, None)
    if work is not None:
        work._tell()


_on_end = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int)(_tell_end)


# How long the end of a context waits for what goes on in the process itself.
_END_S = 10.0


class Calls:
    """What is under way with a context. It must not be destroyed before that has ended, and before
    all works know how they ended."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # may be entered again, in a signal's handler
        self._none_left = threading.Condition(self._lock)
        self._count = 0
        self._closed = False
        # Works that are not told of their end.
        self._untold: set[weakref.ref[RuedaWork]] = set()

    def begin(self) -> None:
        """A work, until its end is told, or the submit of one that is not told."""
        with self._lock:
            if self._closed:
                raise errors.NotInitializedError(
                    "the process group has been destroyed", errors.Status.FAILED_PRECONDITION
                )
            self._count += 1

    def end(self) -> None:
        """Of what has begun."""
        with self._lock:
            self._count -= 1
            if self._closed and self._count == 0:
                self._none_left.notify_all()

    @property
    def closed(self) -> bool:
        """Whether the context is about to end; asked within `with`, it does not before the end of
        that."""
        return self._closed

    def __enter__(self) -> None:
        """A call that asks after a work."""
        with self._lock:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        self.end()

    def add_untold(self, work: RuedaWork) -> None:
        """Between begin and end of its submit."""
        self._untold.add(weakref.ref(work, self._untold.discard))

    def close(self) -> None:
        """No work begins from now on."""
        with self._lock:
            self._closed = True

    def settle(self) -> bool:
        """When the context has been left or aborted: waits until it may be destroyed. False: not
        soon."""
        if not self._wait_for_none():
            return False
        for reference in self._untold.copy():
            work = reference()
            if work is not None:
                work.is_completed()
        return self._wait_for_none()

    def _wait_for_none(self) -> bool:
        with self._none_left:
            return self._none_left.wait_for(lambda: self._count == 0, _END_S)


class RuedaWork(dist.Work):
    """An operation under way. Results are in the tensors that it was given."""

    def __init__(self, outputs: list[torch.Tensor], timeout: timedelta, calls: Calls) -> None:
        super().__init__()
        self._outputs = outputs
        self._limit = timeout
        self._calls = calls
        self._handle: Handle[Any] | None = None
        self._lock = threading.Lock()
        self._promise: torch.futures.Future[Any] | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._is_told = False  # of its end
        self._told = False  # and has been
        self._error: Exception | None = None

    def start(self, submit: Callable[[c.Completion | None], Handle[Any]], is_told: bool) -> None:
        """Submits. To be told of the end costs another thread's time: a caller that waits soon
        does better without."""
        self._is_told = is_told
        if not is_told:
            self._calls.begin()
            try:
                self._handle = submit(None)
                self._calls.add_untold(self)
            finally:
                self._calls.end()
            return
        number = next(_numbers)
        completion = c.Completion(
            ctypes.sizeof(c.Completion), ctypes.cast(_on_end, ctypes.c_void_p), number
        )
        self._calls.begin()
        with self._lock:  # the end may come before the handle is known here
            _waiting[number] = self
            try:
                self._handle = submit(completion)
            except BaseException:
                del _waiting[number]
                self._calls.end()
                raise

    def operation(self) -> tuple[int, int]:
        """Its context and its handle."""
        assert self._handle is not None
        return self._handle.operation()

    def _tell(self) -> None:
        """The operation has ended."""
        with self._lock:
            handle = self._handle
        assert handle is not None
        try:
            handle.wait()
        except Exception as error:
            self._error = error
        with self._lock:
            self._told = True
            promise = self._promise
        self._calls.end()
        if promise is not None:
            threads.run(lambda: self._set(promise))

    def _set(self, promise: torch.futures.Future[Any]) -> None:
        if self._error is not None:
            promise.set_exception(self._error)
        else:
            promise.set_result(self._outputs)

    # ---- torch.distributed's ----

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the end, at most for `timeout` (0: the group's); on CUDA the current stream
        does."""
        assert self._handle is not None
        limit = timeout if timeout > timedelta(0) else self._limit
        with self._calls:
            self._handle.wait(limit.total_seconds())
        return True

    def synchronize(self) -> None:
        """The same."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it has ended, and the outputs are there."""
        assert self._handle is not None
        with self._calls:
            if not self._handle.poll():
                return False
            # The operation has ended. What is done with its result may be under way on another
            # thread, or be nobody's so far.
            with contextlib.suppress(Exception):  # that is for wait
                self._handle.wait()
        return True

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """How it failed, once it has ended."""
        if not self.is_completed():
            return None
        assert self._handle is not None
        try:
            self._handle.wait()
        except Exception as error:
            return error
        return None

    def result(self) -> list[torch.Tensor]:
        """The outputs."""
        self.wait()
        return self._outputs

    def get_future(self) -> torch.futures.Future[Any]:
        """Completed at the end, with the outputs."""
        with self._lock:
            if self._future is not None:
                return self._future
            promise = self._promise = torch.futures.Future()
            # An exception that is set from Python is a value to torch's C++, such as the reducer of
            # DistributedDataParallel, which would take it for tensors. One that is raised is none.
            future = self._future = promise.then(lambda ended: ended.wait())
            was_told = self._told
        if was_told:
            self._set(promise)
        elif not self._is_told:
            threads.run(lambda: self._complete(promise))
        return future

    def _complete(self, promise: torch.futures.Future[Any]) -> None:
        try:
            self.wait()
        except Exception as error:
            promise.set_exception(error)
        else:
            promise.set_result(self._outputs)


class RuedaWorks(RuedaWork):
    """Several as one."""

    def __init__(self, works: list[RuedaWork], timeout: timedelta, calls: Calls) -> None:
        super().__init__([output for work in works for output in work._outputs], timeout, calls)
        self._works = works

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for all of them."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether all have ended."""
        return all(work.is_completed() for work in self._works)

    def exception(self) -> Exception | None:
        """How the first of those that failed did."""
        return next((e for work in self._works if (e := work.exception()) is not None), None)

    def get_future(self) -> torch.futures.Future[Any]:
        """Completed with all outputs."""
        all_of_them = torch.futures.collect_all([work.get_future() for work in self._works])

        def outputs(ended: torch.futures.Future[Any]) -> list[torch.Tensor]:
            ended.wait()  # raises
            return self._outputs

        return all_of_them.then(outputs)
