"""What the ranks of a process group agree on through torch's store before they meet.

    rank R    by each rank but 0: what it knows of itself, or why it can't take part
    place R   by rank 0, when it has read all of these: where rank R stands in the group
    answer R  by rank R: what it has read there, word for word
    job       by rank 0, when it has read all answers: go, and where the ranks of several hosts meet

A rank that refuses what it reads says so in its next key, and rank 0 in all of its own: every rank
ends with the same error, and none has opened a port or a file. What has been read is deleted, and
before a key is written so is the one that will answer it: another group can use the same store,
also after one that did not start.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import secrets
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn

import torch.distributed as dist

from rueda import errors
from rueda.distributed import _store

# As core/base/limits.h has it.
_RANKS_MAX = 65_536
# Rank 0 has the first word when time is up.
_SECOND_WORD = timedelta(seconds=2)
_POLL_S = 0.01

_hexadecimal = _store.matching("[0-9a-f]{32}", "32 hexadecimal digits")


class Own(NamedTuple):
    """What a rank knows of itself."""

    #: New each time that it tries.
    attempt: str
    #: A digest of what makes processes neighbors.
    host: str
    #: A digest of the name of ruedarun's job, if this is the same rank of that one; or "".
    launched_as: str
    #: Whether it has RUEDA_SHARED_DIR.
    has_shared_dir: bool


class Place(NamedTuple):
    """Where a rank stands in the group."""

    #: New for each group, the same for its ranks.
    nonce: str
    #: As rank 0 has read it.
    own: Own
    #: How many hosts there are.
    hosts: int
    local_rank: int
    local_size: int
    #: Whether the group is the job that ruedarun started.
    is_launched: bool


class Agreed(NamedTuple):
    """What all ranks have heard."""

    place: Place
    #: Where the ranks of several hosts meet: an address and a port, or "".
    meeting_address: str
    #: The group's part of the store, which no other group reads or writes.
    store: Any


def agree(
    store: Any, rank: int, size: int, own: Own, limit: timedelta, open_door: Callable[[], str]
) -> Agreed:
    """Collective over the group's ranks. Waits for them as long as the store does, and when all
    have come, for `limit` at most. `open_door` is called at rank 0 when all ranks have their
    places, if they need it: it returns the address where those of several hosts meet.

    Raises:
        RuedaError: a key held what no rank had written there, or a rank refused; the same text on
            all ranks that can still be told.
    """
    if rank == 0:
        return _Root(store, size, limit).agree(own, open_door)
    return _agree_with_root(store, rank, size, own, limit)


def decline(
    store: Any, rank: int, size: int, error: errors.RuedaError, limit: timedelta
) -> NoReturn:
    """Instead of `agree`: tells the others that this rank can't take part, and raises why."""
    if rank == 0:
        _Root(store, size, limit).refuse(error)
    else:
        _store.forget(store, f"place {rank}")
        store.set(f"rank {rank}", _refusal(rank, error))
    raise error


def _endpoint(value: Any) -> str:
    """A check: nothing, or an address and a port in numbers."""
    error = ValueError("an address and a port, such as 10.0.0.1:29400, were expected")
    if not isinstance(value, str) or len(value) > 100:
        raise error
    if value == "":
        return value
    host, _, port = value.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    try:
        version = ipaddress.ip_address(host[1:-1] if in_brackets else host).version
    except ValueError:
        raise error from None
    if in_brackets != (version == 6) or not port.isascii() or not port.isdecimal():
        raise error
    if len(port) > 5 or not 0 < int(port) < 65_536:
        raise error
    return value


_OWN: dict[str, _store.Check] = {
    "attempt": _hexadecimal,
    "host": _hexadecimal,
    "launched_as": _store.matching("([0-9a-f]{32})?", "32 hexadecimal digits, or nothing,"),
    "has_shared_dir": _store.flag,
}
_PLACE: dict[str, _store.Check] = {
    "nonce": _hexadecimal,
    **_OWN,
    "hosts": _store.between(1, _RANKS_MAX),
    "local_rank": _store.between(0, _RANKS_MAX - 1),
    "local_size": _store.between(1, _RANKS_MAX),
    "is_launched": _store.flag,
}
_JOB: dict[str, _store.Check] = {"nonce": _hexadecimal, "meeting_address": _endpoint}


def _refusal(rank: int, error: Exception) -> str:
    """Instead of a value, for those who read it."""
    text = str(error) if isinstance(error, _store.Refused) else f"rank {rank}: {error}"
    printable = "".join(c if c.isprintable() else " " for c in text)
    return json.dumps({"error": printable[: _store.TEXT_MAX]})


def _group_store(store: Any, place: Place) -> Any:
    torchs: Any = dist  # which does not say that this is a part of it
    return torchs.PrefixStore(place.nonce, store)


def _need_address(place: Place) -> bool:
    """Whether the ranks meet at an address that rank 0 chooses."""
    return place.hosts > 1 and not place.is_launched and not place.own.has_shared_dir


def _place_word(place: Place) -> str:
    whole = place._asdict()
    return json.dumps(whole.pop("own")._asdict() | whole)


def _place_in(key: str, word: bytes) -> Place:
    whole = _store.fields(key, word, _PLACE, may_refuse=True)
    own = Own(**{name: whole.pop(name) for name in Own._fields})
    return Place(own=own, **whole)


class _Root:
    """Rank 0's part."""

    def __init__(self, store: Any, size: int, limit: timedelta) -> None:
        self._store = store
        self._others = range(1, size)
        self._limit = limit
        self._end = 0.0
        self._come: set[int] = set()

    def agree(self, own: Own, open_door: Callable[[], str]) -> Agreed:
        try:
            places = _places([own, *map(self._read_own, self._others)])
        except Exception as error:
            with contextlib.suppress(dist.DistError):  # the store is gone too
                self.refuse(error)
            raise
        # All have come to this group: nobody reads what was left of an earlier one.
        for key in ("job", *(f"answer {rank}" for rank in self._others)):
            _store.forget(self._store, key)
        self._end = time.monotonic() + self._limit.total_seconds()
        words = [_place_word(place) for place in places]
        for rank in self._others:
            self._store.set(f"place {rank}", words[rank])
        try:
            for rank in self._others:
                self._await_answer(rank, words[rank])
            address = open_door() if _need_address(places[0]) else ""
            job = json.dumps({"nonce": places[0].nonce, "meeting_address": address})
            self._store.set("job", job)
            # As the others read it.
            read = _store.get(self._store, "job", self._left())
            if read != job.encode():
                _store.fields("job", read, _JOB)  # raises what is wrong with it
                raise _store.wrong("job", f"holds {_store.shown(read)}")
        except Exception as error:
            self._store.set("job", _refusal(0, error))
            raise
        return Agreed(places[0], address, _group_store(self._store, places[0]))

    def _left(self) -> timedelta:
        return timedelta(seconds=max(self._end - time.monotonic(), 0.001))

    def _read_own(self, rank: int) -> Own:
        key = f"rank {rank}"
        word = _store.take(self._store, key)
        self._come.add(rank)
        return Own(**_store.fields(key, word, _OWN, may_refuse=True))

    def refuse(self, error: Exception) -> None:
        """Tells the others. A rank that has not come yet would delete what it was told, as if an
        earlier group had left it: it is waited for, if the store's time is not over already."""
        word = _refusal(0, error)
        is_over = isinstance(error, dist.DistError)
        self._end = time.monotonic() + (0 if is_over else self._limit.total_seconds())
        left = set(self._others)
        while left:
            gone = time.monotonic() >= self._end
            here = {rank for rank in left if rank in self._come or self._has_come(rank)}
            for rank in left if gone else here:
                _store.forget(self._store, f"rank {rank}")
                self._store.set(f"place {rank}", word)
            left = set() if gone else left - here
            if left:
                time.sleep(_POLL_S)

    def _has_come(self, rank: int) -> bool:
        return bool(self._store.check([f"rank {rank}"]))

    def _await_answer(self, rank: int, word: str) -> None:
        key = f"answer {rank}"
        answer = _store.take(self._store, key, self._left())
        if answer != word.encode():
            _place_in(key, answer)  # raises what the rank says, or that it is no place
            raise _store.wrong(
                f"place {rank}", f"was read by rank {rank} as {_store.shown(answer)} (key '{key}')"
            )


def _places(owns: list[Own]) -> list[Place]:
    hosts = len({own.host for own in owns})
    has = owns[0].has_shared_dir
    others = [rank for rank, own in enumerate(owns) if own.has_shared_dir != has]
    if hosts > 1 and others:
        here, there = ("set", "not set") if has else ("not set", "set")
        raise errors.RuedaError(
            f"RUEDA_SHARED_DIR is {here} on rank 0 and {there} on rank {others[0]} (key 'rank "
            f"{others[0]}' of torch's store): set it on all ranks or on none",
            errors.Status.FAILED_PRECONDITION,
        )
    jobs = {own.launched_as for own in owns}
    nonce, is_launched = secrets.token_hex(16), len(jobs) == 1 and "" not in jobs
    sizes: dict[str, int] = {}
    local_ranks = []
    for own in owns:
        local_ranks.append(sizes.get(own.host, 0))
        sizes[own.host] = sizes.get(own.host, 0) + 1
    return [
        Place(nonce, own, hosts, local_rank, sizes[own.host], is_launched)
        for own, local_rank in zip(owns, local_ranks, strict=True)
    ]


def _agree_with_root(store: Any, rank: int, size: int, own: Own, limit: timedelta) -> Agreed:
    key, answer = f"place {rank}", f"answer {rank}"
    _store.forget(store, key)
    store.set(f"rank {rank}", json.dumps(own._asdict()))
    try:
        word = _store.take(store, key)
        place = _place_in(key, word)
        _check_place(place, own, rank, size)
    except _store.Refused:  # rank 0 knows
        raise
    except dist.DistError:  # it did not come in time
        _store.forget(store, f"rank {rank}")
        raise
    except errors.RuedaError as error:
        store.set(answer, _refusal(rank, error))
        raise
    store.set(answer, word.decode())
    word = _store.get(store, "job", limit + _SECOND_WORD)
    job = _store.fields("job", word, _JOB, may_refuse=True)
    if job["nonce"] != place.nonce:
        raise _store.wrong("job", "is another group's")
    if bool(job["meeting_address"]) != _need_address(place):
        raise _store.wrong("job", "has an address where none is needed, or none")
    return Agreed(place, job["meeting_address"], _group_store(store, place))


def _check_place(place: Place, own: Own, rank: int, size: int) -> None:
    if place.own != own:
        raise _store.wrong(
            f"place {rank}", f"is not what rank {rank} has told in key 'rank {rank}'"
        )
    is_inside = place.local_rank < place.local_size <= size and place.hosts <= size
    if not is_inside or (place.is_launched and not own.launched_as):
        raise _store.wrong(f"place {rank}", "tells of a place that this rank can't have")
