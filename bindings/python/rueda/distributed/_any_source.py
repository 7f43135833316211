"""Receiving from any source. A message is named by its sender; a receiver that says of nobody that
he is one has to hear who would be. Senders tell it through the group's store, and only where
nobody has taken a message for a moment: others pay nothing for it.

A stranger who can write to the store can make a receiver wait for a message that nobody has sent,
until its time is up, or end its receiving from any source. Messages themselves don't go there."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from rueda import errors
from rueda.core import _operations
from rueda.distributed import _store
from rueda.distributed._work import Calls, RuedaWork, threads

# How long a message may lie before its receiver is told, in seconds.
_PATIENCE = 0.02
# How often a receiver looks: at first, and at last.
_LOOK_FIRST, _LOOK_LAST = 0.00005, 0.02
# How often it asks whether the others are still there.
_CHECK_EVERY = 0.5


def left_key(rank: int) -> str:
    """Where the store has that a rank has left the group."""
    return f"left {rank}"


class _Stream:
    """Messages to one receiver with one tag, which it takes in their order."""

    __slots__ = ("first", "last", "number", "when")

    def __init__(self, operation: tuple[int, int], number: int) -> None:
        self.first = self.last = operation  # the one that is looked at, and the latest
        self.number = number  # of the latest
        self.when = time.monotonic() + _PATIENCE  # to look


class Sent:
    """Messages that this rank has sent, of which receivers may have to be told. Any thread."""

    def __init__(self, store: Callable[[], Any], rank: int, calls: Calls) -> None:
        self._store = store
        self._rank = rank
        self._calls = calls
        self._lock = threading.Lock()
        self._streams: dict[tuple[int, int], _Stream] = {}  # by receiver and tag
        self._watching = False
        self._at_once: set[int] = set()  # receivers that take from any source
        self._telling = threading.Lock()
        self._told: dict[tuple[int, int], int] = {}  # the highest number, by receiver and tag

    def add(self, operation: tuple[int, int], receiver: int, tag: int, number: int) -> None:
        """Has been submitted. `operation`: its context and handle."""
        if receiver in self._at_once:
            self._tell(receiver, tag, number)
            return
        with self._lock:
            stream = self._streams.get((receiver, tag))
            if stream is None:
                self._streams[receiver, tag] = _Stream(operation, number)
            elif number > stream.number:
                stream.last, stream.number = operation, number
            if not self._watching:
                self._watching = True
                threads.run(self._watch)

    def _watch(self) -> None:
        while True:
            with self._lock:
                if not self._streams:
                    self._watching = False
                    return
                when = min(stream.when for stream in self._streams.values())
            time.sleep(max(0.0, when - time.monotonic()))
            with self._lock:
                streams = list(self._streams.items())
            for key, stream in streams:
                if stream.when <= time.monotonic():
                    self._look_at(key, stream)

    def _look_at(self, key: tuple[int, int], stream: _Stream) -> None:
        with self._calls:
            lies = not self._calls.closed and _operations.is_under_way(*stream.first)
        receiver, tag = key
        with self._lock:
            number = stream.number
            if stream.first == stream.last:  # the next message is a new stream
                del self._streams[key]
            else:
                stream.first = stream.last
                stream.when = time.monotonic() + _PATIENCE
        if lies:
            self._tell(receiver, tag, number)
            with contextlib.suppress(Exception):
                if self._store().check([f"takes of any {receiver}"]):
                    self._at_once.add(receiver)

    def _tell(self, receiver: int, tag: int, number: int) -> None:
        # The group's rank 0 may have gone, and the store with it: then nobody waits.
        with self._telling, contextlib.suppress(Exception):
            if number > self._told.get((receiver, tag), -1):
                # Neither waits for an answer.
                store = self._store()
                store.set(f"sent {self._rank} {receiver} {tag}", str(number))
                store.set(f"news {receiver}", f"{self._rank} {tag} {number}")
                self._told[receiver, tag] = number


class Wanted:
    """Messages that this rank wants from whoever sends them: with one tag, in the order of the
    calls. One thread looks for all.

    `receive`: begins to receive a message. `next_number`: of what is received next, by source and
    tag. `check`: raises when nothing can come any more.
    """

    def __init__(
        self,
        store: Callable[[], Any],
        rank: int,
        size: int,
        receive: Callable[[list[torch.Tensor], int, int], RuedaWork],
        next_number: Callable[[int, int], int],
        check: Callable[[], None],
    ) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._receive = receive
        self._next_number = next_number
        self._check = check
        self._changed = threading.Condition()
        self._works: dict[int, collections.deque[AnySourceWork]] = {}  # by tag
        self._looking = False
        # Of the thread that looks: the highest numbers that it was told of, by source and tag; the
        # latest news when it looked for a tag; whom it took from last.
        self._told: dict[tuple[int, int], int] = {}
        self._news: dict[int, bytes] = {}
        self._last = rank
        self._has_asked = False
        self._check_at = 0.0

    def add(self, work: AnySourceWork, tag: int) -> None:
        """A new one."""
        with self._changed:
            self._works.setdefault(tag, collections.deque()).append(work)
            if self._looking:
                self._changed.notify()
                return
            self._looking = True
            threads.run(self._look)

    def _look(self) -> None:
        pause = _LOOK_FIRST
        while True:
            with self._changed:
                tags = [tag for tag, works in self._works.items() if works]
                if not tags:
                    self._looking = False
                    return
            try:
                self._check()
                taken = sum([self._take(tag) for tag in tags])
                if not taken:
                    self._check_others()
            except Exception as error:  # of the store, or the group's end
                self._fail(error)
                continue
            pause = _LOOK_FIRST if taken else min(pause * 1.5, _LOOK_LAST)
            with self._changed:
                if self._changed.wait(pause):
                    pause = _LOOK_FIRST

    def _check_others(self) -> None:
        """Every now and then: whether there is somebody who could send."""
        if time.monotonic() < self._check_at:
            return
        self._check_at = time.monotonic() + _CHECK_EVERY
        others = [left_key(rank) for rank in range(self._size) if rank != self._rank]
        if self._store().check(others):
            raise errors.RuedaError(
                "receiving from any source: all other ranks have left the group",
                errors.Status.FAILED_PRECONDITION,
            )

    def _fail(self, error: Exception) -> None:
        with self._changed:
            works = [work for works in self._works.values() for work in works]
            self._works.clear()
        for work in works:
            work.found(error)

    def _take(self, tag: int) -> int:
        """What lies there, for as many works."""
        self._hear(tag)
        count = 0
        while self._works[tag] and (source := self._source(tag)) is not None:
            work = self._works[tag][0]
            try:
                work.found(self._receive(work.outputs, source, tag), source)
            except Exception as error:  # what is wrong with its tensor, or the job's end
                work.found(error)
            self._works[tag].popleft()
            count += 1
        return count

    def _hear(self, tag: int) -> None:
        store = self._store()
        if not self._has_asked:  # from now on senders need not wait before they tell
            store.set(f"news {self._rank}", "")
            store.set(f"takes of any {self._rank}", "1")
            self._has_asked = True
        news = _store.get(store, f"news {self._rank}")  # looked at for changes, and not into
        if news == self._news.get(tag):
            return
        for source in range(self._size):
            key = f"sent {source} {self._rank} {tag}"
            if source != self._rank and store.check([key]):
                self._told[source, tag] = _store.number(store, key)
        self._news[tag] = news

    def _source(self, tag: int) -> int | None:
        """Whose message has not been taken, if anybody's; each in turn."""
        for step in range(1, self._size + 1):
            source = (self._last + step) % self._size
            if self._told.get((source, tag), -1) >= self._next_number(source, tag):
                self._last = source
                return source
        return None


class AnySourceWork(RuedaWork):
    """A message from whoever sends one."""

    def __init__(self, outputs: list[torch.Tensor], timeout: timedelta, calls: Calls) -> None:
        super().__init__(outputs, timeout, calls)
        self.outputs = outputs
        self._found = threading.Event()
        self._source = -1
        self._work: RuedaWork | None = None

    def found(self, work: RuedaWork | Exception, source: int = -1) -> None:
        """Once: the message is received, or can't be."""
        if isinstance(work, Exception):
            self._error = work
        else:
            self._work, self._source = work, source
        self._found.set()

    # ---- torch.distributed's ----

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the message."""
        limit = timeout if timeout > timedelta(0) else self._limit
        begin = time.monotonic()
        if not self._found.wait(limit.total_seconds()):
            raise errors.TimeIsUpError(
                f"no rank has sent a message within {limit.total_seconds():g} s",
                errors.Status.DEADLINE_EXCEEDED,
            )
        if self._error is not None:
            raise self._error
        assert self._work is not None
        rest = limit - timedelta(seconds=time.monotonic() - begin)
        return self._work.wait(max(rest, timedelta(milliseconds=1)))

    def is_completed(self) -> bool:
        """Whether it is there."""
        return self._found.is_set() and (self._work is None or self._work.is_completed())

    def exception(self) -> Exception | None:
        """How it failed, once it has ended."""
        if not self.is_completed():
            return None
        return self._error if self._work is None else self._work.exception()

    def source_rank(self) -> int:
        """Who sent it, in the group."""
        return self._source

    _source_rank = source_rank  # torch's name
