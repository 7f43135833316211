"""What lightning_test.py runs on ranks."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import os
import pathlib
import sys
import warnings

import lightning
import torch
import torch.nn.functional as F
import torchmetrics
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins import TorchCheckpointIO
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import rueda.lightning
from rueda.lightning import BaguaStrategy, RuedaEnvironment

SAMPLES, CLIP = 64, 0.05
warnings.filterwarnings("ignore")


def dataset(samples=SAMPLES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 6, generator=generator)
    return TensorDataset(torch.arange(samples), x, (x[:, :3]).argmax(1))


class Model(lightning.LightningModule):
    """Remembers which samples it has seen."""

    def __init__(self, lr=0.1, adam=False, norm=False):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        first = torch.nn.Linear(6, 32)
        middle = torch.nn.BatchNorm1d(32) if norm else torch.nn.Tanh()
        self.net = torch.nn.Sequential(first, middle, torch.nn.Linear(32, 3))
        with torch.no_grad():
            for p in self.net.parameters():
                p.copy_(0.3 * torch.randn(p.shape, generator=generator))
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)
        self.lr, self.adam = lr, adam
        self.seen, self.losses, self.tested = [], [], []

    def training_step(self, batch, _):
        numbers, x, y = batch
        self.seen.append(numbers.tolist())
        loss = F.cross_entropy(self.net(x), y)
        self.losses.append(loss.item())
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        _, x, y = batch
        scores = self.net(x)
        self.accuracy(scores, y)
        self.log("accuracy", self.accuracy, on_epoch=True)
        self.log("loss", F.cross_entropy(scores, y), sync_dist=True)
        # It gets better on rank 0 only.
        self.log("own", float(-self.current_epoch if self.global_rank == 0 else 1))

    def test_step(self, batch, _):
        numbers, x, y = batch
        self.tested += numbers.tolist()
        self.log("test_loss", F.cross_entropy(self.net(x), y), sync_dist=True)

    def predict_step(self, batch, _):
        return {"numbers": batch[0], "digits": self.net(batch[1]).argmax(1)}

    def configure_optimizers(self):
        if self.adam:
            optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        else:
            optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)]

    def weights(self):
        return torch.cat([p.detach().flatten() for p in self.parameters()])


def trainer(strategy, **options):
    quiet = dict(
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    common = dict(accelerator="cpu", devices=2, max_epochs=2, strategy=strategy)
    return lightning.Trainer(**common | quiet | options)


def loader(batch_size=8, shuffle=True, **options):
    return DataLoader(dataset(), batch_size, shuffle=shuffle, **options)


def agreed(model):
    """Whether the ranks' weights are equal, to the bit."""
    return len(set(rueda.allgather_object(model.weights().numpy().tobytes()))) == 1


def strategy_of(name):
    algorithm = name.removeprefix("bagua ")
    if algorithm == name:
        return name
    return BaguaStrategy(algorithm, **({"warmup_steps": 3} if algorithm == "qadam" else {}))


# ---- what each strategy does, in one process a rank ----


class Norms(Callback):
    """Of gradients, before and after they are clipped."""

    def __init__(self):
        self.before, self.after = [], []

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.before.append(self.norm(module))

    def on_train_batch_end(self, trainer, module, *_):
        self.after.append(self.norm(module))

    def norm(self, module):
        gradients = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
        return torch.cat(gradients).norm().item()


class Writes(TorchCheckpointIO):
    """Counts files that are written."""

    count = 0

    def save_checkpoint(self, *arguments, **options):
        self.count += 1
        super().save_checkpoint(*arguments, **options)


def logged(folder, name):
    """The last value of this name that TensorBoard has."""
    events = EventAccumulator(folder)
    events.Reload()
    return events.Scalars(name)[-1].value


def features(name, folder):
    """What Trainer.fit, validate, test, predict and a resumed fit come to."""
    facts = {}
    adam = name == "bagua qadam"
    make = lambda: Model(lr=0.01 if adam else 0.05, adam=adam)  # noqa: E731

    # An epoch more than it takes, with a logger and checkpoints.
    model, norms, writes = make(), Norms(), Writes()
    logger = TensorBoardLogger(folder, name="", version="logs")
    checkpoints = ModelCheckpoint(dirpath=f"{folder}/checkpoints", save_last=True)
    stopping = EarlyStopping("own", patience=1)
    bar = io.StringIO()
    with contextlib.redirect_stdout(bar), contextlib.redirect_stderr(bar):
        first = trainer(
            strategy_of(name),
            max_epochs=9,
            logger=logger,
            callbacks=[checkpoints, stopping, norms],
            enable_checkpointing=True,
            enable_progress_bar=True,
            gradient_clip_val=CLIP,
            plugins=[writes],
            devices=1 if name == "horovod" else 2,
            log_every_n_steps=1,
        )
        first.fit(model, loader(), loader(shuffle=False))
    facts["place"] = [first.global_rank, first.world_size, first.local_rank, first.node_rank]
    facts["rank_zero_only"] = [
        lightning.fabric.utilities.rank_zero.rank_zero_only.rank,
        lightning.pytorch.utilities.rank_zero.rank_zero_only.rank,
    ]
    facts["is_distributed"] = first._accelerator_connector.is_distributed
    facts["sampler"] = type(first.train_dataloader.sampler).__name__
    facts["epochs"] = first.current_epoch
    facts["steps"] = first.global_step
    facts["seen"] = model.seen[: len(model.seen) // first.current_epoch]
    facts["norms"], facts["clipped"] = norms.before, norms.after
    facts["writes"] = [writes.count, len(list(pathlib.Path(folder, "checkpoints").iterdir()))]
    facts["metrics"] = {k: v.item() for k, v in first.callback_metrics.items()}
    facts["bar"] = "Epoch" in bar.getvalue()
    facts["agreed"] = agreed(model)
    facts["logged"] = logged(f"{folder}/logs", "train_loss") if first.is_global_zero else None

    # The other loops.
    facts["validated"] = first.validate(model, loader(shuffle=False), verbose=False)[0]
    facts["tested"] = first.test(model, loader(shuffle=False), verbose=False)[0]
    facts["tested_samples"] = model.tested
    predicted = first.predict(model, loader(shuffle=False))
    facts["predicted"] = [n for part in predicted for n in part["numbers"].tolist()]
    alone = model.net(dataset().tensors[1]).argmax(1)
    facts["predictions_right"] = all(
        torch.equal(part["digits"], alone[part["numbers"]]) for part in predicted
    )

    # From where it was after the first epoch.
    whole, resumed = make(), make()
    saved = ModelCheckpoint(dirpath=f"{folder}/epochs", filename="{epoch}", save_top_k=-1)
    trainer(strategy_of(name), enable_checkpointing=True, callbacks=[saved]).fit(whole, loader())
    again = trainer(strategy_of(name))
    again.fit(resumed, loader(), ckpt_path=f"{folder}/epochs/epoch=0.ckpt")
    facts["learned"] = sum(whole.losses[-2:]) < sum(whole.losses[:2])
    facts["whole"], facts["resumed"] = whole.losses[len(whole.losses) // 2 :], resumed.losses
    facts["rate"] = again.optimizers[0].param_groups[0]["lr"]

    # Two batches a step, and in 16 bits.
    norms, added = Norms(), make()
    twice = trainer(
        strategy_of(name),
        max_epochs=1,
        accumulate_grad_batches=2,
        precision="bf16-mixed",
        callbacks=[norms],
    )
    before = operations()
    twice.fit(added, loader())
    facts["accumulated"] = [twice.global_step, len(norms.before), operations() - before]
    facts["finite"] = bool(torch.isfinite(added.weights()).all()) and agreed(added)
    return facts


def operations():
    """How many gradients have been combined."""
    return _combined[0]


_combined = [0]


def count_combined():
    """Counts what DistributedOptimizers submit, and DDP's buckets."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    from rueda.torch._reducer import Reducer

    submit, init = Reducer._submit, DistributedDataParallel.__init__

    def counted_submit(self, bucket):
        _combined[0] += 1
        submit(self, bucket)

    def counted_hook(group, bucket):
        _combined[0] += bucket.buffer().numel() == NUMBERS
        return default_hooks.allreduce_hook(group, bucket)

    def counted_init(self, *arguments, **options):
        init(self, *arguments, **options)
        self.register_comm_hook(self.process_group, counted_hook)

    Reducer._submit, DistributedDataParallel.__init__ = counted_submit, counted_init


NUMBERS = 6 * 32 + 32 + 32 * 3 + 3  # of the model's parameters


def all_features(names, folder):
    """Of several strategies, one after the other."""
    torch.set_num_threads(1)
    count_combined()
    facts = {}
    for name in names:
        own = pathlib.Path(folder) / name.replace(" ", "_")
        own.mkdir(exist_ok=True)
        facts[name] = features(name, str(own))
    return facts


# ---- what is equal to what ----


def plain(batch_size, rate, loss=F.cross_entropy, epochs=2):
    """Weights after a plain loop over whole batches, in the order in which Lightning shuffles for
    any number of ranks."""
    model = Model(lr=rate)
    (optimizer,), (scheduler,) = model.configure_optimizers()
    sampler = DistributedSampler(dataset(), 1, 0, seed=0)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for _, x, y in DataLoader(dataset(), batch_size, sampler=sampler):
            optimizer.zero_grad()
            loss(model.net(x), y).backward()
            optimizer.step()
        scheduler.step()
    return model.weights()


class SumModel(Model):
    def training_step(self, batch, _):
        return F.cross_entropy(self.net(batch[1]), batch[2], reduction="sum")


class Manual(Model):
    """Two backward passes a step, by hand."""

    def __init__(self):
        super().__init__(lr=0.05)
        self.automatic_optimization = False

    def training_step(self, batch, _):
        self.optimizers().zero_grad()
        for half in (slice(0, 4), slice(4, 8)):
            loss = F.cross_entropy(self.net(batch[1][half]), batch[2][half])
            self.manual_backward(loss / 2)
        self.optimizers().step()
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()


def equalities():
    """Distances from what they should be."""
    torch.set_num_threads(1)

    def fitted(strategy, model=None, batch_size=8, **options):
        model = model or Model(lr=0.05)
        trainer(strategy, **options).fit(model, loader(batch_size, shuffle=False))
        assert agreed(model)
        return model.weights()

    expected = plain(16, 0.05)  # of 8 on each rank
    parts = plain(7, 0.05)  # of 4 and 3, and at the end of 1 on one rank
    bagua = BaguaStrategy("gradient_allreduce")
    horovod = rueda.lightning.HorovodStrategy(scale_lr=False)
    sums = functools.partial(F.cross_entropy, reduction="sum")
    dp_of_sums = rueda.lightning.DataParallelStrategy(loss="sum")
    found = {
        "rueda": (fitted("rueda"), expected),
        "ddp_sharded": (fitted("ddp_sharded"), expected),
        "bagua": (fitted(bagua), expected),
        "horovod": (fitted(horovod), expected),
        "horovod, its own rate": (fitted("horovod"), plain(16, 0.1)),
        "horovod by hand": (fitted("horovod", Manual()), plain(16, 0.1)),
        "rueda by hand": (fitted("rueda", Manual()), expected),
        "dp": (fitted("dp", batch_size=7), parts),
        "dp of sums": (
            fitted(dp_of_sums, SumModel(lr=0.002), 7),
            plain(7, 0.002, sums),
        ),
        "ddp2 on one host": (fitted("ddp2", batch_size=7), parts),
    }
    return {name: (a - b).abs().max().item() for name, (a, b) in found.items()}


def batch_norm():
    """Statistics are those of all ranks, and the layers are torch's afterwards."""
    model = Model(lr=0.05, norm=True)
    trainer("rueda", sync_batchnorm=True, max_epochs=1).fit(model, loader(shuffle=False))
    layer = model.net[1]
    statistics = rueda.allgather_object(layer.running_mean.tolist())
    return statistics[0] == statistics[1], type(layer).__module__


def saved_after_fit(folder):
    """What a checkpoint has of an algorithm that was saved in the last epoch, and by hand when
    Trainer.fit and another loop have ended."""
    found = {}
    for name in ("horovod", "bagua qadam", "bagua decentralized"):
        model = Model(lr=0.01, adam="qadam" in name)
        path = pathlib.Path(folder) / f"after_{name.split()[-1]}"
        last = ModelCheckpoint(dirpath=str(path), filename="last")
        own = trainer(strategy_of(name), enable_checkpointing=True, callbacks=[last])
        own.fit(model, loader())
        own.save_checkpoint(path / "after.ckpt")
        own.validate(model, loader(), verbose=False)
        own.save_checkpoint(path / "later.ckpt")
        own.strategy.barrier()
        found[name] = [
            optimizer_state(path / f"{moment}.ckpt") for moment in ("last", "after", "later")
        ]
    return found


def optimizer_state(path):
    """As text."""
    saved = torch.load(path, weights_only=False)
    return str(saved["optimizer_states"][0].get("rueda"))


def mistakes():
    """What is refused, with what text."""
    texts = []
    for make in (
        lambda: BaguaStrategy("gossip"),
        lambda: BaguaStrategy("bytegrad", warmup_steps=3),
        lambda: rueda.lightning.DataParallelStrategy(loss="max"),
        lambda: trainer("rueda", devices=3).fit(Model(), loader()),
        lambda: trainer("rueda", num_nodes=2).fit(Model(), loader()),
    ):
        try:
            make()
        except (ValueError, TypeError) as error:
            texts.append(str(error))
    return texts


def under_one_launcher(names, folder):
    """All that needs two ranks, so that they are started once."""
    return {
        "features": all_features(names, folder),
        "equalities": equalities(),
        "batch_norm": batch_norm(),
        "mistakes": mistakes(),
        "saved": saved_after_fit(folder),
    }


# ---- programs ----


def report(kind, trainer, model):
    facts = [
        kind,
        trainer.global_rank,
        trainer.world_size,
        trainer.local_rank,
        trainer.node_rank,
        torch.distributed.get_backend(),
        round(model.weights().double().sum().item(), 6),
    ]
    print("FACTS " + json.dumps(facts), flush=True)


def lines():
    """As tutorials have them, without a launcher: Lightning starts the other process."""
    from lightning import Trainer

    quiet = dict(logger=False, enable_checkpointing=False, enable_model_summary=False)
    quiet |= dict(enable_progress_bar=False, max_epochs=1)
    for kind, made in (
        ("ddp", lambda: Trainer(accelerator="cpu", devices=2, strategy="ddp", **quiet)),
        ("dp", lambda: Trainer(accelerator="cpu", devices=2, strategy="dp", **quiet)),
        ("ddp2", lambda: Trainer(accelerator="cpu", devices=2, strategy="ddp2", **quiet)),
        (
            "bagua",
            lambda: Trainer(
                strategy=BaguaStrategy(algorithm="gradient_allreduce"),
                accelerator="cpu",
                devices=2,
                **quiet,
            ),
        ),
        ("rueda", lambda: Trainer(accelerator="cpu", devices=2, strategy="rueda", **quiet)),
    ):
        model = Model()
        own = made()
        own.fit(model, loader(shuffle=False))
        report(kind, own, model)
        if kind == "ddp":  # its group is Gloo's
            torch.distributed.destroy_process_group()


@atexit.register
def _end_gloo():
    """Processes of Lightning's own strategies don't, and some of torch's threads don't survive
    their end. Spawned ones import this, too."""
    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        torch.distributed.destroy_process_group()


def spawned():
    """Of Lightning's own, and of ours."""
    from lightning import Trainer

    for strategy in ("ddp_spawn", "rueda_spawn"):
        own = Trainer(
            accelerator="cpu",
            devices=2,
            strategy=strategy,
            max_epochs=1,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        model = Model()
        own.fit(model, loader(shuffle=False))
        print("FACTS " + json.dumps([strategy, model.weights().double().sum().item()]), flush=True)


def hosts():
    """On whatever ranks and hosts there are: dp inside each, DDP across."""
    model = Model(lr=0.05)
    own = trainer("ddp2", devices=1, max_epochs=2)
    own.fit(model, loader(16, shuffle=False))
    report("hosts", own, model)


def place():
    """By Lightning's own strategy, which is given the environment."""
    own = trainer("ddp", plugins=[RuedaEnvironment()], max_epochs=1)
    model = Model()
    own.fit(model, loader(shuffle=False))
    report("place", own, model)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    globals()[sys.argv[1]]()
