"""A strategy for elastic jobs: fit() continues when ranks are lost, and when others come.

The strategy replaces two methods of Lightning's loops: `run` of the fit loop, and `run` of its
epoch loop. Their other methods stay as they are. The new ones commit a state between batches, and
train within `rueda.elastic.run`. After a regroup they enter the loops again, where the state is.

torch.distributed has no process group here, since its size could not change: what Lightning wants
of it goes through rueda's own operations.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

import rueda
import rueda.torch as hvd
from rueda import errors
from rueda.core import _context, elastic
from rueda.lightning import _lightning
from rueda.lightning._environment import RuedaEnvironment, launcher
from rueda.lightning._optimizers import HorovodStrategy
from rueda.torch.elastic import ElasticSampler, TorchState

_OPS = {
    "mean": hvd.Average,
    "avg": hvd.Average,
    "sum": hvd.Sum,
    "min": hvd.Min,
    "max": hvd.Max,
    "product": hvd.Product,
}


class ElasticEnvironment(RuedaEnvironment):
    """A place in the job that may change: as rueda says at the moment. When this process has left
    the job, it is the last one it had."""

    def __init__(self) -> None:
        super().__init__()
        self._last = (0, 1, 0, 0)

    def _now(self) -> tuple[int, int, int, int]:
        if self._last == (0, 1, 0, 0) and not rueda.is_initialized():
            rueda.init()
        if rueda.is_initialized():
            self._last = rueda.rank(), rueda.size(), rueda.local_rank(), rueda.cross_rank()
        return self._last

    @property
    def main_address(self) -> str:
        """Not used: torch.distributed has no store here."""
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """Not used."""
        return 0

    def world_size(self) -> int:
        """How many ranks there are now."""
        return self._now()[1]

    def global_rank(self) -> int:
        """This rank, as it is now."""
        return self._now()[0]

    def local_rank(self) -> int:
        """This rank among those of its host, as it is now."""
        return self._now()[2]

    def node_rank(self) -> int:
        """The number of this host."""
        return self._now()[3]

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Any numbers go in a job that a launcher has started, as its size may change. Without a
        launcher there is one rank: a MisconfigurationException for more."""
        if num_devices * num_nodes > 1 and launcher() is None:
            raise _lightning.MisconfigurationException(
                f"strategy='rueda_elastic' with devices={num_devices}, num_nodes={num_nodes}: this "
                "strategy does not start processes itself. Start the job with "
                f"`ruedarun -np {num_devices * num_nodes} --min-np 1 python ...`, and leave out "
                "devices and num_nodes"
            )


# ---- samplers ----


_is_training = False  # within elastic.run


def _has_others() -> bool:
    """Whether there are other ranks. For a process that comes later there are none until it has
    joined them: its membership has the number 0. While it trains there are some in a membership
    that has failed, too: the operation says so, and nobody goes on alone. After an abort, which
    ends the training, there are none."""
    if not (_is_training or rueda.is_initialized()):
        return False
    return rueda.size() > 1 and rueda.membership_info().number > 0


class _OrderedSampler(ElasticSampler):
    """As ElasticSampler, in the order of another sampler, which rank 0 asks in each epoch.

    Args:
        sampler: has a length.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._drawn: list[Any] | None = None
        super().__init__(sampler, shuffle=False)

    def set_epoch(self, epoch: int) -> None:
        """Begins another epoch, with another order."""
        self._drawn = None
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
        super().set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """How far it is, and in which order."""
        return super().state_dict() | {"drawn": self._drawn}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there."""
        self._drawn = state_dict.get("drawn")
        super().load_state_dict(state_dict)

    def __iter__(self) -> Iterator[Any]:
        """Collective, when the epoch begins."""
        if self._drawn is None:
            drawn = list(self._sampler)
            self._drawn = (
                rueda.broadcast_object(drawn, 0, name="rueda.lightning order")
                if _has_others()
                else drawn
            )
        drawn = self._drawn
        return (drawn[index] for index in super().__iter__())


def _sampler_of(loader: Any) -> Any:
    """The one that gives single samples."""
    batches = getattr(loader, "batch_sampler", None)
    return getattr(batches, "sampler", None) or getattr(loader, "sampler", None)


def _elastic_sampler(given: DistributedSampler[Any]) -> ElasticSampler:
    """What takes the place of Lightning's."""
    if not isinstance(given, _lightning.DistributedSamplerWrapper):
        dataset: Any = given.dataset
        return ElasticSampler(dataset, given.shuffle, given.seed)
    own: Any = given.dataset
    sampler = own._sampler
    return sampler if isinstance(sampler, ElasticSampler) else _OrderedSampler(sampler)


def _follow(sampler: Any) -> None:
    """Lets a distributed sampler be for the ranks that there are now."""
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas != rueda.size():
        epoch = sampler.epoch
        DistributedSampler.__init__(
            sampler,
            sampler.dataset,
            rueda.size(),
            rueda.rank(),
            sampler.shuffle,
            sampler.seed,
            sampler.drop_last,
        )
        sampler.epoch = epoch
    elif isinstance(sampler, DistributedSampler):
        sampler.rank = rueda.rank()


# ---- torchmetrics ----


def _gather(tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
    """All ranks' tensors, of any shapes, in the manner of torchmetrics."""
    shapes = rueda.allgather_object(tuple(tensor.shape), name="rueda.lightning shapes")
    flat = hvd.allgather(tensor.detach().reshape(-1), name="rueda.lightning metric")
    sizes = [int(torch.Size(shape).numel()) for shape in shapes]
    return [
        part.reshape(shape) for part, shape in zip(torch.split(flat, sizes), shapes, strict=True)
    ]


def _connect_metrics(module: torch.nn.Module) -> None:
    metric: Any
    for metric in module.modules():
        if hasattr(metric, "distributed_available_fn") and hasattr(metric, "dist_sync_fn"):
            metric.distributed_available_fn = _has_others
            metric.dist_sync_fn = _gather


# ---- the state of the training beside model and optimizers ----


def _load_progress(loop: Any, state: dict[str, Any], prefix: str = "") -> None:
    """As the loop's load_state_dict, which also marks it as one that comes from a checkpoint."""
    loop._load_from_state_dict(state.copy(), prefix)
    for name, value in vars(loop).items():
        if isinstance(value, _lightning.Loop):
            _load_progress(value, state, f"{prefix}{name}.")


_METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")


class _Loops:
    """How far the loops are, with what goes with that."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        loop = self._trainer.fit_loop
        connector = self._trainer._logger_connector
        modules = self._trainer.lightning_module.named_modules()
        return {
            "progress": loop.state_dict(),
            "reloaded": loop._last_train_dl_reload_epoch,
            "validated": loop.epoch_loop.val_loop._has_run,
            "should_stop": self._trainer.should_stop,
            "training": {name: module.training for name, module in modules},
            "metrics": {name: dict(getattr(connector, name)) for name in _METRICS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        loop = self._trainer.fit_loop
        _load_progress(loop, state["progress"])
        loop._last_train_dl_reload_epoch = state["reloaded"]
        loop.epoch_loop.val_loop._has_run = state["validated"]
        self._trainer.should_stop = state["should_stop"]
        for name, module in self._trainer.lightning_module.named_modules():
            module.training = state["training"].get(name, module.training)
        for name, metrics in state["metrics"].items():
            setattr(self._trainer._logger_connector, name, metrics)


class _Callbacks:
    """What the callbacks keep in checkpoints, and where those are written."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        return {
            callback.state_key: (callback.state_dict(), getattr(callback, "dirpath", None))
            for callback in self._trainer.callbacks
        }

    def load_state_dict(self, states: dict[str, Any]) -> None:
        for callback in self._trainer.callbacks:
            state, folder = states.get(callback.state_key, ({}, None))
            if folder is not None:
                callback.dirpath = folder
            if state:
                callback.load_state_dict(copy.deepcopy(state))


class _Samples:
    """Which samples of the epoch have been processed."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def pairs(self) -> Iterator[tuple[Any, ElasticSampler]]:
        """The loaders that have an ElasticSampler, with that."""
        combined = self._trainer.fit_loop._combined_loader
        for loader in [] if combined is None else combined.flattened:
            sampler = _sampler_of(loader)
            if isinstance(sampler, ElasticSampler):
                yield loader, sampler

    def record_batch(self) -> None:
        for loader, sampler in self.pairs():
            sampler.record_batch(0, _batch_size(loader))

    def set_epoch(self, epoch: int) -> None:
        for _, sampler in self.pairs():
            sampler.set_epoch(epoch)

    def reset(self) -> None:
        for _, sampler in self.pairs():
            sampler.reset()
            self._cycle(sampler)

    def state_dict(self) -> dict[str, Any]:
        return {"samplers": [sampler.state_dict() for _, sampler in self.pairs()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for (_, sampler), own in zip(self.pairs(), state["samplers"], strict=True):
            sampler.load_state_dict(own)
            self._cycle(sampler)

    def _cycle(self, sampler: ElasticSampler) -> None:
        """The shorter ones of several loaders begin again, as Lightning has it."""
        if not sampler.remaining_indices and len(list(self.pairs())) > 1:
            sampler.set_epoch(sampler.epoch)


def _batch_size(loader: Any) -> int:
    size = getattr(loader.batch_sampler, "batch_size", loader.batch_size)
    return 1 if size is None else int(size)


def _length(loader: Any) -> float:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return float("inf")


# ---- the strategy ----


class RuedaElasticStrategy(HorovodStrategy):
    """For jobs that `ruedarun --min-np` starts: fit() goes on with the ranks that are left when
    some are lost, and with those that come. Gradients are combined as with "horovod".

        ruedarun -np 3 --min-np 2 python train.py   # Trainer(strategy="rueda_elastic", ...)

    In any other job it trains with the ranks that there are.

    Args:
        commit_every: after how many batches the state is kept in memory. After a loss fit() goes on
            from there; processes that come join there. The end of an epoch is such a place, too.
        scale_lr: multiplies learning rates with the number of ranks, also when it changes.
        compression: how gradients are made smaller on their way: `hvd.Compression.fp16`, "int8".
        kwargs: of Lightning's DDPStrategy, but for those of DistributedDataParallel and of
            torch.distributed.
    """

    strategy_name = "rueda_elastic"

    def __init__(
        self,
        commit_every: int = 10,
        scale_lr: bool = False,
        compression: Any = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(commit_every, bool) or not isinstance(commit_every, int) or commit_every < 1:
            raise ValueError(f"commit_every is {commit_every!r}, and must be at least 1")
        super().__init__(scale_lr, compression, **kwargs)
        self._commit_every = commit_every
        self._trainer: Any = None
        self._state: Any = None
        self._samples: Any = None
        self._batches = 0  # since the last commit
        self._entries = 0  # how often the loops were entered
        self._resumes = False  # the epoch that has begun
        self._is_first_epoch = True
        self._device: torch.device | None = None

    # ---- the place in the job ----

    @property
    def cluster_environment(self) -> Any:
        """Always an ElasticEnvironment."""
        return self._environment

    @cluster_environment.setter
    def cluster_environment(self, given: Any) -> None:
        self._environment = given if isinstance(given, ElasticEnvironment) else ElasticEnvironment()

    @property
    def root_device(self) -> torch.device:
        """This process's, which does not change with its rank."""
        if self._device is None:
            devices: list[torch.device] = self.parallel_devices
            place = int(os.environ.get("RUEDA_LOCAL_RANK") or self.local_rank)
            if place < len(devices) or devices[0].type == "cpu":
                self._device = devices[place % len(devices)]
            else:
                seen = self.accelerator.auto_device_count()
                self._device = torch.device(devices[0].type, place % seen)
        return self._device

    def local_place(self) -> tuple[int, int]:
        """This rank among those of its host, and how many these are."""
        return rueda.local_rank(), rueda.local_size()

    def node_place(self) -> tuple[int, int]:
        """The number of this host, and how many hosts there are."""
        return rueda.cross_rank(), rueda.cross_size()

    def setup_distributed(self) -> None:
        """Joins the job. In a process that comes later it does not wait for the others."""
        self.set_world_ranks()

    def configure_ddp(self) -> None:
        """The model stays as it is. Ranks get the same one when the loops are entered."""

    def setup(self, trainer: Any) -> None:
        """Also takes the place of the loops' `run`."""
        super().setup(trainer)
        _connect_metrics(self.lightning_module)
        self._trainer = trainer
        if trainer.state.fn == "fit":
            trainer.fit_loop.run = self._run
            trainer.fit_loop.epoch_loop.run = self._run_epoch

    def teardown(self) -> None:
        """The loops are Lightning's again."""
        if self._trainer is not None:
            vars(self._trainer.fit_loop).pop("run", None)
            vars(self._trainer.fit_loop.epoch_loop).pop("run", None)
        self._state = None
        super().teardown()

    def _before_algorithms(self) -> None:
        if self._scale_lr:
            self._multiply_rates(self.world_size)

    # ---- collective operations ----
    #
    # A rank on which fit() has failed does not wait for the others, as they go on without it. Nor
    # does a process that has not joined them yet.

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Waits for all ranks."""
        if _has_others():
            hvd.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object of this rank."""
        if not _has_others():
            return obj
        return rueda.broadcast_object(obj, src, name="rueda.lightning broadcast")

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Of all ranks' tensors, whatever the group."""
        if not torch.is_tensor(tensor):
            return tensor
        op = _op(reduce_op)
        if op == hvd.Average and not torch.is_floating_point(tensor):
            tensor = tensor.to(torch.get_default_dtype())
        if not _has_others():
            return tensor
        return hvd.allreduce(tensor.detach(), name="rueda.lightning reduce", op=op)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether it is true on all ranks, or on any."""
        if not _has_others():
            return decision
        op = rueda.Min if all else rueda.Max
        return bool(rueda.allreduce(int(decision), name="rueda.lightning decision", op=op))

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """All ranks' tensors, of one shape, with the ranks as the first dimension."""
        if not _has_others():
            return tensor.unsqueeze(0)
        with contextlib.nullcontext() if sync_grads else torch.no_grad():
            return hvd.allgather(tensor.unsqueeze(0), name="rueda.lightning all_gather")

    # ---- data ----

    def process_dataloader(self, dataloader: Any) -> Any:
        """Puts an ElasticSampler in the place of Lightning's distributed sampler, for training."""
        trainer = self.lightning_module.trainer
        sampler = _sampler_of(dataloader)
        if (
            not isinstance(dataloader, DataLoader)
            or not isinstance(sampler, DistributedSampler)
            or not trainer._accelerator_connector.use_distributed_sampler
        ):
            return dataloader
        if not trainer.training:
            _follow(sampler)
            return dataloader
        stage = trainer.state.stage
        return _lightning.update_dataloader(dataloader, _elastic_sampler(sampler), mode=stage)

    # ---- in place of _FitLoop.run and _TrainingEpochLoop.run ----

    def _run(self) -> None:
        loop = self._trainer.fit_loop
        loop.setup_data()
        if loop.skip:
            return
        loop.reset()
        loop.on_run_start()
        self._state = self._new_state()
        is_newcomer = rueda.membership_info().number == 0
        self._entries = 1 if is_newcomer else 0
        self._batches = 0
        self._is_first_epoch = not is_newcomer
        global _is_training
        _is_training = True
        try:
            elastic.run(self._train)(self._state)
        except (Exception, KeyboardInterrupt) as error:
            if rueda.is_initialized():  # the others need not find out
                with contextlib.suppress(errors.RuedaError):
                    rueda.abort(_context.reason_of(error))
            raise
        finally:
            _is_training = False

    def _new_state(self) -> TorchState:
        trainer = self._trainer
        self._samples = _Samples(trainer)
        more: dict[str, Any] = {
            f"optimizer_{i}": optimizer for i, optimizer in enumerate(self.optimizers)
        }
        for i, config in enumerate(self.lr_scheduler_configs):
            more[f"scheduler_{i}"] = config.scheduler
        if trainer.datamodule is not None:
            more["datamodule"] = trainer.datamodule
        state = TorchState(
            self.lightning_module,
            **more,
            precision=self.precision_plugin,
            callbacks=_Callbacks(trainer),
            loops=_Loops(trainer),
            samples=self._samples,
            ranks=self.world_size,
        )
        state.register_reset_callbacks([self._on_reset])
        return state

    def _on_reset(self) -> None:
        """In each further membership, on the ranks that were in the one before."""
        self._samples.reset()
        if self._scale_lr:
            self._multiply_rates(rueda.size() / self._state.ranks)
        self._state.ranks = rueda.size()

    def _train(self, state: TorchState) -> None:
        """From where the state is to the end. All ranks enter it alike, in each membership."""
        loop = self._trainer.fit_loop
        self.set_world_ranks()
        self._entries += 1
        if self._entries > 1:
            self._enter_again()
        while not loop.done:
            try:
                self._measure()
                if self._resumes:
                    self._call_hooks("on_train_epoch_start")
                else:
                    loop.on_advance_start()
                loop.advance()
                loop.on_advance_end()
            except StopIteration:
                break
            finally:
                loop.on_iteration_done()
            self._is_first_epoch = False
            self._samples.set_epoch(loop.epoch_progress.current.processed)
            self._commit()
        loop._restarting = False
        loop.on_run_end()

    def _enter_again(self) -> None:
        """Drops what an unfinished batch or validation has left, and what depends on the number of
        ranks."""
        trainer, loop = self._trainer, self._trainer.fit_loop
        module = self.lightning_module
        trainer.training = True
        module._current_fx_name = None
        torch.set_grad_enabled(True)
        module.zero_grad()
        self._blocked, self._passes = False, 0
        self._batches = 0
        self._is_first_epoch = False
        for inner in (loop.epoch_loop, loop.epoch_loop.val_loop):
            inner._results.reset()
            inner._results.clear()  # so that all ranks have the same names in it
        trainer._logger_connector.reset_results()
        progress = loop.epoch_progress.current
        self._resumes = progress.started > progress.processed
        if trainer.reload_dataloaders_every_n_epochs:
            samples = copy.deepcopy(self._samples.state_dict())
            loop._combined_loader = None
            loop.setup_data()
            self._samples.load_state_dict(samples)
        val_loop = loop.epoch_loop.val_loop
        val_loop._combined_loader = None
        if loop.epoch_loop._should_check_val_epoch():
            trainer.validating = True
            val_loop.setup_data()
            trainer.training = True

    def _call_hooks(self, name: str) -> None:
        _lightning.call._call_callback_hooks(self._trainer, name)
        _lightning.call._call_lightning_module_hook(self._trainer, name)

    def _done(self) -> int:
        """How many batches of the epoch were processed before the loops were entered."""
        loop = self._trainer.fit_loop.epoch_loop
        return int(loop.batch_progress.current.ready) if self._resumes else 0

    def _measure(self) -> None:
        """How many batches the epoch has: it depends on the ranks that there are, and on those that
        there were."""
        trainer, loop = self._trainer, self._trainer.fit_loop
        combined = loop._combined_loader
        done = self._done()
        limits = [self._limit(loader, done) for loader in combined.flattened]
        combined.limits = limits
        rest = min(limits) if combined._mode == "min_size" else max(limits)
        loop.max_batches = done + rest
        is_share = isinstance(trainer.val_check_interval, float)
        if trainer._val_check_time_interval is None and is_share and rest != float("inf"):
            batches = int(loop.max_batches * trainer.val_check_interval)
            trainer.val_check_batch = max(1, batches)

    def _limit(self, loader: Any, done: int) -> float:
        """How many batches of this loader are left in the epoch."""
        limit = self._trainer.limit_train_batches
        left = _length(loader)
        sampler = _sampler_of(loader)
        is_elastic = isinstance(sampler, ElasticSampler)
        if not is_elastic:  # it begins anew
            whole = left
        elif isinstance(limit, int):
            return max(min(left, limit - done), 0)
        elif limit == 1.0:
            return left
        else:
            at_once = _batch_size(loader) * sampler.num_replicas
            whole = -(-len(sampler.dataset) // at_once)
            done = sampler.processed_num // at_once
        if whole != float("inf"):
            whole = min(whole, limit) if isinstance(limit, int) else int(whole * limit)
        elif isinstance(limit, int):
            whole = limit
        return max(min(left, whole - done), 0)

    def _run_epoch(self, fetcher: Any) -> None:
        loop = self._trainer.fit_loop.epoch_loop
        resumes = self._resumes
        if not resumes:
            loop.reset()
        # What its on_run_start does.
        if not self._is_first_epoch:
            iter(fetcher)
        elif not resumes:
            fetcher.fetched += loop.batch_progress.current.ready
        fetcher._start_profiler = loop._on_before_fetch
        fetcher._stop_profiler = loop._on_after_fetch
        if resumes and fetcher.length == 0:
            self._end_epoch(fetcher)
        self._resumes = False
        while not loop.done:
            try:
                loop.advance(fetcher)
                loop.on_advance_end(fetcher)
            except StopIteration:
                break
            finally:
                loop.on_iteration_done()
            self._after_batch(loop)

    def _end_epoch(self, fetcher: Any) -> None:
        """Of an epoch that has no batch left for the ranks that there are now: what Lightning does
        in and after the last one."""
        loop = self._trainer.fit_loop.epoch_loop
        loop.batch_progress.is_last_batch = True
        loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        if loop._should_check_val_fx(fetcher):
            self._trainer.validating = True
            loop.val_loop.run()
            self._trainer.training = True

    def _after_batch(self, loop: Any) -> None:
        self._samples.record_batch()
        self._batches += 1
        is_between_steps = not loop._should_accumulate()
        if self._batches >= self._commit_every and is_between_steps and not loop.done:
            self._commit()

    def _commit(self) -> None:
        self._batches = 0
        if _context.is_elastic():
            self._state.commit()


def _op(given: Any) -> Any:
    """Lightning gives a name, or one of torch.distributed's."""
    if given is None:
        return hvd.Sum
    name = str(given).rsplit(".", 1)[-1].lower()
    name = name.removeprefix("redoptype")
    if name not in _OPS:
        raise ValueError(f"reduce_op is {given!r}; there are {', '.join(_OPS)}")
    return _OPS[name]
