"""Receiving from any source. A message is named by its sender; a receiver that says of nobody that
he is one has to hear who would be. Senders tell it through the group's store, and only where
nobody has taken a message for a moment: others pay nothing for it."""

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
from rueda.core._operations import Handle
from rueda.distributed._work import Calls, RuedaWork, threads

# How long a message may lie before its receiver is told, in seconds.
_PATIENCE = 0.02
# How often a receiver looks: at first, and at last.
_LOOK_FIRST, _LOOK_LAST = 0.00005, 0.02


class Notices:
    """Of one rank in a group: which of its messages lie there, and which of others' to it."""

    def __init__(self, store: Any, rank: int, size: int, calls: Calls) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._calls = calls
        self._lock = threading.Lock()
        # The sender's: (when, handle, receiver, tag, number), and who is told at once.
        self._later: collections.deque[tuple[float, Handle[Any], int, int, int]] = (
            collections.deque()
        )
        self._watching = False
        self._at_once: set[int] = set()
        # The receiver's: the highest numbers it was told of, by source and tag.
        self._told: dict[tuple[int, int], int] = {}
        self._seen: dict[int, bytes] = {}  # the latest news when it looked, by tag
        self._has_asked = False
        self._last = rank

    # ---- of the sender ----

    def sent(self, handle: Handle[Any], receiver: int, tag: int, number: int) -> None:
        """The message has been submitted."""
        if receiver in self._at_once:
            self._tell(receiver, tag, number)
            return
        with self._lock:
            self._later.append((time.monotonic() + _PATIENCE, handle, receiver, tag, number))
            if self._watching:
                return
            self._watching = True
        threads.run(self._watch)

    def _watch(self) -> None:
        while True:
            with self._lock:
                if not self._later:
                    self._watching = False
                    return
                when, handle, receiver, tag, number = self._later.popleft()
            time.sleep(max(0.0, when - time.monotonic()))
            with self._calls, contextlib.suppress(Exception):  # a store may be gone with its rank
                if not handle.poll():
                    self._tell(receiver, tag, number)
                    if self._store.check([f"takes of any {receiver}"]):
                        self._at_once.add(receiver)

    def _tell(self, receiver: int, tag: int, number: int) -> None:
        # Neither waits for an answer.
        self._store.set(f"sent {self._rank} {receiver} {tag}", str(number))
        self._store.set(f"news {receiver}", f"{self._rank} {tag} {number}")

    # ---- of the receiver ----

    def ask(self) -> None:
        """From now on senders need not wait before they tell."""
        if not self._has_asked:
            self._store.set(f"news {self._rank}", "")
            self._store.set(f"takes of any {self._rank}", "1")
            self._has_asked = True

    def look(self, tag: int) -> None:
        """For news."""
        news = self._store.get(f"news {self._rank}")
        if news == self._seen.get(tag):
            return
        for source in range(self._size):
            key = f"sent {source} {self._rank} {tag}"
            if source != self._rank and self._store.check([key]):
                self._told[source, tag] = int(self._store.get(key))
        self._seen[tag] = news

    def source(self, tag: int, next_number: Callable[[int], int]) -> int | None:
        """Whose message has not been taken, if anybody's; each in turn. `next_number`: of what is
        received next from a rank."""
        for step in range(1, self._size + 1):
            source = (self._last + step) % self._size
            if self._told.get((source, tag), -1) >= next_number(source):
                self._last = source
                return source
        return None


class AnySourceWork(RuedaWork):
    """A message from whoever sends one. `take`: begins to receive one that lies there: its source
    and work, or None."""

    def __init__(
        self,
        outputs: list[torch.Tensor],
        timeout: timedelta,
        calls: Calls,
        take: Callable[[], tuple[int, RuedaWork] | None],
    ) -> None:
        super().__init__(outputs, timeout, calls)
        self._take = take
        self._found = threading.Event()
        self._source = -1
        self._work: RuedaWork | None = None
        threads.run(self._look)

    def _look(self) -> None:
        pause = _LOOK_FIRST
        end = time.monotonic() + self._limit.total_seconds()
        try:
            while (taken := self._take()) is None:
                if time.monotonic() > end:
                    raise self._is_late(self._limit)
                time.sleep(pause)
                pause = min(pause * 1.5, _LOOK_LAST)
            self._source, self._work = taken
        except Exception as error:
            self._error = error
        self._found.set()

    @staticmethod
    def _is_late(limit: timedelta) -> errors.TimeIsUpError:
        return errors.TimeIsUpError(
            f"no rank has sent a message within {limit.total_seconds():g} s",
            errors.Status.DEADLINE_EXCEEDED,
        )

    # ---- torch.distributed's ----

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the message."""
        limit = timeout if timeout > timedelta(0) else self._limit
        begin = time.monotonic()
        if not self._found.wait(limit.total_seconds()):
            raise self._is_late(limit)
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
