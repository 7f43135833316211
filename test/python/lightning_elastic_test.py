"""The strategy "rueda_elastic": Lightning's real Trainer under the real ruedarun. Processes die and
come. What happened is read from what the programs print.

No test relies on a delay: a job runs until something has happened, and then to the end of an epoch.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections import Counter

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from elastic_jobs_test import COMMON, Job, beginnings, jobs_in, say_hosts  # noqa: E402

# After any number of steps of 3 or 2 ranks with batches of 6 the rest is a multiple of 6: no sample
# is ever repeated to make shares equal.
SAMPLES, BATCH, LR, GAMMA = 216, 6, 0.01, 0.9

# What each program has. A program says what is special in it.
MODEL = f"""
import warnings
warnings.filterwarnings("ignore")
import lightning
import torch
import torch.nn.functional as F
import torchmetrics
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

import rueda
import rueda.lightning
import rueda.torch as hvd
from rueda.lightning import RuedaElasticStrategy

generator = torch.Generator().manual_seed(7)
x = torch.randn({SAMPLES}, 8, generator=generator)
dataset = TensorDataset(torch.arange({SAMPLES}), x, x.sum(1, keepdim=True))
torch.manual_seed(slot)  # a sync makes them equal


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)
        )
        self.validated = torchmetrics.SumMetric()
        self.number = 0
        self.net[0].weight.register_hook(lambda gradient: self.in_backward())

    def in_backward(self):
        # The other ranks have the gradients of the last layer by now, but not of this one.
        pass

    def on_train_epoch_start(self):
        info, own = rueda.membership_info(), self.trainer
        if info.number != self.number:
            self.number = info.number
            rate = own.optimizers[0].param_groups[0]["lr"]
            say(f"membership {{info.number}}: rank {{self.global_rank}} of {{own.world_size}}, "
                f"pid {{os.getpid()}}, epoch {{self.current_epoch}}, "
                f"batch {{own.strategy._done()}}, step {{own.global_step}}, rate {{rate:.8f}}, "
                f"mode {{self.net.training}}")

    def training_step(self, batch, number):
        self.in_step(number)
        indices, data, target = batch
        loss = F.mse_loss(self.net(data), target)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        time.sleep(0.01)
        return loss

    def in_step(self, number):
        pass

    def on_train_batch_end(self, outputs, batch, number):
        epoch = self.current_epoch
        say(f"batch {{self.number}} {{epoch}} {{number + 1}}: {{batch[0].tolist()}}")

    def validation_step(self, batch, number):
        self.in_validation(number)
        indices, data, target = batch
        self.log("val_loss", F.mse_loss(self.net(data), target), sync_dist=True)
        self.validated(len(indices))
        self.log("validated", self.validated, on_epoch=True)

    def in_validation(self, number):
        pass

    def on_train_epoch_end(self):
        # Once all are there again, on all ranks alike.
        info = rueda.membership_info()
        if self.is_done(info):
            self.trainer.should_stop = True
        metrics = self.trainer.callback_metrics
        say(f"epoch {{self.current_epoch}} in membership {{info.number}}: "
            f"loss {{metrics['loss_epoch']:.6f}}, validated {{metrics['validated']:.0f}}")

    def is_done(self, info):
        return info.number >= 3

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), {LR}, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma={GAMMA})]


class Counts(Callback):
    # Its state is kept with the rest.
    batches = 0

    def on_train_batch_end(self, *_):
        self.batches += 1

    def state_dict(self):
        return {{"batches": self.batches}}

    def load_state_dict(self, state):
        self.batches = state["batches"]


def trainer(**options):
    common = dict(
        strategy=RuedaElasticStrategy(commit_every=2), accelerator="cpu", devices=1,
        max_epochs=10_000, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, default_root_dir=folder,
    )
    return lightning.Trainer(**common | options)


def finish(own, model):
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    momenta = [s["momentum_buffer"].flatten() for s in own.optimizers[0].state.values()]
    everything = torch.cat([weights, *momenta]).numpy().tobytes()
    kinds = len(set(rueda.allgather_object(everything)))
    rate = own.optimizers[0].param_groups[0]["lr"]
    counts = sum(c.batches for c in own.callbacks if isinstance(c, Counts))
    loss = own.callback_metrics["val_loss"]
    say(f"done, {{kinds}} kind of weights, epoch {{own.current_epoch}}, step {{own.global_step}}, "
        f"counts {{counts}}, rate {{rate:.8f}}, loss {{loss:.5f}}")
    rueda.shutdown()
"""


@pytest.fixture(scope="module")
def start_shared(tmp_path_factory):
    yield from jobs_in(lambda: tmp_path_factory.mktemp("job"))


@pytest.fixture
def start(tmp_path):
    yield from jobs_in(lambda: tmp_path)


MEMBERSHIP = (
    r"\[(\d+)\] membership (\d+): rank (\d) of (\d), pid (\d+), epoch (\d+), batch (\d+), "
    r"step (\d+), rate ([\d.]+), mode (\w+)"
)
DONE = (
    r"\[(\d)\] done, 1 kind of weights, epoch (\d+), step (\d+), counts (\d+), rate ([\d.]+), "
    r"loss ([\d.e-]+)"
)


def the_one(values):
    """What all ranks have said."""
    (value,) = set(values)
    return value


def expect_each_sample_once(job: Job) -> None:
    """In every epoch, of what was committed; what a loss has undone is processed again."""
    began = beginnings(job)
    processed: dict[int, Counter[int]] = {}
    for m in job.find(r"\[\d+\] batch (\d+) (\d+) (\d+): \[(.*)\]"):
        membership, epoch, batch = map(int, m.groups()[:3])
        if not (membership + 1 in began and (epoch, batch) > began[membership + 1]):
            processed.setdefault(epoch, Counter()).update(map(int, m[4].split(",")))
    assert len(processed) >= 2
    for epoch, times in processed.items():
        assert times == Counter(range(SAMPLES)), f"epoch {epoch}"


# ---- a rank is killed, and another process comes ----

KILLED = """
class Killed(Model):
    def in_backward(self):
        if slot == 1 and (self.current_epoch, self.trainer.fit_loop.batch_idx) == (1, 4):
            die_once()

    def is_done(self, info):
        return info.number >= 3 and info.ranks == 3


stops = EarlyStopping("val_loss", patience=1000)
best = ModelCheckpoint(monitor="val_loss", dirpath=folder / "best")
own = trainer(callbacks=[Counts(), stops, best], enable_checkpointing=True, gradient_clip_val=1.0)
model = Killed()
own.fit(model, DataLoader(dataset, 6, shuffle=True), DataLoader(dataset, 12))
assert pathlib.Path(best.best_model_path).exists()
say(f"callbacks: {stops.best_score:.6f} {stops.wait_count} {best.best_model_path}")
finish(own, model)
"""


@pytest.fixture(scope="module")
def killed(start_shared) -> Job:
    """One of three is killed in backward, and another comes."""
    job = start_shared(MODEL + KILLED, "-np", 3, "--min-np", 2)
    job.expect_status(0)
    return job


def test_it_goes_on_after_a_kill_and_replicas_are_equal(killed):
    dead = killed.find(r"\[1\] dies (\d+)")[0][1]
    assert killed.find(rf"ruedarun: process 1 \(rank 1, pid {dead}\) killed by signal 9.*")
    places = {(int(m[2]), int(m[3])): m[5] for m in killed.find(MEMBERSHIP)}
    assert sorted(places) == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    assert [places[2, 0], places[2, 1]] == [places[1, 0], places[1, 2]]
    assert [places[3, 0], places[3, 1]] == [places[1, 0], places[1, 2]]
    killed.expect_equal_replicas(3)
    assert float(the_one(m[6] for m in killed.find(DONE))) < 0.5  # it was 8


def test_it_goes_back_to_the_last_commit_only(killed):
    began = beginnings(killed)
    assert began[1] == (0, 0)
    assert began[2] == (1, 4), "the fifth batch was begun, but not committed"
    steps = {int(m[2]): int(m[8]) for m in killed.find(MEMBERSHIP)}
    assert steps[1] == 0 and steps[2] == SAMPLES // BATCH // 3 + 4


def test_each_sample_comes_once_in_an_epoch(killed):
    expect_each_sample_once(killed)


def test_validation_is_of_all_samples_whatever_the_ranks(killed):
    """A torchmetric adds up over the ranks."""
    epochs = killed.find(r"\[\d\] epoch (\d+) in membership (\d): loss ([\d.]+), validated (\d+)")
    assert {m[2] for m in epochs} >= {"1", "3"}
    assert {int(m[4]) for m in epochs} == {SAMPLES}


def test_what_is_logged_is_the_same_on_all_ranks(killed):
    losses: dict[str, set[str]] = {}
    for m in killed.find(r"\[\d\] epoch (\d+) in membership \d: loss ([\d.]+), .*"):
        losses.setdefault(m[1], set()).add(m[2])
    assert all(len(found) == 1 for found in losses.values()), losses


def test_newcomers_have_everything_that_a_checkpoint_has(killed):
    """The scheduler, the callbacks, and how far the loops are."""
    done = killed.find(DONE)
    assert len({m[0].split("] ")[1] for m in done}) == 1 and len(done) == 3
    epoch, step, counts, rate = (the_one(m[i] for m in done) for i in (2, 3, 4, 5))
    assert float(rate) == pytest.approx(LR * GAMMA ** int(epoch), abs=1e-8)
    assert step == counts
    assert len(killed.find(r"\[\d\] callbacks: .*")) == 3
    the_one(m[1] for m in killed.find(r"\[\d\] callbacks: (.*)"))


# ---- the first rank is killed, in a validation ----

FIRST_RANK = """
class Killed(Model):
    def in_validation(self, number):
        if slot == 0 and (self.current_epoch, number) == (1, 2):
            die_once()


saved = ModelCheckpoint(dirpath=folder / "saved", filename="{epoch}", save_top_k=-1)
own = trainer(callbacks=[Counts(), saved], enable_checkpointing=True)
model = Killed()
own.fit(model, DataLoader(dataset, 6, shuffle=True), DataLoader(dataset, 12))
finish(own, model)
"""


def test_another_rank_becomes_the_first_one_and_writes_checkpoints(start):
    job = start(MODEL + FIRST_RANK, "-np", 3, "--min-np", 2)
    job.expect_status(0)
    job.expect_equal_replicas(3)
    found = {(int(m[2]), int(m[1])): m for m in job.find(MEMBERSHIP)}
    assert found[2, 1][3] == "0"
    # The last batch of the epoch was done, and what came since the commit before it is lost.
    assert beginnings(job)[2] == (1, 10)
    assert {m[10] for m in found.values()} == {"True"}, "the model is in training mode again"
    expect_each_sample_once(job)
    epochs = int(the_one(m[2] for m in job.find(DONE)))
    files = {path.name for path in (job.folder / "saved").iterdir()}
    assert files == {f"epoch={epoch}.ckpt" for epoch in range(epochs)}


# ---- other loaders, and learning rates that follow the number of ranks ----

OTHERS = """
from torch.utils.data import SubsetRandomSampler

class Data(lightning.LightningDataModule):
    made = 0

    def train_dataloader(self):
        self.made += 1
        # Its order differs on each rank.
        sampler = SubsetRandomSampler(range(len(dataset)))
        return DataLoader(dataset, 6, sampler=sampler, num_workers=1)

    def val_dataloader(self):
        return DataLoader(dataset, 12)

    def state_dict(self):
        return {"made": self.made}

    def load_state_dict(self, state):
        self.made = state["made"]


class Killed(Model):
    def in_backward(self):
        if slot == 1 and (self.current_epoch, self.trainer.fit_loop.batch_idx) == (1, 5):
            die_once()

    def is_done(self, info):
        return info.number >= 3 and info.ranks == 3


strategy = RuedaElasticStrategy(commit_every=1, scale_lr=True)
own = trainer(
    strategy=strategy, callbacks=[Counts()], accumulate_grad_batches=2,
    reload_dataloaders_every_n_epochs=1,
)
model, data = Killed(), Data()
own.fit(model, datamodule=data)
finish(own, model)
"""


def test_other_samplers_accumulated_batches_and_scaled_learning_rates(start):
    job = start(MODEL + OTHERS, "-np", 3, "--min-np", 2)
    job.expect_status(0)
    job.expect_equal_replicas(3)
    expect_each_sample_once(job)
    assert beginnings(job)[2] == (1, 4), "a commit comes after a step of the optimizer"
    memberships = job.find(MEMBERSHIP)
    assert {m[4] for m in memberships} == {"2", "3"}
    for m in memberships:
        assert float(m[9]) == pytest.approx(int(m[4]) * LR * GAMMA ** int(m[6]), abs=1e-8)
    for m in job.find(DONE):
        assert float(m[5]) == pytest.approx(3 * LR * GAMMA ** int(m[2]), abs=1e-8)


# ---- an epoch that has no batch left ----

NO_BATCH = """
class Killed(Model):
    def in_backward(self):
        if slot == 1:
            die_once()

    def in_step(self, number):
        # The third one has come to fit() by then, and both know.
        if rueda.membership_info().number == 2:
            while rueda.membership_due() == 0:
                time.sleep(0.01)
            rueda.check_membership()  # says so with the next operation
            rueda.barrier()

    def on_train_epoch_end(self):
        number = rueda.membership_info().number
        validated = self.trainer.callback_metrics["validated"]
        say(f"epoch {self.current_epoch} ends in {number}: validated {validated:.0f}")
        self.trainer.should_stop = self.current_epoch == 1


own = trainer(strategy=RuedaElasticStrategy(commit_every=1), callbacks=[Counts()])
model = Killed()
own.fit(model, DataLoader(dataset, 50, shuffle=True, drop_last=True), DataLoader(dataset, 12))
finish(own, model)
"""


def test_an_epoch_may_have_no_batch_left_for_more_ranks(start):
    """Two ranks have two batches each. After one of them 116 samples are left: less than a batch
    for each of three. The loss was before anything was committed."""
    job = start(MODEL + NO_BATCH, "-np", 3, "--min-np", 2)
    job.expect_status(0)
    job.expect_equal_replicas(3)
    assert beginnings(job) == {1: (0, 0), 2: (0, 0), 3: (0, 1)}
    ends = [m[1] for m in job.find(r"\[\d\] (epoch .*)")]
    assert Counter(ends) == {
        f"epoch 0 ends in 3: validated {SAMPLES}": 3,
        f"epoch 1 ends in 3: validated {SAMPLES}": 3,
    }
    for m in job.find(DONE):
        assert m[3] == "2" and float(m[5]) == pytest.approx(LR * GAMMA**2)


# ---- a host is taken away ----

TAKEN_AWAY = """
class Leaves(Model):
    def in_step(self, number):
        if rueda.membership_info().number == 1 and (self.current_epoch, number) == (1, 2):
            if self.global_rank == 0:
                (folder / "hosts.new").write_text("localhost:2\\n")
                (folder / "hosts.new").rename(folder / "hosts")
            while rueda.membership_due() == 0:
                time.sleep(0.01)
            rueda.check_membership()  # says so with the next operation
            rueda.barrier()

    def is_done(self, info):
        ends = int((folder / "end").exists())
        return rueda.allreduce(ends, name="end", op=rueda.Max) > 0


strategy = RuedaElasticStrategy(commit_every=2, scale_lr=True)
own = trainer(strategy=strategy, callbacks=[Counts()])
model = Leaves()
try:
    own.fit(model, DataLoader(dataset, 6, shuffle=True), DataLoader(dataset, 12))
except SystemExit as end:
    say(f"leaves with status {end.code}")
    raise
finish(own, model)
"""


def test_a_host_is_taken_away(start, tmp_path):
    """Nothing is lost, and nothing is synced."""
    script = say_hosts(tmp_path, "localhost:2", "127.0.0.1:1")
    job = start(MODEL + TAKEN_AWAY, "--host-discovery-script", script, "--min-np", 1)
    job.wait_for(r"\[\d+\] leaves with status 0")
    job.end()
    job.expect_equal_replicas(2)
    assert not job.find(r".*Traceback.*")
    assert beginnings(job) == {1: (0, 0), 2: (1, 4)}
    expect_each_sample_once(job)
    for m in job.find(MEMBERSHIP):
        assert float(m[9]) == pytest.approx(int(m[4]) * LR * GAMMA ** int(m[6]), abs=1e-8)


# ---- a rank's own exception ----

RAISES = """
from lightning.pytorch.callbacks import OnExceptionCheckpoint

class Raises(Model):
    def in_step(self, number):
        if slot == 1 and (self.current_epoch, number) == (1, 3) and first("has raised"):
            raise ValueError("a mistake")


model = Raises()
own = trainer(callbacks=[Counts(), OnExceptionCheckpoint(folder)], enable_checkpointing=True)
own.fit(model, DataLoader(dataset, 6, shuffle=True), DataLoader(dataset, 12))
finish(own, model)
"""


def test_an_exception_ends_the_rank_that_raises_it(start):
    """In order: its callbacks don't wait for the others, who go on."""
    job = start(MODEL + RAISES, "-np", 2, "--min-np", 1)
    job.expect_status(0)
    assert job.find(r"\[1\] ValueError: a mistake")
    assert job.find(r"ruedarun: process 1 \(rank 1, pid \d+\) exited with status 1")
    assert job.find(r"\[0\] .*rank 1 aborted the job: ValueError: a mistake.*")
    assert not job.find(r"\[1\] .*AbortedError.*") and not job.find(r"\[0\] Traceback.*")
    job.expect_equal_replicas(2)
    expect_each_sample_once(job)


# ---- jobs that are not elastic ----

PLAIN = """
import json

model = Model()
own = trainer(max_epochs=2, callbacks=[Counts()], **json.loads(os.environ["OPTIONS"]))
own.fit(model, DataLoader(dataset, 6, shuffle=True), DataLoader(dataset, 12))
finish(own, model)
"""


def test_without_min_np_it_trains_with_the_ranks_that_there_are(start, monkeypatch):
    monkeypatch.setenv("OPTIONS", "{}")
    job = start(MODEL + PLAIN, "-np", 2)
    job.expect_status(0)
    job.expect_equal_replicas(2)
    expect_each_sample_once(job)
    assert {m[3] for m in job.find(DONE)} == {str(2 * SAMPLES // BATCH // 2)}


def alone(folder: pathlib.Path, options: str) -> subprocess.CompletedProcess[str]:
    """The program, started by nobody."""
    script = folder / "program.py"
    script.write_text(COMMON + MODEL + PLAIN, encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RUEDA_", "HOROVOD_"))}
    return subprocess.run(
        [sys.executable, str(script), str(folder)],
        env=environment | {"HOROVOD_RANK": "0", "OPTIONS": options, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_without_a_launcher_it_trains_with_one_rank(tmp_path):
    done = alone(tmp_path, "{}")
    assert done.returncode == 0, done.stderr
    assert f"epoch 2, step {2 * SAMPLES // BATCH}, counts {2 * SAMPLES // BATCH}" in done.stdout


def test_without_a_launcher_it_says_how_to_start_more_ranks(tmp_path):
    done = alone(tmp_path, '{"devices": 3}')
    assert done.returncode != 0
    assert "`ruedarun -np 3 --min-np 1 python ...`" in done.stderr


def test_commit_every_must_be_a_positive_number():
    from rueda.lightning import RuedaElasticStrategy

    for wrong in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="commit_every"):
            RuedaElasticStrategy(commit_every=wrong)
