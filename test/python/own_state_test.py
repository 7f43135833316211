"""State that one rank has alone (rueda.elastic.Sharded, Own): shared out anew among threads, and in
real jobs whose processes die.

A membership of threads is a world of its own: what its ranks kept is given to those of the next.
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
import signal
import time

import numpy as np
import pytest
from elastic_jobs_test import HANG_S, jobs_in

import rueda
from rueda import elastic, errors
from rueda.core import _context, _own_state

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)

TOTAL = 1003


@pytest.fixture
def world():
    rueda.init()
    yield
    rueda.shutdown()


@pytest.fixture
def start(tmp_path):
    yield from jobs_in(lambda: tmp_path)


@pytest.fixture
def only_partners(monkeypatch):
    """As on a host whose ranks share no memory."""
    monkeypatch.setattr(_context, "neighbor_ranks", list)


@pytest.fixture(params=["neighbors", "partners"])
def either_way(request):
    if request.param == "partners":
        request.getfixturevalue("only_partners")


def begin(on_threads, ranks, redundancy="rank", dtype=np.float32):
    """What each of so many ranks has kept: the numbers from 1 on, and its rank as its own."""

    def body():
        shard = elastic.Sharded(TOTAL, dtype, redundancy=redundancy)
        shard.local[:] = np.arange(shard.begin + 1, shard.end + 1)
        own = elastic.Own(f"rank {rueda.rank()}", redundancy=redundancy)
        shard.exchange("shard")
        own.exchange("own")
        shard.keep()
        own.keep()
        shard.local[:] = -1  # since then
        own.value = "?"
        return shard, own

    return on_threads(ranks, body)


def go_on(on_threads, monkeypatch, kept, newcomers):
    """The next membership: of those in `kept`, in their order, and so many others."""
    survivors = len(kept)
    ranks = survivors + newcomers
    monkeypatch.setattr(
        _context, "membership_info", lambda: _context.Membership(2, 0, ranks, survivors, 0)
    )

    def body():
        if rueda.rank() < survivors:
            shard, own = kept[rueda.rank()]
            shard.load(shard._kept)
            own.load(own._kept)
        else:
            shard, own = elastic.Sharded(TOTAL, np.float32), elastic.Own("new")
            shard.keep()
        try:
            shard.sync(0, "shard")
            own.sync(0, "own")
        except errors.LostStateError as error:
            return error
        return shard, own

    return on_threads(ranks, body)


# ---- partners ----


def test_a_partner_is_another_rank_of_the_host_where_there_is_one():
    assert _own_state.partners(["a"], "rank") == [None]
    assert _own_state.partners(["a"] * 3, "rank") == [1, 2, 0]
    assert _own_state.partners(["a", "b", "a", "b"], "rank") == [2, 3, 0, 1]
    assert _own_state.partners(["a", "a", "b"], "rank") == [1, 0, 0]


def test_a_partner_is_on_another_host_if_that_is_wanted():
    assert _own_state.partners(["a", "a", "b", "b"], "host") == [2, 3, 0, 1]
    assert _own_state.partners(["a", "b", "c"], "host") == [1, 2, 0]
    assert _own_state.partners(["a", "a", "a", "b"], "host") == [3, 3, 3, 0]
    assert _own_state.partners(["a", "a"], "host") == [1, 0]


def test_no_partner_leaves():
    assert _own_state.partners(["a"] * 4, "rank", {2, 3}) == [1, 0, 0, 0]
    assert _own_state.partners(["a", "a", "b", "b"], "rank", {2, 3}) == [1, 0, 0, 1]
    assert _own_state.partners(["a", "a", "b", "b"], "rank", {0, 1, 3}) == [2, 2, None, 2]
    assert _own_state.partners(["a", "a", "b", "b"], "host", {2, 3}) == [1, 0, 0, 1]
    assert _own_state.partners(["a", "b", "c"], "host", {1}) == [2, 2, 0]
    assert _own_state.partners(["a", "a"], "rank", {0, 1}) == [None, None]
    with pytest.raises(ValueError, match="'disk'"):
        elastic.Own(1, redundancy="disk")


def test_what_a_neighbor_that_stays_has_open_needs_no_partner():
    neighbors = [[1], [0], [3], [2]]
    assert _own_state.partners(["a", "a", "b", "b"], "rank", (), neighbors) == [None] * 4
    assert _own_state.partners(["a", "a", "b", "b"], "rank", {2, 3}, neighbors) == [
        None,
        None,
        0,
        1,
    ]
    assert _own_state.partners(["a", "a", "b", "b"], "rank", {3}, neighbors) == [
        None,
        None,
        0,
        None,
    ]
    assert _own_state.partners(["a", "a", "b", "b"], "host", (), neighbors) == [2, 3, 0, 1]
    assert _own_state.partners(["a", "a"], "host", (), [[1], [0]]) == [None, None]
    assert _own_state.partners(["a", "a", "b"], "rank", (), [[1], [0], []]) == [None, None, 0]
    # Names of one machine.
    assert _own_state.partners(["a", "b"], "rank", (), [[1], [0]]) == [None, None]
    assert _own_state.partners(["a", "b"], "host", (), [[1], [0]]) == [1, 0]


# ---- one rank ----


def test_a_state_goes_back_to_what_was_committed(world):
    state = elastic.ObjectState(shard=elastic.Sharded(10, np.int64), own=elastic.Own([1]), n=0)
    state.shard.local += 1
    state.restore()  # to the values at construction
    assert state.shard.local.tolist() == [0] * 10
    state.shard.local += 2
    state.own.value.append(2)
    state.commit()
    for _ in range(2):
        state.shard.local[3] = 7
        state.own.value = None
        state.restore()
        assert state.shard.local.tolist() == [2] * 10
        assert state.own.value == [1, 2]


def test_another_local_must_be_of_the_same_size_and_type(world):
    state = elastic.ObjectState(shard=elastic.Sharded(10, np.int64))
    state.shard.local = np.ones(10, np.int64)
    state.commit()
    for wrong in (np.ones(10), np.ones(9, np.int64), np.ones([2, 5], np.int64)):
        state.shard.local = wrong
        with pytest.raises(ValueError, match="it has 10 elements of int64"):
            state.commit()
    state.restore()
    assert state.shard.local.tolist() == [1] * 10


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_tensors_of_torch_keep_their_type(world, dtype):
    import torch

    import rueda.torch as hvd

    shard = hvd.elastic.Sharded(5, getattr(torch, dtype))
    state = hvd.elastic.TorchState(torch.nn.Linear(1, 1), shard=shard)
    shard.local[2] = 1
    local = shard.local
    state.commit()
    shard.local[:] = 0
    state.restore()
    assert shard.local is local, "the same tensor, which others may have"
    assert shard.local.dtype is getattr(torch, dtype)
    assert shard.local.tolist() == [0, 0, 1, 0, 0]


# ---- shared out anew ----


@pytest.mark.parametrize(
    ("ranks", "lost", "newcomers"),
    [
        (1, [], 2),
        (2, [1], 0),
        (2, [0], 1),
        (4, [1], 0),
        (4, [0, 2], 0),
        (4, [3], 3),
        (5, [0, 3], 1),
        (6, [1, 3, 5], 0),
    ],
)
def test_it_is_shared_out_among_those_that_there_are(
    on_threads, monkeypatch, either_way, ranks, lost, newcomers
):
    kept = begin(on_threads, ranks)
    kept = [each for rank, each in enumerate(kept) if rank not in lost]
    after = go_on(on_threads, monkeypatch, kept, newcomers)
    bounds = [(shard.begin, shard.end) for shard, _ in after]
    assert bounds[0][0] == 0 and bounds[-1][1] == TOTAL
    assert all(a[1] == b[0] for a, b in zip(bounds, bounds[1:], strict=False))
    whole = np.concatenate([shard.local for shard, _ in after])
    assert whole.tolist() == list(range(1, TOTAL + 1))
    owns = [own for _, own in after]
    survivors = [f"rank {rank}" for rank in range(ranks) if rank not in lost]
    assert [own.value for own in owns] == survivors + ["new"] * newcomers
    inherited = [value for own in owns for value in own.inherited]
    assert sorted(inherited) == [f"rank {rank}" for rank in lost]


def test_of_ranks_lost_at_once_any_that_is_left_has_all(on_threads, monkeypatch):
    kept = begin(on_threads, 4)
    after = go_on(on_threads, monkeypatch, [kept[3]], 1)
    assert np.concatenate([each.local for each, _ in after]).tolist() == list(range(1, TOTAL + 1))
    assert sorted(after[0][1].inherited) == ["rank 0", "rank 1", "rank 2"]


def test_what_a_rank_has_lost_with_its_partner_is_an_error_on_all(
    on_threads, monkeypatch, only_partners
):
    kept = begin(on_threads, 4)
    results = go_on(on_threads, monkeypatch, [kept[0], kept[3]], 1)  # 2 kept the copy of 1
    for error in results:
        assert isinstance(error, errors.LostStateError)
        assert "the part of former rank 1 of 4 is lost" in str(error)


def test_a_part_that_is_damaged_comes_from_the_partner(on_threads, monkeypatch, only_partners):
    kept = begin(on_threads, 3)
    shard = kept[1][0]
    shard._versions[shard._kept].parts[1][5] ^= 1
    after = go_on(on_threads, monkeypatch, kept, 0)
    assert np.concatenate([each.local for each, _ in after]).tolist() == list(range(1, TOTAL + 1))

    kept = begin(on_threads, 3)
    for rank in (1, 2):  # the copy, too
        shard = kept[rank][0]
        shard._versions[shard._kept].parts[1][5] ^= 1
    for error in go_on(on_threads, monkeypatch, kept, 0):
        assert isinstance(error, errors.LostStateError) and "damaged" in str(error)


def test_what_was_left_damaged_is_an_error_on_all(on_threads, monkeypatch):
    kept = begin(on_threads, 3)
    shard = kept[1][0]
    shard._versions[shard._kept].parts[1][5] ^= 1
    for error in go_on(on_threads, monkeypatch, [kept[0], kept[2]], 0):
        assert isinstance(error, errors.LostStateError) and "former rank 1 of 3" in str(error)


def test_what_all_have_dropped_is_written_over(on_threads, monkeypatch):
    """Commits take no more memory than three of them, and none that others may go back to."""

    def body():
        shard = elastic.Sharded(TOTAL, np.float32)
        addresses = []
        for commit in range(20):
            shard.local[:] = commit
            shard.exchange("shard")
            shard.keep()
            addresses.append(shard._versions[shard._kept].arena.offset)
            before = shard._versions.get(shard._kept - 1)
            for version, number in ((shard._versions[shard._kept], commit), (before, commit - 1)):
                for part in version.parts.values() if version is not None and number >= 0 else ():
                    assert set(part.view(np.float32).tolist()) == {number}
        return addresses

    for addresses in on_threads(3, body):
        assert len(set(addresses)) == 3
        assert addresses[:-3] == addresses[3:]


@pytest.mark.parametrize("root", [0, 1])
def test_all_go_back_to_the_commit_that_the_source_goes_back_to(on_threads, monkeypatch, root):
    """Rank 0 has come behind the barrier of a second commit, rank 1 has not, and rank 2 is lost."""

    def body():
        shard = elastic.Sharded(TOTAL, np.float32)
        for commit in (1, 2):
            shard.local[:] = commit
            shard.exchange("shard")
            if (rueda.rank(), commit) != (1, 2):
                shard.keep()
        return shard

    kept = on_threads(3, body)[:2]
    monkeypatch.setattr(_context, "membership_info", lambda: _context.Membership(2, 0, 2, 2, root))

    def next_body():
        shard = kept[rueda.rank()]
        shard.load(shard._kept)
        shard.sync(root, "shard")
        return shard.local

    parts = on_threads(2, next_body)
    assert set(np.concatenate(parts).tolist()) == {2.0 if root == 0 else 1.0}


def test_who_has_no_memory_fails_the_commit_of_all(on_threads):
    def body():
        own = elastic.Own(1)
        own.exchange("own")
        own.keep()
        if rueda.rank() == 1:

            def pack():
                raise MemoryError("400 bytes")

            own._pack = pack
        own.value = 2
        with pytest.raises(MemoryError, match=r"own: rank 1 can't keep its part: .*400 bytes"):
            own.exchange("own")
        own.load(own._kept)
        return own.value

    assert on_threads(3, body) == [1] * 3


def test_who_cannot_open_what_others_have_fails_the_commit_of_all(on_threads, monkeypatch):
    class Refused(_own_state.Opened):
        def _get(self, context, pointer):
            if refuses and rueda.rank() == 1:
                raise errors.RuedaError("no room", errors.Status.RESOURCE_EXHAUSTED)
            return super()._get(context, pointer)

    monkeypatch.setattr(_own_state, "Opened", Refused)
    refuses = False

    def body():
        nonlocal refuses
        shard = elastic.Sharded(TOTAL, np.float32)
        shard.local[:] = 1
        shard.exchange("shard")
        shard.keep()
        refuses = True
        shard.local[:] = 2
        with pytest.raises(MemoryError, match="shard: rank 1: for its neighbors' parts: no room"):
            shard.exchange("shard")
        rueda.barrier()
        refuses = False
        shard.load(shard._kept)
        assert set(shard.local.tolist()) == {1}
        rueda.barrier()
        shard.exchange("shard")
        shard.keep()

    on_threads(3, body)


def test_who_has_no_memory_for_others_parts_fails_the_commit_of_all(on_threads, only_partners):
    def body():
        own = elastic.Own(1)
        own.exchange("own")
        own.keep()
        arrives = own._await_partners

        def await_partners():
            is_awaited = own._sending is not None
            arrives()
            if is_awaited:
                raise MemoryError("400 bytes")

        own.value = 2
        if rueda.rank() == 1:
            own._await_partners = await_partners
        with pytest.raises(MemoryError, match="own: rank 1: 400 bytes"):
            own.exchange("own")
        own._await_partners = arrives
        own.load(own._kept)
        own.exchange("own")
        return own.value

    assert on_threads(3, body) == [1] * 3


def test_a_copy_that_fails_leaves_the_commit_before(world):
    class Single:
        def __deepcopy__(self, memo):
            raise RuntimeError("there is only one")

    state = elastic.ObjectState(own=elastic.Own(1), other=1)
    state.commit()
    state.own.value, state.other = 2, Single()
    for _ in range(2):
        with pytest.raises(TypeError, match="there is only one"):
            state.commit()
    state.restore()
    assert (state.own.value, state.other) == (1, 1)


def test_what_some_rank_may_go_back_to_stays(on_threads):
    """Rank 0 has come behind the end of an exchange, and kept it; the others have not yet."""

    def body():
        own = elastic.Own(1)
        for value in (1, 2):
            own.value = value
            own.exchange("own")
            own.keep()
        own.value = 3
        own.exchange("own")
        if rueda.rank() == 0:
            own.keep()
        own.exchange("own")  # tells that the others have kept 2 alone
        if rueda.rank() == 0:
            own.keep()
        assert 2 in own._versions
        own.keep()
        own.exchange("own")
        own.keep()
        assert 2 not in own._versions

    on_threads(3, body)


def test_what_a_loss_interrupts_is_not_freed(world, monkeypatch):
    """As that waits for ranks that are stopped; it is used by the next."""
    shard = elastic.Sharded(3)

    def lost(*args):
        raise errors.AbortedError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(_own_state._objects, "allgather_object", lost)
        with pytest.raises(errors.AbortedError):
            shard.exchange("shard")
    (arena,) = shard._spare
    shard.exchange("shard")
    assert shard._versions[shard._current].arena is arena and not shard._spare


def test_what_a_sharded_is_made_of(world):
    with pytest.raises(ValueError, match="put objects into an Own"):
        elastic.Sharded(3, object)
    with pytest.raises(TypeError, match="integer"):
        elastic.Sharded(1.5)
    shard = elastic.Sharded(3)
    shard.local = [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="local has become a list: it is a ndarray of 3"):
        shard.keep()
        shard.exchange("shard")


def test_a_forked_child_does_not_have_what_its_parent_has_kept(world):
    shard = elastic.Sharded(3)
    shard.exchange("shard")
    shard.keep()
    child = os.fork()
    if child == 0:
        try:
            shard.load(shard._kept)
        except errors.NotInitializedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# ---- jobs ----

PROGRAM = f"""
import rueda

rueda.init()
TOTAL = {TOTAL}
state = rueda.elastic.ObjectState(
    step=0,
    table=rueda.elastic.Sharded(TOTAL, np.int64, redundancy=sys.argv[2]),
    own=rueda.elastic.Own(0, redundancy=sys.argv[2]),
    steps=0,  # of all ranks together
)

@rueda.elastic.run
def train(state):
    number, ranks = rueda.membership_info().number, rueda.size()
    say(f"membership {{number}}: rank {{rueda.rank()}} of {{ranks}}, pid {{os.getpid()}}, "
        f"step {{state.step}}")
    while True:
        table = state.table
        table.local += np.arange(table.begin, table.end) % 7 + 1
        state.own.value += 1
        state.steps += int(rueda.allreduce(np.ones(1), "step", op=rueda.Sum)[0])
        state.step += 1
        if state.step % 4 == 0:
            ends = int((folder / "end").exists())
            if rueda.allreduce(np.array([ends]), "ends", op=rueda.Max)[0]:
                return
            state.commit()
        time.sleep(0.002)

train(state)
whole = rueda.allgather(state.table.local, "whole")
assert whole.tolist() == ((np.arange(TOTAL) % 7 + 1) * state.step).tolist()
own = np.array([state.own.value + sum(state.own.inherited)])
assert rueda.allreduce(own, "own", op=rueda.Sum)[0] == state.steps, (own, state.steps)
say(f"done, 1 kind of weights, step {{state.step}}")
rueda.shutdown()
"""
AT_WORK = re.compile(r"^\[\d+\] membership (\d+): rank \d of (\d+), pid (\d+), step \d+$", re.M)


def wait_for_ranks(job, ranks, after):
    """Until so many are at work in a membership after that number. Its number, and their pids."""
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline and job.process.poll() is None:
        pids: dict[int, set[int]] = {}
        for number, size, pid in AT_WORK.findall(job.text()):
            if int(number) > after and int(size) == ranks:
                pids.setdefault(int(number), set()).add(int(pid))
        for number, members in pids.items():
            if len(members) == ranks:
                return number, sorted(members)
        time.sleep(0.02)
    pytest.fail(f"no membership of {ranks} after {after}:\n{job.text()}")


def test_nothing_is_lost_with_ranks_that_are_killed(start):
    """One after the other, at random moments; each time another comes in its place."""
    seed = int(time.time())
    print(f"seed {seed}")
    chance = random.Random(seed)
    program = PROGRAM.replace("sys.argv[2]", "'rank'")
    job = start(program, "-np", 3, "--min-np", 2, "--blacklist-cooldown-range", 0.05, 0.1)
    number = 0
    for _ in range(10):
        number, pids = wait_for_ranks(job, 3, number)
        time.sleep(chance.random() * 0.1)
        os.kill(chance.choice(pids), signal.SIGKILL)
    wait_for_ranks(job, 3, number)
    job.end()
    job.expect_equal_replicas(3)


def test_nothing_is_lost_with_a_host(start):
    """Both of its ranks are killed at once. Two names of this machine count as hosts."""
    job = start_two_hosts(start, "host", "-H", "localhost:2,127.0.0.1:2")
    wait_for_ranks(job, 2, 1)
    wait_for_ranks(job, 4, 2)
    job.end()
    job.expect_equal_replicas(4)


@pytest.mark.parametrize("which", ["first", "second"])
def test_after_a_commit_that_failed_on_one_rank_the_next_one_waits(
    on_threads, only_partners, which
):
    def body():
        state = elastic.ObjectState(first=elastic.Own(1), second=elastic.Own(1))
        failing = getattr(state, which)
        state.commit()
        on_its_way = [state.first.is_on_its_way, state.second.is_on_its_way]
        failing.value = (lambda: 1) if rueda.rank() == 1 else 2
        with pytest.raises((AttributeError, errors.RemoteError)):
            state.commit()
        failing.value = 3
        for _ in range(2):
            state.commit()
            on_its_way += [state.first.is_on_its_way, state.second.is_on_its_way]
        return on_its_way

    assert on_threads(2, body) == [[True, True, False, False, True, True]] * 2


def test_states_with_equal_names_commit_one_behind_the_other(on_threads, only_partners):
    def body():
        large, small = (elastic.ObjectState(own=elastic.Own(b"x" * size)) for size in (2**25, 1))
        for content in (b"a", b"b"):
            for state in (large, small):
                state.own.value = content * len(state.own.value)
                state.commit()
        for state in (large, small):
            state.own.value = None
            state.restore()
        return large.own.value == b"b" * 2**25, small.own.value

    assert on_threads(2, body) == [(True, b"b")] * 2


# The ranks of the second host are killed right after a commit. None of its memory is open
# elsewhere, and what was on its way counts as not arrived, though it may have.
LOST_ON_THE_WAY = """
from rueda.core import _context, _own_state

_context.neighbor_ranks = list


def load(self, number):
    if _context.membership() == 1:
        assert self.is_on_its_way
        self._sending = None
    load_all(self, number)


load_all = _own_state.OwnState.load
_own_state.OwnState.load = load
"""


def test_all_go_back_to_the_commit_that_another_host_has(start):
    program = LOST_ON_THE_WAY + PROGRAM.replace("sys.argv[2]", "'host'").replace(
        "            state.commit()\n",
        "            state.commit()\n"
        "            if number == 1 and rueda.rank() >= 2 and state.step == 12:\n"
        "                os.kill(os.getpid(), 9)\n",
    )
    job = start(program, "--min-np", 2, *TWO_HOSTS)
    job.wait_for(r"\[\d+\] membership 2: rank \d of 2, pid \d+, step 8", 2)
    wait_for_ranks(job, 4, 2)
    job.end()
    job.expect_equal_replicas(4)


# As rank 0 is alone on its host, it sends. The other host's ranks don't: what they had is there.
ONE_SENDS = """
from rueda.core import _context, _own_state

_context.neighbor_ranks = list
_own_state.partners = lambda hosts, *others: [1, *[None] * len(hosts)][: len(hosts)]
"""


def test_nobody_goes_back_for_what_was_not_on_its_way(start):
    program = ONE_SENDS + PROGRAM.replace("sys.argv[2]", "'rank'").replace(
        "            state.commit()\n",
        "            state.commit()\n"
        "            if number == 1 and rueda.rank() >= 1 and state.step == 12:\n"
        "                os.kill(os.getpid(), 9)\n",
    )
    job = start(program, "--min-np", 1, "-H", "localhost:1,127.0.0.1:2")
    job.wait_for(r"\[0\] membership [3-9]: rank 0 of \d, pid \d+, step 12")
    wait_for_ranks(job, 3, 2)
    job.end()
    job.expect_equal_replicas(3)


def test_a_host_that_is_left_hands_over(start, tmp_path):
    """Though its two ranks are each other's partners."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:2\n127.0.0.1:2\n", encoding="utf-8")
    program = PROGRAM.replace("sys.argv[2]", "'rank'")
    job = start(program, "--host-discovery-script", f"cat {hosts}", "--min-np", 2)
    number, _ = wait_for_ranks(job, 4, 0)
    hosts.write_text("localhost:2\n", encoding="utf-8")
    number, _ = wait_for_ranks(job, 2, number)
    hosts.write_text("localhost:3\n", encoding="utf-8")
    wait_for_ranks(job, 3, number)
    job.end()
    job.expect_equal_replicas(3)


def test_who_goes_on_gets_what_all_ranks_of_a_host_had(start):
    """Of the process that has started them all. The hosts are fake: they share no memory."""
    apart = ("-x", "RUEDA_HOSTS_FAKE=2", "-x", "RUEDA_NETWORK_INTERFACE=lo")
    alone = ("--blacklist-cooldown-range", 600, 600)  # three ranks are no two hosts
    job = start_two_hosts(start, "rank", "-np", 4, *apart, *alone)
    wait_for_ranks(job, 2, 1)
    job.end()
    job.expect_equal_replicas(2)


# Two names of one machine, whose ranks nevertheless have nothing of each other.
APART = """
from rueda.core import _context, _own_state

_context.neighbor_ranks = list
_own_state.partners = lambda hosts, *others: [None] * len(hosts)
"""
TWO_HOSTS = ("-H", "localhost:2,127.0.0.1:2")


def test_a_process_that_comes_later_may_commit_before_it_is_in(start):
    program = PROGRAM.replace("sys.argv[2]", "'rank'")
    program = program.replace("@rueda.elastic.run", "state.commit()\n\n@rueda.elastic.run", 1)
    job = start_two_hosts(start, "rank", *TWO_HOSTS, before=APART, program=program)
    wait_for_ranks(job, 4, 1)
    job.end()
    job.expect_equal_replicas(4)


def test_who_goes_on_waits_for_the_next_rank_of_a_host_that_has_lost_all(start):
    cooldown = ("--blacklist-cooldown-range", 2, 2)
    job = start_two_hosts(start, "rank", *TWO_HOSTS, *cooldown, before=APART)
    wait_for_ranks(job, 4, 1)
    job.end()
    job.expect_equal_replicas(4)
    assert re.search(r"membership 2 of 2 ranks", job.text()), "they did not wait for the start"


def test_if_no_rank_comes_it_says_what_is_lost(start):
    never = ("--elastic-timeout", 5, "--blacklist-cooldown-range", 60, 60)
    job = start_two_hosts(start, "rank", *TWO_HOSTS, *never, before=APART)
    job.wait_for(
        r"\[\d+\].*LostStateError: elastic state rueda.elastic.table: the part of former "
        r"rank 2, 3 of 4 is lost or damaged.*",
        2,
    )
    job.expect_status(1)


def test_a_rank_outlives_all_others_of_its_machine(start):
    """Three of four at once: the last has what they had open."""
    job = start(PROGRAM.replace("sys.argv[2]", "'rank'"), "-np", 4, "--min-np", 1)
    number, pids = wait_for_ranks(job, 4, 0)
    for sign in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids[:3]:
            os.kill(pid, sign)
    number, _ = wait_for_ranks(job, 1, number)
    wait_for_ranks(job, 4, number)
    job.end()
    job.expect_equal_replicas(4)


def start_two_hosts(start, redundancy, *options, before="", program=PROGRAM):
    """A job of two ranks on each, of which those of the second host are killed."""
    program = before + program.replace("sys.argv[2]", repr(redundancy))
    job = start(program, "--min-np", 2, *options)
    first = job.wait_for(r"\[\d+\] membership 1: rank (\d) of 4, pid (\d+), step \d+", 4)
    victims = [int(match[2]) for match in first if int(match[1]) >= 2]
    for sign in (signal.SIGSTOP, signal.SIGKILL):  # neither regroups without the other
        for pid in victims:
            os.kill(pid, sign)
    return job
