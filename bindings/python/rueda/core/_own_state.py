"""State that one rank has alone: `Sharded` and `Own`. It is kept where it outlives that rank.

Each exchange gives the contents of all ranks a number, under which a rank keeps its own in memory
that the other ranks of its host open, and the process that has started it. Where there is no such
rank that stays, or where a whole host may be lost, a partner gets a copy. It ends where all wait
for all: once any rank has come behind that, all have kept that number, and partners have the number
before. So all can go back to what any of them may go back to: to the one before, until the next
exchange is over. What all have dropped is written over by the next.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import pickle
import socket
import sys
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from rueda import errors
from rueda.core import _collectives, _context, _objects
from rueda.core import _library as c
from rueda.core._memory import Arena, Kept, Opened
from rueda.core._operations import Handle, Operation, Output
from rueda.core._sums import sums_of

_Bytes = Any  # a one-dimensional array of uint8


class _Version(NamedTuple):
    membership: int
    rank: int  # this rank's of then; -1: it was none
    size: int
    parts: dict[int, _Bytes]  # by the rank whose they are
    sums: dict[int, int]  # by rank, checksums
    arena: Arena | None  # where this rank's own is
    on_their_way: frozenset[int]  # ranks of which partners may not have got it

    def is_intact(self, rank: int) -> bool:
        """Whether this part is as it was kept."""
        return sums_of(self.parts[rank])[0] == self.sums[rank]


class _Sending(NamedTuple):
    """What is on its way to partners."""

    number: int  # of the version
    handle: Handle[_Bytes]
    coming: list[tuple[int, int]]  # ranks whose parts this one gets, and how many bytes


class _Brings(NamedTuple):
    """What a rank tells the others before an exchange."""

    which: int  # of this rank's OwnStates
    nbytes: int | None  # None: it failed
    why: str
    is_memory: bool
    checksum: int
    offset: int  # of its part, for its neighbors
    neighbors: list[int]
    host: str
    newest: int
    kept: int
    leaving: list[int]  # the ranks that it knows to leave
    waits: bool  # for its partner


def partners(
    hosts: Sequence[str],
    redundancy: str,
    leaving: Collection[int] = (),
    neighbors: Sequence[Sequence[int]] = (),
) -> list[int | None]:
    """Of each rank the one that keeps its copy: none if a neighbor that stays has opened it, else
    another of its host; with "host" one of the next host, where there is one. None that leaves.

    Args:
        hosts: by rank, the name of its host.
        leaving: ranks.
        neighbors: by rank, those that open its memory.
    """
    ranks_of: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks_of.setdefault(host, []).append(rank)
    order = list(ranks_of)
    found: list[int | None] = []
    for rank, host in enumerate(hosts):
        own, at = ranks_of[host], ranks_of[host].index(rank)
        place = order.index(host)
        near = _staying(own[at + 1 :] + own[:at], leaving)
        far: list[int] = []
        for other in order[place + 1 :] + order[:place]:
            far = far or _staying(ranks_of[other], leaving)
        is_opened = bool(neighbors and _staying(neighbors[rank], leaving))
        if far and (redundancy == "host" or not (near or is_opened)):
            found.append(far[at % len(far)])
        else:
            found.append(near[0] if near and not is_opened else None)
    return found


def _staying(ranks: Sequence[int], leaving: Collection[int]) -> list[int]:
    return [rank for rank in ranks if rank not in leaving]


class PartMissingError(errors.LostStateError):
    """Nobody has it. Ranks that come may. On all ranks alike.

    Attributes:
        was_on_its_way: at the root, whether partners have what was kept before.
    """

    was_on_its_way = False


_made = itertools.count()


class OwnState:
    """What `Sharded` and `Own` have in common."""

    def __init__(self, redundancy: str) -> None:
        if redundancy not in ("rank", "host"):
            raise ValueError(f"redundancy is {redundancy!r}; there are 'rank' and 'host'")
        self._redundancy = redundancy
        self._which = next(_made)
        self._versions: dict[int, _Version] = {}
        self._current = 0  # the number of what the contents are, or come from
        self._kept = 0  # what restore() goes back to
        self._newest = 0
        self._kept_by_all = 0  # by each of them, as of the last exchange; or more
        self._spare: list[Arena] = []  # that no version has
        self._sending: _Sending | None = None

    # ---- of those who derive from it ----

    def _pack(self) -> _Bytes:
        """The contents, which are copied before they change."""
        raise NotImplementedError

    def _unpack(self, part: _Bytes, rank: int, size: int) -> None:
        """Lets them be what _pack has returned on that rank of so many."""
        raise NotImplementedError

    def _take(self, version: _Version | None, size: int, holders: list[int], name: str) -> None:
        """Collective: shares out anew what `size` ranks had of which `holders` have the parts; -1:
        nobody has, and it is what it was made with. `version`: what this rank has of it; None: it
        is new."""
        raise NotImplementedError

    def _shared(self, part: _Bytes) -> tuple[Arena, _Bytes]:
        """A copy, in memory that the neighbors open. That is spare until a version has it: after a
        loss none is freed before the regroup, as that waits for ranks that are stopped."""
        nbytes = part.nbytes
        fitting = [arena for arena in self._spare if nbytes <= arena.nbytes <= 2 * nbytes + 65536]
        self._spare = fitting[:1]
        try:
            arena = fitting[0] if fitting else Arena(nbytes)
        except errors.RuedaError as error:
            if error.status is not errors.Status.RESOURCE_EXHAUSTED:
                raise
            raise MemoryError(f"{nbytes} bytes: {error}") from error
        self._spare = [arena]
        copy = _array(arena.memory(), nbytes)
        copy[:] = part
        return arena, copy

    def _check_process(self) -> None:
        arenas = [version.arena for version in self._versions.values()] + self._spare
        if any(arena is not None and arena.is_of_parent for arena in arenas):
            raise errors.NotInitializedError(
                "elastic state: a forked child does not have what its parent has kept",
                errors.Status.FAILED_PRECONDITION,
            )

    # ---- for elastic.State ----

    def exchange(self, name: str, *, in_background: bool = False) -> None:
        """Collective: keeps the contents, where they outlive this rank.

        Args:
            in_background: what partners get is on its way then, until the next exchange begins.

        Raises:
            MemoryError: some rank has too little memory; what was kept before remains.
            RemoteError: another rank's contents can't be packed; that one raises why.
        """
        import numpy as np

        self._check_process()
        if _context.membership() == 0:
            return  # it comes later, and gets what there is with the first sync
        part: _Bytes = np.empty(0, np.uint8)
        arena: Arena | None = None
        failure: Exception | None = None
        try:
            self._await_partners()
            arena, part = self._shared(self._pack())
        except Exception as error:  # of the program's own objects, too
            failure = error
        brings = _objects.allgather_object(
            _Brings(
                self._which,
                None if failure else part.nbytes,
                f"{type(failure).__name__}: {failure}",
                isinstance(failure, MemoryError),
                sums_of(part)[0],
                0 if arena is None else arena.offset,
                _context.neighbor_ranks(),
                os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname(),
                self._newest,
                self._kept,
                _context.leaving_ranks(),
                not in_background,
            ),
            f"{name}.sizes",
        )
        if failure is not None and not isinstance(failure, MemoryError):
            raise failure
        for rank, each in enumerate(brings):
            if each.nbytes is None:
                text = f"elastic state {name}: rank {rank} can't keep its part: {each.why}"
                raise MemoryError(text) if each.is_memory else errors.RemoteError(text)
        leaving = {rank for each in brings for rank in each.leaving}
        partner_of = partners(
            [each.host for each in brings],
            self._redundancy,
            leaving,
            [each.neighbors for each in brings],
        )
        in_background = not any(each.waits for each in brings)
        sent = {rank for rank, partner in enumerate(partner_of) if partner is not None}
        self._newest = max(each.newest for each in brings) + 1
        rank = _context.rank()
        parts = {rank: part}
        why = ""
        try:
            for other in brings[rank].neighbors:
                nbytes = brings[other].nbytes
                assert nbytes is not None
                parts[other] = _array(Opened(other, brings[other].offset, nbytes).memory(), nbytes)
        except errors.RuedaError as error:
            if error.status is not errors.Status.RESOURCE_EXHAUSTED:
                raise
            why = f"for its neighbors' parts: {error}"
        self._versions[self._newest] = _Version(
            _context.membership(),
            rank,
            len(brings),
            parts,
            dict(enumerate(each.checksum for each in brings)),
            arena,
            frozenset(sent if in_background else ()),
        )
        self._spare.clear()
        if sent:
            # Another state's of the same name may be on its way.
            sent_as = f"{name}.parts.{brings[0].which}"
            self._send(part, partner_of, brings, sent_as, -1 if in_background else 0)
            if not in_background:
                why = why or self._why_not_arrived()
        if arena is not None:
            oldest, checksum = self._kept_by_all, brings[rank].checksum
            arena.keep(part.nbytes, name, self._newest, oldest, checksum)
        # Nobody comes behind this before all have come here.
        for other, said in enumerate(_objects.allgather_object(why, f"{name}.kept")):
            if said:
                self._why_not_arrived()
                self._drop(self._newest)
                raise MemoryError(f"elastic state {name}: rank {other}: {said}")
        self._current = self._newest
        self._kept_by_all = min(each.kept for each in brings)

    def _send(
        self,
        part: _Bytes,
        partner_of: Sequence[int | None],
        brings: Sequence[_Brings],
        name: str,
        priority: int,
    ) -> None:
        rank = _context.rank()
        sent = part if partner_of[rank] is not None else part[:0]
        splits = [sent.nbytes if r == partner_of[rank] else 0 for r in range(len(brings))]
        request = Operation(c.ALLTOALL, Output.TAKEN, name, splits=splits, priority=priority)
        coming = [(r, each.nbytes or 0) for r, each in enumerate(brings) if partner_of[r] == rank]
        self._sending = _Sending(self._newest, request.submit(sent), coming)

    def _await_partners(self) -> None:
        """Until what is on its way is there."""
        sending, self._sending = self._sending, None
        if sending is None:
            return
        try:
            received = sending.handle.wait()
        except errors.RuedaError as error:
            if error.status is not errors.Status.RESOURCE_EXHAUSTED:
                raise
            raise MemoryError(f"for copies of others' parts: {error}") from error
        begin = 0
        for rank, nbytes in sending.coming:
            self._versions[sending.number].parts[rank] = received[begin : begin + nbytes]
            begin += nbytes

    def _why_not_arrived(self) -> str:
        """For which memory there was no room; ""."""
        try:
            self._await_partners()
        except MemoryError as error:
            return str(error)
        return ""

    @property
    def is_on_its_way(self) -> bool:
        """Whether a lost host may take with it what was exchanged last, so that all go back to what
        they had before. On all ranks alike after an exchange."""
        return self._sending is not None

    def _drop(self, number: int) -> None:
        arena = self._versions.pop(number).arena
        if arena is not None:
            self._spare.append(arena)

    def keep(self) -> int:
        """The number of the contents. Those go to which no rank may go back."""
        if self._current not in self._versions:  # nobody has asked the others yet
            part, rank = self._pack().copy(), _context.rank()
            self._versions[self._current] = _Version(
                _context.membership(),
                rank,
                _context.size(),
                {rank: part},
                {rank: sums_of(part)[0]},
                None,
                frozenset(),
            )
        for number in [number for number in self._versions if number < self._kept_by_all]:
            self._drop(number)
        self._kept = self._current
        return self._kept

    def go_back(self, number: int) -> None:
        """What was kept before is what was kept last."""
        self._kept = number

    def load(self, number: int) -> None:
        """Goes back to what was kept."""
        self._check_process()
        # What has not arrived is not here.
        with contextlib.suppress(errors.RuedaError, MemoryError):
            self._await_partners()
        version = self._versions[number]
        self._unpack(version.parts[version.rank], version.rank, version.size)
        self._current = number

    def sync(self, root: int, name: str) -> None:
        """Collective: shares out what all ranks of then had when the root's contents were kept.

        Raises:
            LostStateError: of some rank of then, on all ranks.
            PartMissingError: likewise.
        """
        self._check_process()
        current = self._versions.get(self._current)
        number, then, size = _objects.broadcast_object(
            current and (self._current, current.membership, current.size), root, f"{name}.number"
        )
        membership = _context.membership_info()
        is_new = 0 < membership.survivors <= _context.rank()
        version = None if is_new else self._versions.get(number)
        offers = _tell_offers(version, f"{name}.holders")
        missing = [part for part, holder in enumerate(_holders(offers, size)) if holder < 0]
        if missing and number > 0:
            if version is None:
                version = _Version(then, -1, size, {}, {}, None, frozenset())
            self._take_of_the_gone(missing, name, number, version)
            offers = _tell_offers(version, f"{name}.kept_holders")
        rank, holders = _context.rank(), _holders(offers, size)
        while True:  # until those that are to be used are as they were kept
            mine = [part for part, holder in enumerate(holders) if holder == rank]
            damaged = _objects.allgather_object(
                [part for part in mine if version is not None and not version.is_intact(part)],
                f"{name}.damaged",
            )
            if not any(damaged):
                break
            for offer, parts in zip(offers, damaged, strict=True):
                if offer is not None:
                    offer[1].difference_update(parts)
            holders = _holders(offers, size)
        lost = [part for part, holder in enumerate(holders) if holder < 0]
        if lost and number > 0:  # else it was what it was made with
            error = (PartMissingError if missing else errors.LostStateError)(
                f"elastic state {name}: the part of former rank {', '.join(map(str, lost))} of "
                f"{size} is lost or damaged, and so is every copy: begin again from a checkpoint",
                errors.Status.DATA_LOSS,
            )
            if isinstance(error, PartMissingError) and version is not None:
                error.was_on_its_way = version.on_their_way.issuperset(lost)
            raise error
        if version is not None and version.rank >= 0 and self._current != number:
            self.load(number)
        self._take(version, size, holders, name)
        self.exchange(name)

    def _take_of_the_gone(
        self, missing: Sequence[int], name: str, number: int, version: _Version
    ) -> None:
        """Adds what ranks have kept on this host that are gone."""
        for rank in missing:
            try:
                kept = Kept(name, number, version.membership, rank)
            except KeyError:
                continue
            version.parts[rank] = _array(kept.memory(), kept.nbytes)
            version.sums[rank] = kept.checksum


# What a rank has of a version: its rank of then, whose parts it has.
_Offer = tuple[int, set[int]]


def _tell_offers(version: _Version | None, name: str) -> list[_Offer | None]:
    mine = None if version is None else (version.rank, set(version.parts))
    return _objects.allgather_object(mine, name)


def _holders(offers: Sequence[_Offer | None], size: int) -> list[int]:
    """By part, the rank that has it: whose it is, before one that has a copy; -1: none."""
    return [
        next((r for own in (True, False) for r, o in enumerate(offers) if _has(o, part, own)), -1)
        for part in range(size)
    ]


def _has(offer: _Offer | None, part: int, as_its_own: bool) -> bool:
    return offer is not None and part in offer[1] and (offer[0] == part) is as_its_own


def _array(memory: Any, nbytes: int) -> _Bytes:
    """Its first bytes."""
    import numpy as np

    return np.frombuffer(memory, np.uint8, nbytes) if nbytes > 0 else np.empty(0, np.uint8)


def _range(total: int, rank: int, size: int) -> tuple[int, int]:
    return total * rank // size, total * (rank + 1) // size


def _is_torchs(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "torch"


def _raw(array: Any) -> _Bytes:
    """Its bytes; of a tensor on a device a copy of them."""
    import numpy as np

    if _is_torchs(array):
        torch = sys.modules["torch"]
        array = array.detach().cpu().view(torch.uint8).numpy()
    return array.view(np.uint8)


class Sharded(OwnState):
    """An array that the ranks share out. Each has one part of it, which no other rank has:
    elements `begin` to `end`.

        moments = rueda.elastic.Sharded(1_000_000, np.float32)
        state = rueda.elastic.ObjectState(weights=weights, moments=moments)
        moments.local[:] = 0.9 * moments.local + gradient[moments.begin : moments.end]

    A commit copies the part into memory that the host's other ranks have open, which outlives this
    rank. When ranks were lost or have come, the array of the last commit is shared out anew:
    `local` is another array then, and `begin` and `end` have changed. If all ranks of a host were
    lost at once, the others wait for the next one there. If the host was lost, so are the parts of
    its ranks, and all ranks raise a LostStateError; with redundancy="host" that takes two hosts. A
    rank that is alone on its host sends its part to a rank of another.

    What is sent to another host is on its way when a commit returns. If the host is lost first, all
    go back to the commit before that one.

    The last commits are kept, and the next one needs room besides: three times the part's size.
    What is sent to another host is kept there for two commits.

    Args:
        total: elements of the whole.
        dtype: of NumPy or of torch, as `local` will be. Its elements are 0 at first.
        device: of a torch tensor.
        redundancy: what may be lost. "rank": ranks, but no host. "host": a host, too; the part
            then crosses the network with each commit.
    """

    def __init__(
        self, total: int, dtype: Any = "float32", *, device: Any = None, redundancy: str = "rank"
    ) -> None:
        super().__init__(redundancy)
        self.total = operator.index(total)
        if self.total < 0:
            raise ValueError(f"total is {total}; it is a number of elements")
        if not _is_torchs(dtype):
            import numpy as np

            if np.dtype(dtype).hasobject:
                raise ValueError("dtype is object; a Sharded has numbers: put objects into an Own")
        self._dtype = dtype
        self._device = device
        #: The first element of this rank's part.
        self.begin = 0
        #: The one behind its last.
        self.end = 0
        #: This rank's part: one-dimensional. It may be written to, or replaced by another of the
        #: same size and type.
        self.local: Any = None
        self._place(_context.rank(), _context.size())

    def __repr__(self) -> str:
        return f"Sharded({self.begin} to {self.end} of {self.total}, {self._dtype})"

    def _zeros(self, count: int) -> Any:
        if _is_torchs(self._dtype):
            return sys.modules["torch"].zeros(count, dtype=self._dtype, device=self._device)
        import numpy as np

        return np.zeros(count, self._dtype)

    def _place(self, rank: int, size: int) -> None:
        self.begin, self.end = _range(self.total, rank, size)
        self.local = self._zeros(self.end - self.begin)

    def _pack(self) -> _Bytes:
        import numpy as np

        fresh = self._zeros(0)
        if not isinstance(self.local, type(fresh)):
            raise ValueError(
                f"{self!r}: local has become a {type(self.local).__name__}: it is a "
                f"{type(fresh).__name__} of {self.end - self.begin} elements of {fresh.dtype}"
            )
        if self.local.dtype != fresh.dtype or tuple(self.local.shape) != (self.end - self.begin,):
            raise ValueError(
                f"{self!r}: local has become {tuple(self.local.shape)} of {self.local.dtype}: it "
                f"has {self.end - self.begin} elements of {fresh.dtype}"
            )
        contiguous = (
            self.local.contiguous() if _is_torchs(fresh) else np.ascontiguousarray(self.local)
        )
        return _raw(contiguous)

    def _unpack(self, part: _Bytes, rank: int, size: int) -> None:
        begin, end = _range(self.total, rank, size)
        if (begin, end) != (self.begin, self.end) or len(self.local) != end - begin:
            self.begin, self.end = begin, end
            self.local = self._zeros(end - begin)
        self._write(part)

    def _write(self, part: _Bytes) -> None:
        if _is_torchs(self.local):
            torch = sys.modules["torch"]
            with torch.no_grad():
                self.local.copy_(torch.from_numpy(part).view(self._dtype))
        else:
            self.local[...] = part.view(self.local.dtype)

    def _take(self, version: _Version | None, size: int, holders: list[int], name: str) -> None:
        import numpy as np

        rank, ranks = _context.rank(), _context.size()
        if size == ranks and holders == list(range(ranks)):
            return
        itemsize = _raw(self._zeros(1)).nbytes
        parts = {} if version is None else version.parts
        pieces, splits = [], []
        for to in range(ranks):
            splits.append(0)
            for part, begin, end in self._overlaps(to, ranks, size):
                if holders[part] != rank:
                    continue
                first = _range(self.total, part, size)[0]
                pieces.append(parts[part][(begin - first) * itemsize : (end - first) * itemsize])
                splits[-1] += pieces[-1].nbytes
        sent = np.concatenate(pieces) if pieces else np.empty(0, np.uint8)
        received: _Bytes = _collectives.alltoall(sent, splits, f"{name}.shares")[0]
        self._place(rank, ranks)
        whole = np.zeros((self.end - self.begin) * itemsize, np.uint8)
        at = 0
        for of in range(ranks):
            for part, begin, end in self._overlaps(rank, ranks, size):
                if holders[part] != of:
                    continue
                count = (end - begin) * itemsize
                to = (begin - self.begin) * itemsize
                whole[to : to + count] = received[at : at + count]
                at += count
        self._write(whole)

    def _overlaps(self, rank: int, ranks: int, parts: int) -> list[tuple[int, int, int]]:
        """Which parts of the old ones the new one has something of, and from where to where."""
        begin, end = _range(self.total, rank, ranks)
        found = []
        for part in range(parts):
            first, last = _range(self.total, part, parts)
            if max(begin, first) < min(end, last):
                found.append((part, max(begin, first), min(end, last)))
        return found


class Own(OwnState):
    """An object that only this rank has, such as the place of its data loader.

        place = rueda.elastic.Own({"file": 0, "line": 0})
        state = hvd.elastic.TorchState(model, optimizer, place=place)
        place.value["line"] += 1

    A commit copies it to where it outlives this rank, as of `Sharded`. After a loss it is as in
    the last commit; what a lost rank had is in `inherited` of one of the others.

    Args:
        value: it can be pickled.
        redundancy: as of `Sharded`.
    """

    def __init__(self, value: Any, *, redundancy: str = "rank") -> None:
        super().__init__(redundancy)
        #: The object. It may be changed, or replaced.
        self.value = value
        #: Those of ranks that are gone, which this rank has got. The program takes them over, and
        #: clears the list.
        self.inherited: list[Any] = []

    def __repr__(self) -> str:
        return f"Own({self.value!r}, {len(self.inherited)} inherited)"

    def _pack(self) -> _Bytes:
        import numpy as np

        data = pickle.dumps((self.value, self.inherited), pickle.HIGHEST_PROTOCOL)
        return np.frombuffer(data, np.uint8)

    def _unpack(self, part: _Bytes, rank: int, size: int) -> None:
        self.value, self.inherited = pickle.loads(part)

    def _take(self, version: _Version | None, size: int, holders: list[int], name: str) -> None:
        if version is None:
            return
        for part, holder in enumerate(holders):
            if holder == _context.rank() and part != version.rank:
                value, inherited = pickle.loads(version.parts[part])
                self.inherited += [value, *inherited]
