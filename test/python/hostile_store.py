"""A store in the place of torch's that returns, for one of its keys, something else than what was
written there: as if somebody who can reach the port had written it.

The ranks that read it, by `spawn` of meeting_test.py.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import random
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import rueda.distributed  # noqa: F401
from rueda import errors
from rueda.core import _context, _library
from rueda.distributed import _agreement, _meeting

START_S = 20


class HostileStore(dist.Store):
    """`store`, but for `key`, under any prefix: what is read there is what `alter` makes of it."""

    def __init__(self, store, key="", alter=None):
        super().__init__()
        self._inner, self.key, self.alter = store, key, alter

    def _read(self, key, value):
        return self.alter(value) if self.key and f"/{key}".endswith(f"/{self.key}") else value

    def set(self, key, value):
        self._inner.set(key, value)

    def get(self, key):
        return self._read(key, self._inner.get(key))

    def add(self, key, number):
        return self._read(key, self._inner.add(key, number))

    def check(self, keys):
        return self._inner.check(keys)

    def wait(self, keys, *timeout):
        self._inner.wait(keys, *timeout)

    def deleteKey(self, key):  # as torch calls it
        return self._inner.delete_key(key)

    def clone(self):
        return self


# ---- what is read instead ----


def _random_bytes(value, chance, others):
    return chance.randbytes(chance.choice([0, 1, 7, len(value), 1_000]))


def _huge(value, chance, others):
    return value + b" " * chance.choice([20_000, 1 << 20, 1 << 24])


def _deep(value, chance, others):
    return b"[" * 10_000 if chance.random() < 0.5 else b'{"nonce":' * 1_000


def _not_an_object(value, chance, others):
    return chance.choice([b"", b"null", b"[]", b"3", b'"go"', b"NaN", b"1e999", b"{}", b"true"])


def _knobs(path):
    return {
        "timeline": path,
        "recorder_dir": path,
        "secret_file": path,
        "shared_dir": path,
        "rank": 0,
        "bus": "tcp",
        "backend": "gloo",
        "allow_unauthenticated": "1",
        "allow_unauthenticated_data": "1",
        "\u202e": [],
    }


def _extra_entry(value, chance, others):
    knobs = _knobs(os.path.join(os.getcwd(), "written"))
    name = chance.choice(list(knobs))
    return json.dumps({**json.loads(value), name: knobs[name]}).encode()


def _twice(value, chance, others):
    name, *_ = json.loads(value)
    return value[:-1] + b', "%s": ""}' % name.encode()


def _missing_field(value, chance, others):
    whole = json.loads(value)
    del whole[chance.choice(list(whole))]
    return json.dumps(whole).encode()


def _error(value, chance, others):
    texts = ["it is all over", "", "\x1b[2J", "x" * 5_000, None, 3, {"timeline": "written"}]
    return json.dumps({"error": chance.choice(texts)}).encode()


def _wrong_type(value, chance, others):
    whole = json.loads(value)
    name = chance.choice(list(whole))
    wrong = [None, [], {}, -1, 1.5, 1 << 70, float("nan"), "x" * 900, "\0", "../../written", "é"]
    wrong += [{"timeline": "written"}, [whole[name]], not whole[name], True]
    right = type(whole[name])
    whole[name] = chance.choice([w for w in wrong if type(w) is not right or right is str])
    return json.dumps(whole).encode()


def _another_jobs(value, chance, others):
    return chance.choice(others)


def _another_jobs_field(value, chance, others):
    whole, other = json.loads(value), json.loads(chance.choice(others))
    differ = [name for name in whole if other[name] != whole[name]]
    name = chance.choice(differ)
    whole[name] = other[name]
    return json.dumps(whole).encode()


ALTERATIONS = [
    _random_bytes,
    _huge,
    _deep,
    _not_an_object,
    _extra_entry,
    _twice,
    _missing_field,
    _error,
    _wrong_type,
    _another_jobs,
    _another_jobs_field,
]


# ---- ranks ----


def _another_job(size):
    """What the ranks of another job write: as many, on two hosts. By key."""
    hosts = ["a" * 32, "b" * 32]
    owns = [_agreement.Own("d" * 32, hosts[rank % 2], "c" * 32, True) for rank in range(size)]
    places = [_agreement._place_word(place).encode() for place in _agreement._places(owns)]
    job = {"nonce": json.loads(places[0])["nonce"], "meeting_address": "127.0.0.9:9"}
    written = {"job": json.dumps(job).encode()}
    for rank in range(1, size):
        written[f"rank {rank}"] = json.dumps(owns[rank]._asdict()).encode()
        written[f"place {rank}"] = written[f"answer {rank}"] = places[rank]
    return written


def _open_sockets_and_files():
    found = []
    for path in glob.glob("/proc/self/fd/*"):
        try:
            found.append(os.readlink(path))
        except OSError:  # the listing's own
            continue
    return sorted(name for name in found if not name.startswith("pipe:"))


def alone(**variables):
    """No launcher, and a short start."""
    for name in list(os.environ):
        if name.startswith(("RUEDA_", "MASTER_")):
            del os.environ[name]
    os.environ |= {"RUEDA_START_TIMEOUT_S": str(START_S), **variables}


class Barrier:
    """In a store that rank 0 serves."""

    def __init__(self, store, rank, size):
        self._store, self._rank, self._size, self._round = store, rank, size, 0

    def wait(self):
        self._round += 1
        key = f"round {self._round}"
        if self._store.add(key, 1) == self._size:
            self._store.set(f"{key} over", "")
        self._store.wait([f"{key} over"])

    def leave(self):
        """Rank 0 does so last, and takes the store with it."""
        if self._store.add("left", 1) == self._size:
            self._store.set("all have left", "")
        if self._rank == 0:
            self._store.wait(["all have left"])


def stranger_was_first(rank, size, port, folder):
    """The keys of a real store have been written before the ranks come: nobody reads that."""
    alone()
    os.chdir(folder)
    store = dist.PrefixStore("group", dist.TCPStore("127.0.0.1", port, size, rank == 0))
    barrier = Barrier(dist.PrefixStore("barrier", store), rank, size)
    if rank == 0:
        stranger = dist.PrefixStore("group", dist.TCPStore("127.0.0.1", port, size))
        for key in ("place 1", "answer 1", "job"):
            stranger.set(key, json.dumps({"job_id": "theirs", "timeline": f"{folder}/written"}))
    barrier.wait()
    assert _meets(store, rank, size) == ""
    barrier.leave()


def _meets(store, rank, size, name="group"):
    """What it said if it does not."""
    try:
        _end(_meeting.meet(store, rank, size, name).context)
    except RuntimeError as error:
        return str(error)
    return ""


def again(rank, size, port):
    """A store is used again after groups that have failed at some ranks only, or had others."""
    alone(RUEDA_START_TIMEOUT_S="2")
    real = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    barrier = Barrier(dist.PrefixStore("barrier", real), rank, size)
    store = dist.PrefixStore("group", real)

    # Rank 0 has had a group of this name before.
    if rank == 0:
        assert _meets(dist.PrefixStore("alone", real), 0, 1) == ""
    for _ in range(2):
        assert _meets(store, rank, size) == ""

    # One rank is told something else than the others.
    hostile = HostileStore(store, "job" if rank == 1 else "", lambda _: b"go")
    told = _meets(hostile, rank, size)
    assert told and (rank != 1 or "key 'job'" in told), told
    barrier.wait()
    for _ in range(2):
        assert _meets(store, rank, size) == ""

    # One rank gives up before rank 0 comes, which then waits for it in vain.
    if rank == size - 1:
        hasty = dist.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=0.3))
        assert "place" in _meets(dist.PrefixStore("group", hasty), rank, size)
        real.set("has given up", "")
    else:
        real.wait(["has given up"])
    for _ in range(2):
        assert _meets(store, rank, size) == ""

    # Rank 0 has written places that nobody reads.
    if rank == 0:
        for other in range(1, size):
            store.set(f"place {other}", json.dumps({"error": "of yesterday"}))
            store.set(f"answer {other}", "of yesterday")
        store.set("job", "of yesterday")
    barrier.wait()
    assert _meets(store, rank, size) == ""
    barrier.leave()


def late_to_a_refusal(rank, size, port):
    """Rank 0 has read what is wrong before the last rank comes, which is told as the others are."""
    alone()
    limit = timedelta(seconds=START_S)
    real = dist.TCPStore("127.0.0.1", port, size, rank == 0, timeout=limit)
    barrier = Barrier(dist.PrefixStore("barrier", real), rank, size)
    store = HostileStore(dist.PrefixStore("group", real), "rank 1", lambda _: b"[]")
    if rank == size - 1:
        with contextlib.suppress(dist.DistError):  # as it should be: not told while it is not there
            store.wait([f"place {rank}"], timedelta(seconds=1))
    said = _meets(store, rank, size)
    assert "key 'rank 1'" in said, said
    barrier.leave()


def dies_in_the_middle(rank, size, port):
    """Rank 1 has told of itself, and never answers: the others are told which key is missing."""
    alone(RUEDA_START_TIMEOUT_S="1")
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    if rank == 1:
        own = _agreement.Own("0" * 32, "1" * 32, "", False)
        store.set("rank 1", json.dumps(own._asdict()))
    else:
        begin = time.monotonic()
        assert "key 'answer 1' of torch's store was not written" in _meets(store, rank, size)
        assert time.monotonic() - begin < START_S
    Barrier(dist.PrefixStore("barrier", store), rank, size).leave()


def init_process_group(rank, size, port, folder):
    """By torch's own call."""
    alone()
    os.chdir(folder)
    real = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    barrier = Barrier(dist.PrefixStore("barrier", real), rank, size)
    for _ in range(2):  # it can be tried again in the same store
        store = HostileStore(
            real, "job", lambda value: json.dumps({**json.loads(value), **_knobs("x")}).encode()
        )
        try:
            dist.init_process_group("rueda", store=store, rank=rank, world_size=size)
            raise AssertionError("the group has started")
        except errors.RuedaError as error:
            assert "key 'job' has an unknown field" in str(error), error
        if dist.is_initialized():
            dist.destroy_process_group()
        barrier.wait()
    for _ in range(3):  # and used again
        dist.init_process_group("rueda", store=real, rank=rank, world_size=size)
        x = torch.ones(1)
        if rank == 0:
            assert dist.recv(x) == 1 and x.item() == 5
        else:
            dist.send(x * 5, 0)
        dist.destroy_process_group()
    barrier.leave()


NUMBERS = [b"", b"-1", b"1.0", b"1e3", b"1_0", b" 1", b"+1", b"01", b"0x1", "\u0663".encode()]
NUMBERS += [b"9" * 19, b"9" * 5_000, b"\0", b"\xff", b"[]", b'{"number": 1}', b"1" * (1 << 20)]


def any_source(rank, size, port):
    """Receives from any source, and learns of messages what a stranger has written."""
    alone()
    store = HostileStore(dist.TCPStore("127.0.0.1", port, size, rank == 0))
    barrier = Barrier(dist.PrefixStore("barrier", store), rank, size)
    dist.init_process_group("rueda", store=store, rank=rank, world_size=size)
    cases = [("sent 1 0 0", lambda _, number=number: number) for number in NUMBERS]
    cases += [("news 0", lambda _: b"1 0 1" * 10_000)]
    for number, (key, alter) in enumerate(cases):
        sent = torch.tensor([float(number)])
        if rank == 1:
            dist.send(sent, 0)
            dist.barrier()
            continue
        store.key, store.alter = key, alter
        got = torch.zeros(1)
        try:
            dist.recv(got)
            raise AssertionError(f"key '{key}', case {number}: {got} was received")
        except errors.RuedaError as error:
            assert f"key '{key}'" in str(error), error
        store.key = ""
        # The message itself was never there.
        assert dist.recv(got) == 1 and got == sent
        dist.barrier()
    dist.destroy_process_group()
    barrier.leave()


def _end(context):
    _library.lib.rueda_shutdown(context)
    _context.destroy(context)


def read_altered(rank, size, port, folder, seeds, variables, hosts):
    """Meets once for each seed, in `folder`. How each ended comes into a file beside it. `hosts`:
    how many the ranks take themselves to be on."""
    alone(**variables)
    os.environ["RUEDA_HOST_ID"] = f"host {rank % hosts}"
    os.chdir(folder)
    real = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    barrier = Barrier(dist.PrefixStore("barrier", real), rank, size)
    keys = ["job", *(f"{what} {r}" for r in range(1, size) for what in ("rank", "place", "answer"))]
    other = _another_job(size)
    context, ends = None, []
    for seed in seeds:
        chance = random.Random(seed)
        key, alteration = chance.choice(keys), chance.choice(ALTERATIONS)
        # Readers of one key see one thing, whatever they did before.
        store = HostileStore(
            dist.PrefixStore(str(seed), real),
            key,
            lambda value, seed=seed, key=key, alteration=alteration: alteration(
                value, random.Random(seed), [other[key]]
            ),
        )
        barrier.wait()
        before, begin, error = _open_sockets_and_files(), time.monotonic(), ""
        try:
            context = _meeting.meet(store, rank, size, "group").context
        except errors.RuedaError as raised:
            error = str(raised)
        left = [name for name in _open_sockets_and_files() if name not in before]
        took = time.monotonic() - begin
        ends.append((seed, key, alteration.__name__, error, left, took))
        assert context is None, ends[-1]
    # The same store, honest again.
    for _ in range(3):
        _end(_meeting.meet(real, rank, size, "group").context)
    with open(f"{folder}.{rank}", "w", encoding="utf-8") as file:
        json.dump(ends, file)
    barrier.leave()
