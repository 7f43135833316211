"""Strategies that do their work around the optimizer's step: Horovod's, and Bagua's."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator
from typing import Any

import torch

import rueda
from rueda.lightning import _lightning
from rueda.lightning._ddp import RuedaStrategy
from rueda.torch import algorithms
from rueda.torch._functions import broadcast_optimizer_state

# Where a checkpoint has what an algorithm adds to an optimizer's state.
_KEY = "rueda"


def schedulers_of(configs: Any) -> list[Any]:
    """Those of Lightning's configurations, and those within them."""
    found = []
    pending = [config.scheduler for config in configs]
    while pending:
        scheduler = pending.pop()
        found.append(scheduler)
        pending += getattr(scheduler, "_schedulers", [])
    return found


def replace_optimizers(strategy: Any, replacements: list[Any]) -> None:
    """Lets others take the place of the strategy's optimizers, for schedulers, too."""
    schedulers = schedulers_of(strategy.lr_scheduler_configs)
    for before, after in zip(strategy.optimizers, replacements, strict=True):
        if before is after:
            continue
        own = [s for s in schedulers if getattr(s, "optimizer", None) is before]
        for scheduler in own:
            scheduler.optimizer = after
        if own:
            _count_steps(after)
    strategy.optimizers = replacements


def _count_steps(optimizer: Any) -> None:
    """As schedulers do when they are made, to see that the optimizer steps before they do."""
    step = optimizer.step

    @functools.wraps(step)
    def counted(*args: Any, **kwargs: Any) -> Any:
        optimizer._opt_called = True
        return step(*args, **kwargs)

    counted._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = counted


class _OptimizerStrategy(RuedaStrategy):
    """One of Bagua's algorithms, of which one is Horovod's, for each optimizer."""

    def __init__(self, algorithm: str, options: dict[str, Any], **kwargs: Any) -> None:
        algorithms.check_name(algorithm)
        super().__init__(**kwargs)
        self._algorithm = algorithm
        self._options = options
        self._running: list[algorithms.Algorithm] = []
        self._ended: list[algorithms.Algorithm] = []  # of the last fit, for checkpoints after it
        self._blocked = False
        self._passes = 0  # backward passes since gradients were combined

    def configure_ddp(self) -> None:
        """The model stays as it is; all ranks begin with rank 0's."""
        _lightning.sync_module_states(self.model)

    def setup_optimizers(self, trainer: Any) -> None:
        """Gives each optimizer an algorithm."""
        super().setup_optimizers(trainer)
        self._close()
        self._ended = []
        self._before_algorithms()
        named = list(self.lightning_module.named_parameters())
        for optimizer in self.optimizers:
            self._running.append(
                algorithms.make(self._algorithm, optimizer, named, **self._options)
            )
        replace_optimizers(self, [algorithm.optimizer for algorithm in self._running])

    def _before_algorithms(self) -> None:
        """When there are optimizers."""

    def setup_precision_plugin(self) -> None:
        """A loss scaler leaves out steps, on one rank alone."""
        super().setup_precision_plugin()
        scaler = getattr(self.precision_plugin, "scaler", None)
        if scaler is not None and any(algorithm.differs for algorithm in self._running):
            raise _lightning.MisconfigurationException(
                f"the algorithm {self._algorithm!r} does not go with precision='16-mixed', where "
                "ranks leave out steps by themselves: use 'bf16-mixed'"
            )

    # ---- a step ----

    @contextlib.contextmanager
    def block_backward_sync(self) -> Generator[None, None, None]:
        """Gradients of backward passes within are added up, and are combined in the next one
        outside."""
        before, self._blocked = self._blocked, True
        try:
            yield
        finally:
            self._blocked = before

    def pre_backward(self, closure_loss: torch.Tensor) -> None:
        """Whether gradients go on their way as they come."""
        self._passes += 1
        for algorithm in self._running:
            algorithm.set_passes(self._passes + int(self._blocked))

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        """Waits for them: what comes next may clip them."""
        if self._blocked:
            return
        self._passes = 0
        for algorithm in self._running:
            algorithm.synchronize()

    # ---- when the ranks' models shall be one ----

    def _finish(self) -> None:
        for algorithm in self._running:
            if algorithm.differs:
                algorithm.finish()

    def on_validation_start(self) -> None:
        """Of all ranks' models the average is evaluated."""
        self._finish()

    def on_train_end(self) -> None:
        """And it is what remains."""
        self._finish()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """And saved. Collective."""
        self._finish()
        state: dict[str, Any] = super().lightning_module_state_dict()
        return state

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """With what the algorithm needs to go on, and, where ranks step by themselves, with all
        ranks' states. Collective."""
        state: dict[str, Any] = super().optimizer_state(optimizer)
        algorithm = self._algorithm_of(optimizer)
        if algorithm is None:
            return state
        more: dict[str, Any] = {"algorithm": self._algorithm, "state": algorithm.state_dict()}
        if algorithm.differs:
            states = rueda.allgather_object(state["state"], name="rueda.lightning state")
            more["ranks"] = dict(enumerate(states)) if self.is_global_zero else {}
        return state | {_KEY: more}

    def _algorithm_of(self, optimizer: Any) -> Any:
        own = getattr(optimizer, "_optimizer", optimizer)
        return next((a for a in self._running or self._ended if a.optimizer is own), None)

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """Each rank has its own again, if there are as many; else all begin with rank 0's."""
        states = []
        for algorithm, saved in zip(self._running, checkpoint["optimizer_states"], strict=False):
            state = dict(saved)
            more = state.pop(_KEY, {})
            ranks = more.get("ranks", {})
            if len(ranks) == self.world_size:
                state["state"] = ranks[self.global_rank]
            if more.get("algorithm") == self._algorithm:
                algorithm.load_state_dict(more["state"])
            states.append(state)
        super().load_optimizer_state_dict({**checkpoint, "optimizer_states": states})

    # ---- the end ----

    def _close(self) -> None:
        for algorithm in self._running:
            algorithm.close()
        self._ended = self._running or self._ended
        self._running = []

    def teardown(self) -> None:
        """The optimizers are plain ones again. Checkpoints may be saved all the same."""
        self._close()
        super().teardown()


class HorovodStrategy(_OptimizerStrategy):
    """`rueda.torch.DistributedOptimizer` around each optimizer, as the strategy of this name did
    with Horovod's.

    Args:
        scale_lr: multiplies learning rates with the number of ranks, as it did, for a batch that
            is larger by that.
        compression: how gradients are made smaller on their way: `hvd.Compression.fp16`, "int8".
        kwargs: of Lightning's DDPStrategy, but for those of DistributedDataParallel.
    """

    strategy_name = "horovod"

    def __init__(self, scale_lr: bool = True, compression: Any = None, **kwargs: Any) -> None:
        super().__init__("gradient_allreduce", {"compression": compression}, **kwargs)
        self._scale_lr = scale_lr

    def _before_algorithms(self) -> None:
        if self._scale_lr:
            self._multiply_rates(self.world_size)
        for optimizer in self.optimizers:
            if self.world_size > 1 and not isinstance(optimizer, torch.optim.LBFGS):
                broadcast_optimizer_state(optimizer, 0)

    def _multiply_rates(self, factor: float) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for key in ("lr", "initial_lr"):
                    if key in group:
                        group[key] = group[key] * factor
        for scheduler in schedulers_of(self.lr_scheduler_configs):
            for rates in ("base_lrs", "_last_lr"):
                if hasattr(scheduler, rates):
                    scaled = [rate * factor for rate in getattr(scheduler, rates)]
                    setattr(scheduler, rates, scaled)


class BaguaStrategy(_OptimizerStrategy):
    """One of Bagua's algorithms.

    Args:
        algorithm: "gradient_allreduce", "bytegrad", "qadam", "decentralized",
            "low_precision_decentralized" or "async".
        flatten: not looked at: small gradients share buckets in any case.
        kwargs: options of the algorithm's class in `rueda.torch.algorithms`, and those of
            Lightning's DDPStrategy (`accelerator`, `precision_plugin`, `timeout`, ...).
    """

    strategy_name = "bagua"

    def __init__(
        self, algorithm: str = "gradient_allreduce", flatten: bool = True, **kwargs: Any
    ) -> None:
        own = {key: kwargs.pop(key) for key in list(kwargs) if key in _LIGHTNINGS}
        algorithms.check_name(algorithm)
        known = [o for o in algorithms.options_of(algorithm) if o != "process_set"]
        unknown = sorted(set(kwargs) - set(known))
        if unknown:
            raise TypeError(
                f"the algorithm {algorithm!r} has no option {unknown[0]!r}; its options are "
                f"{', '.join(known)}"
            )
        super().__init__(algorithm, kwargs, **own)


_LIGHTNINGS = (
    "accelerator",
    "parallel_devices",
    "cluster_environment",
    "checkpoint_io",
    "precision_plugin",
    "process_group_backend",
    "timeout",
    "start_method",
)
