"""rueda.elastic and its relatives without a launcher: in one process, or with ranks that are
threads. Regroups are faked."""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import rueda
from rueda import elastic, errors
from rueda.core import _context, _library
from rueda.core._own_state import PartMissingError
from rueda.core._sums import sums_of

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")


class FakeJob:
    """What an elastic job's memberships would be: one rank, and a list of those to come."""

    def __init__(self, monkeypatch, *memberships):
        self.memberships = [_context.Membership(1, 0, 1, 0, 0), *memberships]
        self.regroups = []  # what regroup was told
        self.aborts = []
        self.changes = []  # of the next checks
        monkeypatch.setattr(_context, "is_elastic", lambda: True)
        monkeypatch.setattr(_context, "membership_info", lambda: self.memberships[0])
        monkeypatch.setattr(_context, "regroup", self.regroup)
        monkeypatch.setattr(_context, "abort", self.aborts.append)
        monkeypatch.setattr(_context, "check_membership", self.check)

    def regroup(self, commits):
        self.regroups.append(commits)
        if len(self.memberships) == 1:
            raise errors.DismissedError("the job is over", errors.Status.CANCELLED)
        self.memberships.pop(0)

    def check(self):
        return self.changes.pop(0) if self.changes else 0


def survivors(number):
    """A membership with no newcomers."""
    return _context.Membership(number, 0, 1, 1, 0)


def newcomers(number):
    """One with some. The only rank of this process stands for a survivor, the lowest."""
    return _context.Membership(number, 0, 1, 0, 0)


@pytest.fixture
def world():
    rueda.init()
    yield
    rueda.shutdown()


class Recorded(elastic.ObjectState):
    """Tells what was done with it."""

    def __init__(self, **kwargs):
        self.log = []
        super().__init__(**kwargs)
        self.register_reset_callbacks([lambda: self.log.append("callback")])

    def restore(self):
        self.log.append("restore")
        super().restore()

    def sync(self):
        self.log.append("sync")
        super().sync()


class GoingBack(elastic.ObjectState):
    """A sync may find something lost that was on its way."""

    loses = False

    def sync(self):
        if self.loses:
            self.loses = False
            error = PartMissingError("lost", errors.Status.DATA_LOSS)
            error.was_on_its_way = True
            raise error
        super().sync()

    def _go_back(self):
        self._commits -= 1
        return True


def test_the_launcher_hears_of_no_fewer_commits_when_all_have_gone_back(world, monkeypatch):
    job = FakeJob(monkeypatch, survivors(2), survivors(3))
    calls = []

    @elastic.run
    def train(state):
        calls.append(state._commits)
        if len(calls) == 1:
            state.commit()
            state.commit()
            state.loses = True
        if len(calls) < 3:
            raise errors.AbortedError("lost")

    train(GoingBack(step=0))
    assert calls == [0, 2, 2] and job.regroups == [2, 2]


# ---- ObjectState ----


def test_keywords_are_attributes_and_restore_goes_back_to_the_last_save(world):
    state = elastic.ObjectState(a=[1], b=np.zeros(2))
    state.a.append(2)
    state.b += 1
    state.restore()  # to the values at construction
    assert state.a == [1] and state.b.tolist() == [0, 0]
    state.a.append(3)
    state.commit()
    state.a.append(4)
    state.b[:] = 9
    for _ in range(2):  # what is restored is a copy, too
        state.restore()
        assert state.a == [1, 3] and state.b.tolist() == [0, 0]
        state.a.append(5)


def test_what_a_state_keeps_is_not_what_the_program_gave_it(world):
    given = {"x": [1]}
    state = elastic.ObjectState(given=given)
    given["x"].append(2)
    state.restore()
    assert state.given == {"x": [1]}


def test_a_copy_that_was_damaged_is_not_gone_back_to(world):
    weights = np.arange(9, dtype=np.float32)
    state = elastic.ObjectState(weights=weights, step=0)
    state.save()
    state.restore()
    state._kept["weights"].copy[4] += 1  # some stray write
    state.step = 7
    with pytest.raises(errors.LostStateError, match="copy of 'weights' is damaged"):
        state.restore()
    assert state.step == 7
    state.save()
    state.restore()


def test_replicas_that_differ_after_a_sync_are_an_error_on_all(on_threads):
    def body():
        odd = np.full(3, rueda.rank() == 1)
        state = elastic.ObjectState(bcast_object=lambda values: values, words="a", weights=odd)
        with pytest.raises(
            errors.MismatchError, match="'weights' of rank 1 is not as that of rank 0"
        ):
            state.sync()

    on_threads(3, body)


SUMS = [
    ({"a": [np.arange(3), (np.ones(1),)]}, [3, 0x3FF0000000000000]),
    ([np.array([1, 2, 3], np.uint8), np.zeros(0), np.array(7)], [0x030201, 0, 7]),
    (np.arange(10, dtype=np.int64)[::2], [20]),
    (np.array([-1, 1]), [0]),
    ([np.array([None]), "words", 5, None], []),
]
SELF: list[object] = [np.array([7])]
SELF.append(SELF)
SUMS.append((SELF, [7]))


@pytest.mark.parametrize(("value", "sums"), SUMS)
def test_sums_are_of_words(value, sums):
    assert sums_of(value) == sums


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_sums_of_jaxs_arrays():
    import jax

    numbers = np.arange(5, dtype=np.float32)
    assert sums_of([jax.numpy.asarray(numbers), jax.random.key(0)]) == sums_of(numbers)


@needs_torch
def test_sums_of_tensors_are_those_of_arrays():
    import torch

    for array in (np.arange(7, dtype=np.float32), np.arange(12).reshape(3, 4).T, np.array(True)):
        assert sums_of(torch.from_numpy(array)) == sums_of(array)
    numbers = torch.arange(9.0)
    assert sums_of(numbers[1:]) == sums_of(numbers[1:].clone())  # 4 bytes from a word's beginning
    for dtype in (torch.bfloat16, torch.complex64, torch.float8_e4m3fn, torch.bool):
        tensor = numbers.to(dtype)
        assert sums_of(tensor) == sums_of(tensor.view(torch.uint8).numpy())
    turned = torch.complex(numbers, numbers)
    assert sums_of(turned.conj()) == sums_of(turned.conj().resolve_conj())
    lazy = torch.nn.LazyLinear(3).weight
    assert sums_of([numbers.to_sparse(), torch.empty(3, device="meta"), lazy]) == []


def test_what_cannot_be_copied_is_named(world):
    with pytest.raises(TypeError, match=r"attribute 'lock', a lock, can't be copied.*leave it out"):
        elastic.ObjectState(lock=threading.Lock())
    with pytest.raises(ValueError, match="'commit'"):
        elastic.ObjectState(commit=1)


def test_a_save_that_fails_leaves_the_one_before(world):
    state = elastic.ObjectState(a=1, b=1)
    state.a, state.b = 2, threading.Lock()
    with pytest.raises(TypeError):
        state.save()
    state.restore()
    assert (state.a, state.b) == (1, 1)


def test_sync_gives_all_ranks_the_sources_values(on_threads, monkeypatch):
    monkeypatch.setattr(elastic, "source", lambda: 2)

    def body():
        rank = rueda.rank()
        state = elastic.ObjectState(rank=rank, list=[rank])
        state.list.append("not committed")
        state.sync()
        state.list.append("more")
        state.restore()
        return state.rank, state.list

    assert on_threads(3, body) == [(2, [2, "not committed"])] * 3


def test_a_function_of_the_programs_own_broadcasts(world):
    told = []

    def broadcast(obj):
        told.append(obj)
        return {"a": 7}

    state = elastic.ObjectState(broadcast, rueda.rank, a=1)
    state.sync()
    assert state.a == 7 and told == [{"a": 1}]


def test_the_abstract_state_is_abstract():
    state = elastic.State()
    for method in (state.save, state.restore, state.sync):
        with pytest.raises(NotImplementedError):
            method()
    state.on_hosts_updated(0.0)


# ---- run ----


def test_without_an_elastic_launcher_run_is_a_call_with_a_sync(world):
    state = Recorded(step=0)

    @elastic.run
    def train(state, more, *, key):
        state.step += 1
        state.commit()
        return state.step, more, key

    assert train.__name__ == "train"
    assert train(state, 2, key=3) == (1, 2, 3)
    assert state.log == ["sync"] and state._commits == 1


def test_run_initializes_if_nobody_has():
    try:
        assert elastic.run(lambda state: rueda.size())(elastic.ObjectState()) == 1
    finally:
        rueda.shutdown()


def test_run_wants_a_state(world):
    with pytest.raises(TypeError, match="must be a state"):
        elastic.run(lambda state: None)(3)


def test_without_an_elastic_launcher_a_lost_rank_ends_the_program(world):
    @elastic.run
    def train(state):
        raise errors.LostRankError("rank 1 was lost.", rank=1)

    state = Recorded()
    with pytest.raises(errors.LostRankError, match=r"rank 1 was lost\. .*ruedarun --min-np N"):
        train(state)
    assert state.log == ["sync"]


def test_a_loss_rolls_back_regroups_resets_and_syncs(world, monkeypatch):
    job = FakeJob(monkeypatch, survivors(2), survivors(3))
    state = Recorded(step=0)

    @elastic.run
    def train(state):
        state.log.append(f"train {state.step}")
        if len(job.regroups) == 2:
            return state.step
        state.step += 10
        if not job.regroups:
            state.commit()
            state.step += 1
            raise errors.LostRankError("rank 1 was lost", rank=1)
        raise elastic.HorovodInternalError("from the program itself")

    assert train(state) == 10
    again = ["restore", "callback", "sync", "train 10"]
    assert state.log == ["sync", "train 0", *again, *again]
    assert job.regroups == [1, 1]
    # The other ranks hear of an error that is no loss.
    assert job.aborts == ["RuedaError: from the program itself"]


@pytest.mark.parametrize(
    "change, membership, syncs",
    [
        (_library.RANKS_ADDED, newcomers(2), True),
        (_library.RANKS_REMOVED, survivors(2), False),
        (_library.RANKS_REMOVED, newcomers(2), True),
        (_library.RANKS_ADDED | _library.RANKS_REMOVED, survivors(2), True),
    ],
)
def test_a_change_of_ranks_rolls_nothing_back(world, monkeypatch, change, membership, syncs):
    job = FakeJob(monkeypatch, membership)
    state = Recorded(step=0)

    @elastic.run
    def train(state):
        if job.regroups:
            return state.step
        state.step = 1
        state.commit()
        state.step = 2
        job.changes = [change]
        state.check_host_updates()

    assert train(state) == 2
    assert state.log == ["sync", "callback", *(["sync"] if syncs else [])]


def test_a_commit_is_kept_before_it_tells_of_a_change(world, monkeypatch):
    job = FakeJob(monkeypatch)
    job.changes = [_library.RANKS_REMOVED]
    state = elastic.ObjectState(step=0)
    state.step = 1
    with pytest.raises(elastic.HostsUpdatedInterrupt) as raised:
        state.commit()
    assert raised.value.skip_sync
    state.step = 2
    state.restore()
    assert state.step == 1 and state._commits == 1


def test_one_rank_that_wants_a_sync_makes_all_do_it(on_threads, monkeypatch):
    def info():
        return _context.Membership(2, _context.rank(), 2, 2, 0)

    monkeypatch.setattr(_context, "membership_info", info)
    for wants, expected in (((0, 0), False), ((1, 0), True), ((0, 1), True), ((1, 1), True)):
        assert (
            on_threads(2, lambda wants=wants: elastic._sync_is_wanted(bool(wants[rueda.rank()])))
            == [expected] * 2
        )


def test_a_loss_while_ranks_sync_or_reset_begins_the_next_membership(world, monkeypatch):
    job = FakeJob(monkeypatch, survivors(2), survivors(3), survivors(4))
    state = Recorded(step=0)
    failures = ["sync", "callback", "sync"]

    def fail(where):
        if failures and failures[0] == where:
            failures.pop(0)
            raise errors.AbortedError("lost")

    state.register_reset_callbacks([lambda: fail("callback")])
    sync = state.sync
    monkeypatch.setattr(state, "sync", lambda: (fail("sync"), sync()))
    assert elastic.run(lambda state: "done")(state) == "done"
    assert len(job.regroups) == 3 and not failures


def test_commits_are_counted_as_the_source_has_them(on_threads, monkeypatch):
    monkeypatch.setattr(elastic, "source", lambda: 1)

    def body():
        state = elastic.ObjectState(x=0)
        for _ in range(rueda.rank() * 3):
            state.commit()
        elastic._sync(state)
        return state._commits

    assert on_threads(2, body) == [3, 3]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a program's own"),
        errors.MismatchError("shapes differ"),
        errors.UnsupportedError("no such thing"),
        errors.AbortedError("never again", recoverable=False),
        KeyboardInterrupt(),
    ],
)
def test_other_errors_end_the_rank(world, monkeypatch, error):
    job = FakeJob(monkeypatch, survivors(2))

    @elastic.run
    def train(state):
        raise error

    with pytest.raises(type(error)) as raised:
        train(elastic.ObjectState())
    assert raised.value is error and not job.regroups


def test_an_error_that_comes_again_without_a_commit_ends_the_rank(world, monkeypatch):
    job = FakeJob(monkeypatch, *(survivors(number) for number in range(2, 9)))
    state = elastic.ObjectState(step=0)
    calls = []

    @elastic.run
    def train(state):
        calls.append(state.step)
        if len(calls) < 4:  # each behind a commit
            state.step += 1
            state.commit()
        raise errors.RuedaError("no room", errors.Status.RESOURCE_EXHAUSTED)

    with pytest.raises(errors.RuedaError, match="no room"):
        train(state)
    assert calls == [0, 1, 2, 3]
    assert len(job.regroups) == 3


def test_a_lost_launcher_ends_the_rank(world, monkeypatch):
    FakeJob(monkeypatch)

    def regroup(commits):
        raise errors.from_status(errors.Status.UNAVAILABLE, "the launcher has gone")

    monkeypatch.setattr(_context, "regroup", regroup)

    @elastic.run
    def train(state):
        raise errors.AbortedError("lost")

    with pytest.raises(errors.RuedaError, match="the launcher has gone"):
        train(elastic.ObjectState())


def test_a_process_that_is_dismissed_ends_with_status_0(monkeypatch):
    rueda.init()
    FakeJob(monkeypatch)

    @elastic.run
    def train(state):
        raise elastic.HostsUpdatedInterrupt(skip_sync=True)

    with pytest.raises(SystemExit) as raised:
        train(elastic.ObjectState())
    assert raised.value.code == 0
    assert not rueda.is_initialized()


def test_a_job_without_a_launcher_cannot_regroup(world):
    with pytest.raises(errors.RuedaError, match="min-np") as raised:
        rueda.regroup()
    assert raised.value.status == errors.Status.FAILED_PRECONDITION
    assert rueda.membership_due() == 0 and rueda.check_membership() == 0
    assert rueda.leaving_ranks() == []
    assert rueda.membership_info()[1:] == (0, 1, 0, 0, 0)


# ---- names ----


class FakeLibrary:
    """The library, but that regroups succeed. The library's own end what is in flight; here the
    test waits for it."""

    def __getattr__(self, name):
        return getattr(_library.lib, name)

    def rueda_regroup(self, context, commits):
        return 0


@pytest.fixture
def regroups(monkeypatch):
    monkeypatch.setattr(_context, "lib", FakeLibrary())
    monkeypatch.setattr(_context, "is_elastic", lambda: True)


def test_after_a_regroup_numbers_go_on_where_run_was_entered(world, regroups):
    assert [_context.number("x"), _context.number("x")] == [0, 1]
    _context.remember_numbers()
    for _ in range(3):
        assert [_context.number("x"), _context.number("y")] == [2, 0]
        _context.regroup(0)
    assert _context.regroups() == 3


def test_process_sets_are_gone_after_a_regroup(regroups):
    rueda.init()
    try:
        pair = rueda.ProcessSet([0])
        pair._become(5)
        _context.regroup(0)
        with pytest.raises(errors.RuedaError, match="not known yet"):
            pair.size()
        assert rueda.global_process_set.size() == 1
    finally:
        rueda.shutdown()


# ---- torch ----


seeding = threading.Lock()  # one seed for all ranks that are threads


def model_and_optimizer(seed=0, **kwargs):
    import torch

    with seeding:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    return model, torch.optim.Adam(model.parameters(), lr=0.1, **kwargs)


def a_step(model, optimizer):
    import torch

    optimizer.zero_grad()
    model(torch.arange(12.0).reshape(4, 3)).square().sum().backward()
    optimizer.step()


def everything(model, optimizer):
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()))


def same(left, right):
    import torch

    if torch.is_tensor(left):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@needs_torch
@pytest.mark.parametrize("distributed", [False, True])
def test_torch_state_goes_back_again_and_again(world, monkeypatch, distributed):
    import torch

    import rueda.torch as hvd

    monkeypatch.setattr(_context, "is_elastic", lambda: distributed)  # one rank is shared, too
    model, optimizer = model_and_optimizer()
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        assert optimizer._reducer is not None
    monkeypatch.setattr(_context, "is_elastic", lambda: False)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, epoch=0)
    first = everything(model, optimizer)
    a_step(model, optimizer)
    scheduler.step()
    state.commit()
    second = everything(model, optimizer)
    for _ in range(2):
        a_step(model, optimizer)
        scheduler.step()
        state.epoch += 1
        assert not same(everything(model, optimizer), second)
        state.restore()
        assert same(everything(model, optimizer), second) and state.epoch == 0
        assert scheduler.last_epoch == 1
    assert not same(first, second)
    assert state.model is model and state.optimizer is optimizer


@needs_torch
def test_torch_state_goes_back_to_its_construction(world):
    import rueda.torch as hvd

    model, optimizer = model_and_optimizer()
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer)
    first = everything(model, optimizer)
    a_step(model, optimizer)
    state.restore()
    assert same(everything(model, optimizer), first)


@needs_torch
def test_torch_moments_keep_their_type(world):
    import torch

    import rueda.torch as hvd

    model, optimizer = model_and_optimizer()
    model.to(torch.bfloat16)
    for p in model.parameters():
        optimizer.state[p] = {"step": torch.tensor(1.0), "exp_avg": torch.full(p.shape, 1 / 3)}
    state = hvd.elastic.TorchState(model, optimizer)
    state.restore()
    for p in model.parameters():
        assert optimizer.state[p]["exp_avg"].dtype is torch.float32


@needs_torch
def test_torch_sync_gives_all_ranks_the_sources(on_threads, monkeypatch):
    import rueda.torch as hvd

    monkeypatch.setattr(elastic, "source", lambda: 1)

    def body():
        model, optimizer = model_and_optimizer()
        for _ in range(rueda.rank()):
            a_step(model, optimizer)
        state = hvd.elastic.TorchState(model, optimizer, rank=rueda.rank())
        state.sync()
        a_step(model, optimizer)
        state.restore()
        return everything(model, optimizer), state.rank

    results = on_threads(2, body)
    model, optimizer = model_and_optimizer()
    a_step(model, optimizer)
    assert all(same(result, (everything(model, optimizer), 1)) for result in results)


@needs_torch
def test_torch_sync_gives_all_ranks_the_sources_extra_state(on_threads):
    """Of tensors, too; what a module makes of it is not compared."""
    import torch

    import rueda.torch as hvd

    class Counts(torch.nn.Linear):
        def __init__(self):
            super().__init__(1, 1)
            self.counts = torch.full((2,), rueda.rank() + 1)

        def get_extra_state(self):
            return torch.cat([self.counts, torch.tensor([rueda.rank()])])

        def set_extra_state(self, state):
            self.counts = state[:2].clone()

    def body():
        model = Counts()
        hvd.elastic.TorchState(model).sync()
        assert model.counts.tolist() == [1, 1]

    on_threads(2, body)


@needs_torch
def test_another_value_of_an_attribute_is_kept_from_the_next_commit_on(world):
    import rueda.torch as hvd

    state = hvd.elastic.TorchState(*model_and_optimizer())
    before = state.model
    other, _ = model_and_optimizer(seed=1)
    state.model = other
    state.restore()
    assert state.model is before
    state.model = other
    state.commit()
    state.restore()
    assert state.model is other


@needs_torch
def test_an_unfinished_step_is_dropped_at_a_regroup(world, regroups, monkeypatch):
    import torch

    import rueda.torch as hvd

    model, optimizer = model_and_optimizer()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    a_step(model, optimizer)
    kept = [p.grad for p in model.parameters()]
    _context.regroup(0)  # between two steps
    assert all(p.grad is grad for p, grad in zip(model.parameters(), kept, strict=True))

    expected = copy.deepcopy(model), copy.deepcopy(optimizer._plain().state_dict())
    plain = torch.optim.Adam(expected[0].parameters())
    plain.load_state_dict(expected[1])
    x = torch.ones(4, 3)
    for loss in (lambda: model(x).sum(), lambda: model[0](x).sum()):  # also of some parameters
        optimizer.zero_grad()
        loss().backward()
        reducer = optimizer._reducer
        assert reducer.fresh
        for handle in [h for b in reducer._buckets for h in b.handles] + [reducer._noted]:
            if handle is not None:
                handle.wait()
        _context.regroup(0)
        assert not reducer.fresh
        assert all(p.grad is None for p in model.parameters())
    expected[0].load_state_dict(model.state_dict())
    for each in ((expected[0], plain), (model, optimizer)):
        a_step(*each)
    assert same(expected[0].state_dict(), model.state_dict())


@needs_torch
def test_names_are_those_that_a_newcomer_gives(regroups):
    import rueda.torch as hvd

    def prefixes():
        """Of an optimizer ahead of run, and of one in each call of its function."""
        rueda.init()
        _context._begun = 1  # as in a process of its own
        first = hvd.DistributedOptimizer(model_and_optimizer()[1])
        _context.remember_numbers()
        for calls in (1, 2, 3):
            again = hvd.DistributedOptimizer(model_and_optimizer()[1])
            yield first._prefix, again._prefix
            _context.regroup(calls)
        rueda.shutdown()

    survivor, newcomer = list(prefixes()), next(prefixes())
    rueda.shutdown()
    assert survivor == [newcomer] * 3 == [("optimizer 0: ", "optimizer 1: ")] * 3


@needs_torch
def test_synchronized_batch_norms_are_named_anew(world, regroups, monkeypatch):
    import torch

    import rueda.torch as hvd

    layers = [hvd.SyncBatchNorm(2) for _ in range(2)]
    monkeypatch.setattr(type(layers[0]._process_set), "size", lambda self: 2)
    names = []
    for order in (layers, layers[::-1]):
        for layer in order:
            layer(torch.ones(3, 2))
        names.append([layer._name for layer in order])
        _context.regroup(0)
    assert names == [["sync_batch_norm.0", "sync_batch_norm.1"]] * 2


@needs_torch
def test_what_a_scaler_has_found_is_dropped_at_a_regroup(world, regroups):
    import torch

    import rueda.torch as hvd

    model, optimizer = model_and_optimizer()
    optimizer = hvd.DistributedOptimizer(optimizer)
    scaler = torch.amp.GradScaler("cpu")

    def backward():
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(4, 3)).sum()).backward()
        scaler.unscale_(optimizer)

    backward()
    _context.regroup(0)
    backward()  # else: unscale_() has already been called
    scaler.step(optimizer)
    scaler.update()


# ---- the sampler ----


def samplers(monkeypatch, ranks, dataset, **kwargs):
    """One for each of so many ranks."""
    from rueda.torch.elastic import _sampler

    made = []
    for rank in range(ranks):
        monkeypatch.setattr(_sampler, "world", lambda rank=rank: (rank, ranks))
        made.append(_sampler.ElasticSampler(dataset, **kwargs))
    return made


def moved(monkeypatch, sampler, rank, ranks):
    """The same one, as another rank of another number."""
    from rueda.torch.elastic import _sampler

    monkeypatch.setattr(_sampler, "world", lambda: (rank, ranks))
    other = _sampler.ElasticSampler(sampler.dataset, sampler.shuffle, sampler.seed)
    other.load_state_dict(sampler.state_dict())
    return other


@needs_torch
@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("count", [0, 1, 2, 12, 13])
@pytest.mark.parametrize("shuffle", [False, True])
def test_shares_are_equal_and_cover_the_dataset(monkeypatch, ranks, count, shuffle):
    made = samplers(monkeypatch, ranks, range(count), shuffle=shuffle)
    shares = [list(each) for each in made]
    assert {len(share) for share in shares} == {-(-count // ranks)} == {len(made[0])}
    assert {i for share in shares for i in share} == set(range(count))
    assert len({i for share in shares for i in share}) == count


@needs_torch
def test_each_epoch_has_an_order_of_its_own(monkeypatch):
    (sampler,) = samplers(monkeypatch, 1, range(20), seed=3)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


@needs_torch
@pytest.mark.parametrize("seed", range(20))
def test_no_sample_comes_twice_however_the_ranks_change(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    count, seen = int(rng.integers(30, 60)), []
    made = samplers(monkeypatch, 4, range(count), seed=seed)
    padding = 0
    while len(made[0]) > 0:
        batch = int(rng.integers(1, 4))
        shares = [list(each) for each in made]
        steps = int(rng.integers(1, -(-len(shares[0]) // batch) + 1))
        if steps * batch >= len(shares[0]):
            padding = len(made) * len(shares[0]) - len(made[0].remaining_indices)
        for step in range(steps):
            for share, sampler in zip(shares, made, strict=True):
                seen += share[step * batch : (step + 1) * batch]
                sampler.record_batch(step, batch)
        assert all(each.processed_indices == set(seen) for each in made)
        ranks = int(rng.integers(1, 6))
        made = [moved(monkeypatch, made[0], rank, ranks) for rank in range(ranks)]
    assert set(seen) == set(range(count))
    assert len(seen) == count + padding


@needs_torch
def test_indices_that_ranks_record_are_merged_at_a_commit(on_threads):
    import rueda.torch as hvd

    def body():
        rank, count = rueda.rank(), 20
        sampler = hvd.elastic.ElasticSampler(range(count))
        state = hvd.elastic.TorchState(sampler=sampler)
        sampler.record_batch(0, 2)
        mine = list(sampler)[4:7]
        sampler.record_indices(mine)
        state.commit()
        sampler.record_indices([999])  # after the commit
        state.restore()
        every = [i for share in rueda.allgather_object(mine) for i in share]
        assert sampler.processed_num == 4
        assert sampler.processed_indices == {*sampler._order[:4], *every}
        assert sorted(sampler.remaining_indices) == sorted(
            set(range(count)) - sampler.processed_indices
        )
        sampler.record_batch(0, 1)
        sampler.record_indices([100 + rank])
        state.sync()
        assert {100, 101} <= sampler.processed_indices
        return len(sampler), sorted(sampler.processed_indices)

    first, second = on_threads(2, body)
    assert first == second


@needs_torch
def test_a_sampler_shares_out_anew_when_ranks_only_left(world, monkeypatch):
    from rueda.torch.elastic import ElasticSampler, TorchState, _sampler

    job = FakeJob(monkeypatch, survivors(2))
    monkeypatch.setattr(_sampler, "world", lambda: (0, 1 if job.regroups else 2))
    state = TorchState(sampler=ElasticSampler(range(10), shuffle=False))

    @elastic.run
    def train(state):
        if job.regroups:
            return list(state.sampler)
        state.sampler.record_batch(0, 2)
        job.changes = [_library.RANKS_REMOVED]
        state.check_host_updates()

    assert train(state) == [4, 5, 6, 7, 8, 9]


# ---- TensorFlow and Keras ----

WITH_TENSORFLOW = """
import copy
import numpy as np
import keras
import tensorflow as tf
import rueda
import rueda.tensorflow as hvd
import rueda.tensorflow.keras as khvd
from rueda.core import _context

hvd.init()
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2), keras.layers.Dropout(0.1)])
model.compile(khvd.DistributedOptimizer(keras.optimizers.Adam(0.1), backward_passes_per_step=2),
              "mse")

def values():
    return [np.array(v.numpy()) for v in [*model.weights, *model.optimizer.variables]]

def same(left, right):
    return len(left) == len(right) and all((a == b).all() for a, b in zip(left, right))

# Callbacks, in an order where the commit comes first.
state = khvd.elastic.KerasState(model, batch=0, epoch=0)
commits = []
commit = state.commit
state.commit = lambda: (commits.append((state.epoch, state.batch)), commit())
made = [khvd.elastic.CommitStateCallback(state, 2), khvd.elastic.UpdateBatchStateCallback(state),
        khvd.elastic.UpdateEpochStateCallback(state)]
x, y = np.ones([12, 3]), np.ones([12, 2])

@khvd.elastic.run
def train(state):
    model.fit(x, y, batch_size=3, epochs=3, initial_epoch=state.epoch, callbacks=made, verbose=0)

first = values()
train(state)
assert commits == [
    (0, 1), (0, 3), (1, 0), (1, 1), (1, 3), (2, 0), (2, 1), (2, 3), (3, 0)], commits
assert state.epoch == 3 and state.batch == 0
after = values()
assert not same(first, after)
state.epoch = 9
for v in model.weights:
    v.assign(v * 0)
state.restore()
assert same(values(), after) and state.epoch == 3

# What a sum of gradients has so far is dropped.
accumulated = model.optimizer._rueda_accumulated
accumulated._count.assign(1)
for forget in _context.after_regroup:
    forget(0)
assert int(accumulated._count.numpy()) == 0

# A loss within a graph is the library's own error.
@hvd.elastic.run
def fails(state):
    @tf.function
    def step():
        return hvd.allreduce(tf.ones(3), name="x")
    rueda.abort("on purpose")
    step()

try:
    fails(hvd.elastic.ObjectState())
except rueda.AbortedError as error:
    assert "on purpose" in str(error) and "ruedarun --min-np" in str(error)
else:
    raise AssertionError

# Variables that are given, and unbuilt models.
variables = [tf.Variable([1.0, 2.0]), tf.Variable(3)]
state = hvd.elastic.TensorFlowState(variables, epoch=0)
variables[0].assign([5.0, 5.0])
state.restore()
assert variables[0].numpy().tolist() == [1, 2] and state.variables[0] is variables[0]
for wrong in (lambda: hvd.elastic.TensorFlowKerasState(keras.Sequential([keras.layers.Dense(2)])),
              lambda: hvd.elastic.TensorFlowState(variables, session=object())):
    try:
        wrong()
    except ValueError:
        pass
    else:
        raise AssertionError
print("all is well")
"""


@pytest.mark.skipif(not HAS_TENSORFLOW, reason="tensorflow is not installed")
def test_keras_and_tensorflow():
    done = subprocess.run(
        [sys.executable, "-c", WITH_TENSORFLOW],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.endswith("all is well\n"), (done.stdout, done.stderr)
