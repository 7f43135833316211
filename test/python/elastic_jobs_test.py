"""Elastic jobs as users have them: Python programs under the real ruedarun, in the shape of those
in Horovod's documentation. Processes die, leave and come. What happened is read from what the
programs print.

No test relies on a delay: a job runs until a line has been printed, or until the file `end` exists.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from xml.etree import ElementTree

import pytest

from rueda import launcher

HANG_S = 120
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)
needs_keras = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in ("tensorflow", "keras")),
    reason="tensorflow or keras is not installed",
)

# What each program begins with.
COMMON = """
import os, pathlib, signal, sys, time
import numpy as np

folder, slot = pathlib.Path(sys.argv[1]), int(os.environ["HOROVOD_RANK"])

def say(*words):
    print(*words, flush=True)

def first(name):
    # True once in the job, whoever asks.
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def die_once():
    if first("has died"):
        say("dies", os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)
"""


class Job:
    """ruedarun with a program; what it prints goes to a file that is read meanwhile."""

    def __init__(self, folder: pathlib.Path, program: str, *options: object) -> None:
        self.folder = folder
        self._path = folder / "out"
        script = folder / "program.py"
        script.write_text(COMMON + program, encoding="utf-8")
        command = [launcher.program(), *map(str, options), sys.executable, str(script), str(folder)]
        with open(self._path, "wb") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "RUEDA_RECORDER_DIR": str(folder),
                    "RUEDA_STOP_FILE": str(folder / "stop"),
                    "OMP_NUM_THREADS": "1",
                    "TF_CPP_MIN_LOG_LEVEL": "3",
                    "CUDA_VISIBLE_DEVICES": "",
                },
            )

    def text(self) -> str:
        return self._path.read_text(encoding="utf-8", errors="replace")

    def find(self, pattern: str) -> list[re.Match[str]]:
        """All lines that have it from their beginning to their end."""
        return list(re.finditer(rf"^{pattern}$", self.text(), re.MULTILINE))

    def wait_for(self, pattern: str, count: int = 1) -> list[re.Match[str]]:
        """Until so many lines have it."""
        deadline = time.monotonic() + HANG_S
        while True:
            has_ended = self.process.poll() is not None
            found = self.find(pattern)
            if len(found) >= count:
                return found
            if has_ended or time.monotonic() > deadline:
                pytest.fail(f"not {count} times {pattern!r} in\n{self.text()}")
            time.sleep(0.02)

    def wait_for_membership(self, number: int, ranks: int) -> list[re.Match[str]]:
        """Until all of its ranks are in it. Their slots are 1, their ranks 2, their pids 3."""
        return self.wait_for(
            rf"\[(\d+)\] membership {number}: rank (\d+) of {ranks}, pid (\d+),.*", ranks
        )

    def touch(self, name: str) -> None:
        (self.folder / name).touch()

    def end(self) -> None:
        """Lets the program end, and waits until the job has."""
        self.touch("end")
        self.expect_status(0)

    def expect_status(self, status: int) -> None:
        try:
            self.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it hangs:\n{self.text()}")
        assert self.process.returncode == status, self.text()

    def expect_equal_replicas(self, ranks: int) -> None:
        """So many have come to the end, and each has compared all."""
        assert len(self.find(r"\[\d+\] done, 1 kind of weights.*")) == ranks, self.text()

    def kill(self) -> None:
        """Its ranks end with it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


Start = Callable[..., Job]


def jobs_in(folder: Callable[[], pathlib.Path]) -> Iterator[Start]:
    jobs: list[Job] = []

    def start(program: str, *options: object) -> Job:
        jobs.append(Job(folder(), program, *options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


@pytest.fixture
def start(tmp_path) -> Iterator[Start]:
    """Starts a job in a folder of its own, one in each test."""
    yield from jobs_in(lambda: tmp_path)


@pytest.fixture(scope="module")
def start_shared(tmp_path_factory) -> Iterator[Start]:
    """The same for jobs that several tests look at."""
    yield from jobs_in(lambda: tmp_path_factory.mktemp("job"))


# ---- PyTorch ----

# After any number of steps of 3 or 2 ranks with batches of 6 the rest is a multiple of 6: no sample
# is ever repeated to make shares equal.
SAMPLES, BATCH, LR = 216, 6, 0.01

TORCH = f"""
import torch
import torch.nn.functional as F
import rueda
import rueda.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())  # a sync makes them equal
generator = torch.Generator().manual_seed(7)
x = torch.randn({SAMPLES}, 8, generator=generator)
dataset = torch.utils.data.TensorDataset(torch.arange({SAMPLES}), x, x.sum(1, keepdim=True))
sampler = hvd.elastic.ElasticSampler(dataset)
loader = torch.utils.data.DataLoader(dataset, batch_size={BATCH}, sampler=sampler)

lr = {LR}
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def dies_in_backward(gradient):
    # The other ranks have the gradients of the second layer by now, but not of this one.
    if slot == 1 and (state.epoch, state.batch) == (1, 5):
        die_once()


model[0].weight.register_hook(dies_in_backward)


@hvd.elastic.run
def train(state):
    info = rueda.membership_info()
    rate = optimizer.param_groups[0]["lr"]
    say(f"membership {{info.number}}: rank {{hvd.rank()}} of {{hvd.size()}}, pid {{os.getpid()}}, "
        f"epoch {{state.epoch}}, batch {{state.batch}}, learning rate {{rate:.4f}}")
    # To the end of the epoch in which all three are there again.
    while True:
        for i, (indices, data, target) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.mse_loss(model(data), target)
            loss.backward()
            optimizer.step()
            state.sampler.record_batch(i, {BATCH})
            state.batch += 1
            say(f"batch {{info.number}} {{state.epoch}} {{state.batch}}: {{indices.tolist()}}")
            if state.batch % 2 == 0:
                state.commit()
            time.sleep(0.01)
        state.batch = 0
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        state.commit()
        if info.number >= 3 and info.ranks == 3:
            break


def on_state_reset():
    for group in optimizer.param_groups:
        group["lr"] = lr * hvd.size()


state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)
state.register_reset_callbacks([on_state_reset])
train(state)
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
every = hvd.allgather(weights.unsqueeze(0), name="weights")
kinds = len({{row.numpy().tobytes() for row in every}})
loss = F.mse_loss(model(x), dataset.tensors[2]).item()
say(f"done, {{kinds}} kind of weights, loss {{loss:.5f}}")
hvd.shutdown()
"""


@pytest.fixture(scope="module")
def torch_job(start_shared) -> Job:
    """One of three is killed in backward, and another comes."""
    job = start_shared(TORCH, "-np", 3, "--min-np", 2)
    job.expect_status(0)
    return job


@needs_torch
def test_torch_goes_on_after_a_kill_in_backward_and_replicas_are_equal(torch_job):
    job = torch_job
    job.expect_equal_replicas(3)
    dead = job.find(r"\[1\] dies (\d+)")[0][1]
    (killed,) = job.find(r"ruedarun: process 1 \(rank 1, pid (\d+)\) killed by signal 9.*")
    assert killed[1] == dead
    pids = {
        (int(m[1]), int(m[2])): m[3]
        for m in job.find(r"\[\d\] membership (\d+): rank (\d+) .*pid (\d+),.*")
    }
    assert sorted(pids) == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    assert [pids[2, 0], pids[2, 1]] == [pids[3, 0], pids[3, 1]] == [pids[1, 0], pids[1, 2]]
    assert pids[3, 2] not in (pids[1, 0], pids[1, 1], pids[1, 2])
    (loss,) = {m[1] for m in job.find(r"\[\d\] done, .*loss ([\d.]+)")}
    assert float(loss) < 0.5  # it was 8


@needs_torch
def test_torch_scales_the_learning_rate_in_a_reset_callback(torch_job):
    rates = torch_job.find(r"\[\d\] membership \d: rank \d of (\d), .*learning rate ([\d.]+)")
    assert len(rates) == 8
    assert all(float(m[2]) == pytest.approx(LR * int(m[1])) for m in rates)


@needs_torch
def test_torch_goes_back_to_the_last_commit_only(torch_job):
    began = beginnings(torch_job)
    assert began[1] == (0, 0)
    assert began[2] == (1, 4), "the fifth batch was done, but not committed"


def beginnings(job: Job) -> dict[int, tuple[int, int]]:
    """By membership: the epoch, and how many of its batches were done. Alike on all ranks."""
    pattern = r"\[\d\] membership (\d+): .*epoch (\d+), batch (\d+),.*"
    found = {(int(m[1]), (int(m[2]), int(m[3]))) for m in job.find(pattern)}
    assert len(found) == len(dict(found)), found
    return dict(found)


@needs_torch
def test_torch_processes_each_sample_once_in_an_epoch(torch_job):
    """Of what was committed; what a loss has undone is processed again."""
    began = beginnings(torch_job)
    processed: dict[int, Counter[int]] = {}
    undone = 0
    for m in torch_job.find(r"\[\d\] batch (\d+) (\d+) (\d+): \[(.*)\]"):
        membership, epoch, batch = map(int, m.groups()[:3])
        if membership + 1 in began and (epoch, batch) > began[membership + 1]:
            undone += 1
        else:
            processed.setdefault(epoch, Counter()).update(map(int, m[4].split(",")))
    assert undone == 3, "the fifth batch of the three ranks"
    assert len(processed) >= 3
    for epoch, times in processed.items():
        assert times == Counter(range(SAMPLES)), f"epoch {epoch}"


# ---- Keras ----

KERAS = """
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import tensorflow as tf
import rueda
import rueda.tensorflow.keras as hvd

hvd.init()
keras.utils.set_random_seed(hvd.rank())
x = np.random.default_rng(7).normal(size=[64, 8]).astype(np.float32)
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True)))
dataset = dataset.repeat().shuffle(64).batch(8)

lr = 0.002
model = keras.Sequential([keras.Input([8]), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(lr * hvd.size()))
model.compile(loss="mse", optimizer=optimizer, jit_compile=False)


def on_state_reset():
    model.optimizer.learning_rate.assign(lr * hvd.size())


state = hvd.elastic.KerasState(model, batch=0, epoch=0)
state.register_reset_callbacks([on_state_reset])


class Events(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if slot == 1 and (state.epoch, batch) == (1, 4):
            die_once()
        time.sleep(0.01)

    def on_epoch_end(self, epoch, logs=None):
        info = rueda.membership_info()
        say(f"epoch {state.epoch} is done in membership {info.number}")
        # Alike on all ranks: once both are there again.
        self.model.stop_training = info.number >= 3 and info.ranks == 2


callbacks = [
    Events(),
    hvd.elastic.UpdateBatchStateCallback(state),
    hvd.elastic.UpdateEpochStateCallback(state),
    hvd.elastic.CommitStateCallback(state, 2),
]


@hvd.elastic.run
def train(state):
    info = rueda.membership_info()
    rate = float(model.optimizer.learning_rate.numpy())
    steps = int(model.optimizer.iterations.numpy())
    say(f"membership {info.number}: rank {hvd.rank()} of {hvd.size()}, pid {os.getpid()}, "
        f"epoch {state.epoch}, batch {state.batch}, steps {steps}, "
        f"learning rate {rate:.4f}")
    epochs = 10_000 - state.epoch
    model.fit(dataset, steps_per_epoch=8, callbacks=callbacks, epochs=epochs, verbose=0)


train(state)
weights = np.concatenate([v.numpy().ravel() for v in [*model.weights, *optimizer.variables]])
every = hvd.allgather(weights[None], name="weights")
kinds = len({row.tobytes() for row in every})
say(f"done, {kinds} kind of weights, epoch {state.epoch}, batch {state.batch}")
hvd.shutdown()
"""


@needs_keras
def test_keras_goes_on_after_a_kill_and_replicas_are_equal(start):
    job = start(KERAS, "-np", 2, "--min-np", 1)
    job.expect_status(0)
    job.expect_equal_replicas(2)
    pattern = (
        r"\[\d\] membership (\d): rank (\d) of (\d), pid \d+, epoch (\d+), batch (\d+), "
        r"steps (\d+), learning rate ([\d.]+)"
    )
    began = [tuple(map(float, m.groups())) for m in job.find(pattern)]
    first, second, third = ([b for b in began if b[0] == number] for number in (1, 2, 3))
    assert sorted(first) == [(1, 0, 2, 0, 0, 0, 0.004), (1, 1, 2, 0, 0, 0, 0.004)]
    # All 8 batches of the first epoch, and 5 of the second. 4 of them, up to number 3, were
    # committed.
    assert second == [(2, 0, 1, 1, 3, 12, 0.002)]
    assert sorted(rank for _, rank, *_ in third) == [0, 1]
    assert third[0][2:] == third[1][2:] and third[0][6] == 0.004
    assert third[0][3] >= 1 and third[0][5] > 12
    epochs = [int(m[1]) for m in job.find(r"\[0\] epoch (\d+) is done .*")]
    assert epochs == list(range(epochs[-1] + 1))
    assert len({m[1] for m in job.find(r"\[\d\] done.*, (epoch \d+, batch 0)")}) == 1


# ---- NumPy ----

# A step changes the weights in the same way however many ranks there are. It also tells whether a
# rank has seen the file `end`, so that all end after the same step.
NUMPY = """
import rueda

began = time.monotonic()
rueda.init()
took = time.monotonic() - began
info = rueda.membership_info()
say(f"init: {took:.3f} s, number {info.number}, rank {rueda.rank()} of {rueda.size()}")
if info.number == 0:
    alone = rueda.allreduce(np.ones(2), op=rueda.Sum).tolist()
    say(f"alone: {alone} {rueda.broadcast_object('mine')} {rueda.allgather_object(slot)}")
    building = time.monotonic()
    time.sleep(2)
    say(f"built: {building} to {time.monotonic()}")

state = rueda.elastic.ObjectState(weights=np.zeros(5), step=0)
state.register_reset_callbacks([lambda: say(f"reset: rank {rueda.rank()} of {rueda.size()}")])


@rueda.elastic.run
def train(state):
    info = rueda.membership_info()
    say(f"membership {info.number}: rank {rueda.rank()} of {rueda.size()}, pid {os.getpid()}, "
        f"survivors {info.survivors}, source {info.source}, step {state.step}")
    ends = False
    while not ends:
        mine = np.append(np.full(5, state.step + 1.0), (folder / "end").exists())
        told = rueda.allreduce(mine, name="gradient")
        state.weights += told[:5]
        state.step += 1
        ends = told[5] > 0
        say(f"step {state.step} at {time.monotonic()}")
        after_step(state.step)
        if state.step % 5 == 0:
            try:
                state.commit()
            except rueda.elastic.HostsUpdatedInterrupt as change:
                say(f"interrupted at commit {state.step}, skip_sync {change.skip_sync}")
                raise
        time.sleep(0.005)


def after_step(step):
    if "raise" in sys.argv[2:] and slot == 1 and step == 23:
        raise ValueError("on purpose")


train(state)
kinds = len(set(rueda.allgather_object(state.weights.tobytes())))
step = state.step
assert np.allclose(state.weights, step * (step + 1) / 2, rtol=1e-12), (step, state.weights)
say(f"done, {kinds} kind of weights after step {step}")
rueda.shutdown()
"""


@pytest.fixture(scope="module")
def replaced(start_shared) -> Job:
    """One of three is killed; another comes, and takes two seconds to build what it needs."""
    job = start_shared(NUMPY, "-np", 3, "--min-np", 2)
    pids = {m[2]: int(m[3]) for m in job.wait_for_membership(1, 3)}
    job.wait_for(r"\[0\] step 22 at .*")  # not at a commit
    os.kill(pids["1"], signal.SIGKILL)
    job.wait_for_membership(3, 3)
    job.end()
    return job


def test_numpy_goes_on_after_a_kill(replaced):
    replaced.expect_equal_replicas(3)
    pattern = r"\[(\d)\] membership (\d): rank (\d) of (\d), pid \d+, survivors (\d), .*step (\d+)"
    slots = {(int(m[2]), int(m[3])): int(m[1]) for m in replaced.find(pattern)}
    assert [slots[2, 0], slots[2, 1]] == [0, 2], "survivors keep their order"
    assert [slots[3, 0], slots[3, 1], slots[3, 2]] == [0, 2, 1], "and get the lowest ranks"
    assert {(m[2], m[5]) for m in replaced.find(pattern)} == {("1", "0"), ("2", "2"), ("3", "2")}
    resets = [m[1] for m in replaced.find(r"\[\d\] reset: (.*)")]
    assert sorted(resets) == ["rank 0 of 2", "rank 0 of 3", "rank 1 of 2", "rank 1 of 3"]


def test_numpy_goes_back_to_the_last_commit(replaced):
    before = replaced.text().partition("] membership 2: ")[0]
    last = max(int(step) for step in re.findall(r"^\[[02]\] step (\d+) at", before, re.MULTILINE))
    (again,) = {int(m[1]) for m in replaced.find(r"\[\d\] membership 2: .*step (\d+)")}
    assert again % 5 == 0 and last - 5 <= again <= last


def test_a_newcomer_is_alone_at_once(replaced):
    init = r"\[1\] init: ([\d.]+) s, number (\d), rank (\d) of (\d)"
    first, newcomer = replaced.find(init)
    assert first.groups()[1:] == ("1", "1", "3")
    assert newcomer.groups()[1:] == ("0", "2", "3"), "what they will be"
    assert float(newcomer[1]) < 1
    assert len(replaced.find(r"\[1\] alone: \[1\.0, 1\.0\] mine \[1\]")) == 1


def test_survivors_go_on_while_a_newcomer_builds(replaced):
    (built,) = replaced.find(r"\[1\] built: ([\d.]+) to ([\d.]+)")
    begin, end = map(float, built.groups())
    for slot in (0, 2):
        times = [float(m[1]) for m in replaced.find(rf"\[{slot}\] step \d+ at ([\d.]+)")]
        meanwhile = [begin, *(each for each in times if begin <= each <= end), end]
        assert len(meanwhile) > 20
        assert max(b - a for a, b in zip(meanwhile, meanwhile[1:])) < 1


def test_who_comes_interrupts_all_at_the_same_commit(replaced):
    interrupts = [m.groups() for m in replaced.find(r"\[(\d)\] interrupted at (.*)")]
    assert sorted(slot for slot, _ in interrupts) == ["0", "2"]
    (at,) = {at for _, at in interrupts}
    commit = re.fullmatch(r"commit (\d+), skip_sync False", at)
    assert commit is not None, at
    began = replaced.find(rf"\[\d\] membership 3: .*, step {commit[1]}")
    assert len(began) == 3, "and nothing is rolled back"


def test_an_exception_of_one_rank_ends_that_one_only(start):
    options = ["-np", 3, "--min-np", 2, "--blacklist-cooldown-range", 60, 60]
    job = start(NUMPY.replace("sys.argv[2:]", "['raise']"), *options)
    job.wait_for_membership(2, 2)
    job.end()
    job.expect_equal_replicas(2)
    assert job.find(r"\[1\] ValueError: on purpose")
    assert job.find(r"ruedarun: process 1 \(rank 1, pid \d+\) exited with status 1.*")
    (again,) = {int(m[1]) for m in job.find(r"\[\d\] membership 2: .*step (\d+)")}
    assert again == 20


SHUTDOWN = """
import rueda

rueda.init()
state = rueda.elastic.ObjectState(step=0)

@rueda.elastic.run
def train(state):
    rueda.allreduce(np.ones(1), "step")

train(state)
if rueda.rank() == 1:
    (folder / "waits").touch()
    while not (folder / "end").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
while not (folder / "waits").exists():
    time.sleep(0.01)
(folder / "end").touch()
rueda.shutdown()
say("done")
"""


OLD_HANDLE = """
import rueda

rueda.init()
state = rueda.elastic.ObjectState(step=0)
handles = []

@rueda.elastic.run
def train(state):
    number = rueda.membership_info().number
    if number == 2 and slot == 0:
        try:
            handles.pop().wait()
        except rueda.AbortedError as error:
            say("it failed in membership", error.membership)
            raise
    while state.step < 40:
        if number == 1 and state.step == 10 and slot == 0:
            handles.append(rueda.allreduce_async(np.ones(3), name="never"))
        if number == 1 and state.step == 15 and slot == 1:
            die_once()
        rueda.allreduce(np.ones(1), name="step")
        state.step += 1
        if state.step % 5 == 0:
            state.commit()

train(state)
say("done in membership", rueda.membership_info().number)
rueda.shutdown()
"""


def test_an_operation_that_failed_in_an_earlier_membership_is_a_loss_when_it_is_waited_for(start):
    job = start(OLD_HANDLE, "-np", 3, "--min-np", 2, "--blacklist-cooldown-range", 600, 600)
    job.wait_for(r"\[\d\] done in membership 3", 2)
    job.expect_status(0)
    assert job.find(r"\[0\] it failed in membership 1")
    assert job.find(r".* rank 0 aborted the job: LostRankError: .*"), "nobody waits for rank 0"


def test_who_waits_for_such_an_operation_again_and_again_fails(start):
    program = OLD_HANDLE.replace("number == 2 and", "number >= 2 and").replace(".pop()", "[0]")
    job = start(program, "-np", 3, "--min-np", 1, "--blacklist-cooldown-range", 600, 600)
    job.expect_status(0)
    assert len(job.find(r"\[0\] it failed in membership 1")) == 11
    assert len(job.find(r"\[2\] done in membership 13")) == 1
    assert job.find(r"\[0\] .*LostRankError: rank 1 .* was lost.*")


def test_a_rank_that_is_lost_while_the_others_shut_down_is_no_error_of_theirs(start):
    job = start(SHUTDOWN, "-np", 3, "--min-np", 2)
    job.expect_status(0)
    assert len(job.find(r"\[\d\] done")) == 2


# ---- hosts that come and go ----


def say_hosts(folder: pathlib.Path, *hosts: str) -> str:
    """What the discovery script prints from now on; its command."""
    file = folder / "hosts"
    new = folder / "hosts.new"
    new.write_text("".join(f"{host}\n" for host in hosts), encoding="utf-8")
    new.replace(file)
    return f"cat {file}"


def test_a_host_comes_and_another_is_dismissed(start, tmp_path):
    script = say_hosts(tmp_path, "localhost:2")
    job = start(NUMPY, "--host-discovery-script", script, "--min-np", 1, "--verbose")
    old = {m[1] for m in job.wait_for_membership(1, 2)}
    say_hosts(tmp_path, "localhost:2", "127.0.0.1:1")
    all_three = {m[1]: m[3] for m in job.wait_for_membership(2, 3)}
    (new,) = set(all_three) - old
    say_hosts(tmp_path, "127.0.0.1:1")
    (left,) = job.wait_for_membership(3, 1)
    assert left[3] == all_three[new]
    for slot in old:  # they end while the job goes on
        job.wait_for(rf"ruedarun: process {slot} \(.*pid {all_three[slot]}\) exited with status 0")
    job.end()
    job.expect_equal_replicas(1)
    assert "killed by" not in job.text() and "was lost" not in job.text()

    pattern = r"\[(\d+)\] interrupted at commit (\d+), skip_sync (\w+)"
    interrupts = [m.groups() for m in job.find(pattern)]
    expect_one_change(job, 2, interrupts[:2], old, "False")
    expect_one_change(job, 3, interrupts[2:], set(all_three), "True")


def expect_one_change(job: Job, membership: int, interrupts: list, slots: set[str], skip_sync: str):
    """All were interrupted at the same commit, from which the next membership goes on."""
    assert sorted(slot for slot, *_ in interrupts) == sorted(slots)
    ((commit, skips),) = {(commit, skips) for _, commit, skips in interrupts}
    assert skips == skip_sync
    began = {m[1] for m in job.find(rf"\[\d+\] membership {membership}: .*, step (\d+)")}
    assert began == {commit}, "nothing is rolled back"


# ---- a job that is told to stop ----

STOPS = """
import rueda

signal.signal(signal.SIGUSR1, lambda *_: say("heard SIGUSR1"))
rueda.init()
step = 0
while True:
    rueda.allreduce(np.ones(3), name="gradient")
    step += 1
    stops = rueda.should_stop()
    say(f"step {step}, pid {os.getpid()}")
    if stops:
        break
    time.sleep(0.005)
say(f"stops after step {step}")
rueda.shutdown()
"""


@pytest.mark.parametrize("warning", ["SIGUSR1", "SIGTERM", "file"])
def test_all_ranks_stop_after_the_same_step(start, warning):
    job = start(STOPS, "-np", 3)
    (told,) = job.wait_for(r"\[1\] step 10, pid (\d+)")
    if warning == "file":
        job.touch("stop")
    else:
        os.kill(int(told[1]), getattr(signal, warning))
    job.expect_status(0)
    stops = job.find(r"\[\d\] stops after step (\d+)")
    assert len(stops) == 3 and len({m[1] for m in stops}) == 1, job.text()
    heard = [m[1] for m in job.find(r"\[(\d)\] heard SIGUSR1")]
    assert heard == (["1"] if warning == "SIGUSR1" else [])


# ---- the example ----


@needs_torch
def test_the_example_draws_what_it_does(tmp_path):
    root = pathlib.Path(__file__).parents[2]
    build = root / "build" / "release"
    if pathlib.Path(launcher.program()).resolve().parents[1] != build:
        pytest.skip(f"examples/elastic/run.sh uses {build}, which is not under test")
    done = subprocess.run(
        [root / "examples" / "elastic" / "run.sh", "--no-build", tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
        env={**os.environ, "RUEDA_VENV": sys.prefix},
    )
    assert done.returncode == 0, done.stdout
    sizes = re.findall(r"^ruedarun: membership \d+ of (\d) ranks", done.stdout, re.MULTILINE)
    assert sizes == ["2", "3", "4"], done.stdout
    assert "replicas_equal=true" in done.stdout
    plot = ElementTree.parse(tmp_path / "elastic.svg").getroot()
    loss, ranks = (
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        for line in plot.iter("{http://www.w3.org/2000/svg}polyline")
    )
    assert len(loss) > 20 and loss[-1][1] > loss[0][1], "it is learned: the loss falls"
    assert len({y for _, y in ranks}) == 3, "there were 3, 2 and 4 ranks"
