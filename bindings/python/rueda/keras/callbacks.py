"""Callbacks for Model.fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy

from rueda import core
from rueda.core._process_sets import global_process_set
from rueda.tensorflow._functions import broadcast_variables

#: Parts of a layer's state that ranks do not share: where its random numbers have come to.
_RANDOM = "seed_generator_state"


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Gives all ranks the root's weights and the state of its optimizer when training begins (of a
    model that is built later: after the first batch, as Horovod does)."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        """
        Args:
            root_rank: the rank that has them right.
            device: not looked at.
            local_variables: a variable, or several, that remain each rank's own.
        """
        super().__init__()
        self._root_rank = root_rank
        self._done = False
        if local_variables is None:
            local_variables = []
        elif not isinstance(local_variables, (list, tuple, set)):
            local_variables = [local_variables]
        self._local = {id(variable): variable for variable in local_variables}

    def register_local_var(self, var: Any) -> None:
        """This variable remains each rank's own."""
        self._local[id(var)] = var

    def _broadcast(self) -> None:
        self._done = True
        variables = [*self.model.weights]
        if getattr(self.model, "optimizer", None) is not None:
            variables += self.model.optimizer.variables
        shared = [
            variable
            for variable in variables
            if id(variable) not in self._local and variable.name != _RANDOM
        ]
        broadcast_variables(shared, self._root_rank)

    def on_train_begin(self, logs: Any = None) -> None:
        """Before the first batch."""
        self._done = False
        if self.model.built:
            optimizer = getattr(self.model, "optimizer", None)
            if optimizer is not None and not optimizer.built:
                optimizer.build(self.model.trainable_variables)
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """After the first one."""
        if not self._done:
            self._broadcast()


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the metrics of each epoch over all ranks, of what is validated, too. What comes
    behind it in the list of callbacks, and the history, has the averages: put it before
    EarlyStopping, ReduceLROnPlateau, ModelCheckpoint and TensorBoard."""

    def __init__(self, device: str = "", process_set: Any = global_process_set) -> None:
        """
        Args:
            device: not looked at.
            process_set: the ranks that train together.
        """
        super().__init__()
        self._process_set = process_set

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """All ranks have the same metrics."""
        logs = {} if logs is None else logs
        numbers = {
            key: float(value)
            for key, value in sorted(logs.items())
            if numpy.ndim(value) == 0 and isinstance(value, (int, float, numpy.generic))
        }
        if not numbers:
            return
        averages = core.allreduce(
            numpy.array(list(numbers.values())),
            f"MetricAverageCallback.{','.join(numbers)}",
            process_set=self._process_set,
        )
        for key, average in zip(numbers, averages, strict=True):
            logs[key] = float(average)


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to ``initial_lr * multiplier`` from one epoch to another."""

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """
        Args:
            initial_lr: the learning rate at the start.
            multiplier: of the epoch: a function, or a number whose powers are taken.
            start_epoch: the first epoch that it is for.
            end_epoch: the first one that it is not for any more; None: for all.
            staircase: once an epoch; False: with each batch, the epoch being a fraction.
            momentum_correction: scales SGD's momentum as the learning rate changes (section 2 of
                arXiv 1706.02677, remark 2).
            steps_per_epoch: None: as many as Keras says there are.
        """
        super().__init__()
        if initial_lr is None:
            raise ValueError(f"{type(self).__name__}: initial_lr is None")
        if callable(multiplier):
            self._multiplier = multiplier
        else:
            power = float(multiplier)
            self._multiplier = lambda epoch: power ** (epoch - start_epoch)
        self._initial_lr = initial_lr
        self._start_epoch = start_epoch
        self._end_epoch = end_epoch
        self._staircase = staircase
        self._momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self._epoch = 0

    def _optimizer(self) -> Any:
        optimizer = self.model.optimizer
        return getattr(optimizer, "inner_optimizer", optimizer)

    def _learning_rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self._optimizer().learning_rate))

    def _set_learning_rate(self, epoch: float) -> None:
        optimizer = self._optimizer()
        old, new = self._learning_rate(), self._initial_lr * self._multiplier(epoch)
        try:
            optimizer.learning_rate = new
        except TypeError as error:
            raise ValueError(
                f"{type(self).__name__}: the optimizer has a schedule for its learning rate; give "
                "it a number"
            ) from error
        velocities: Iterable[Any] = getattr(optimizer, "momentums", None) or ()
        if isinstance(optimizer, keras.optimizers.SGD) and self._momentum_correction and old > 0:
            # Its velocities have learning rates in them.
            for velocity in velocities:
                velocity.assign(velocity * (new / old))

    def on_train_begin(self, logs: Any = None) -> None:
        """Looks how many steps an epoch has."""
        if self._staircase or self.steps_per_epoch:
            return
        self.steps_per_epoch = (self.params or {}).get("steps")
        if not self.steps_per_epoch:
            raise ValueError(
                f"{type(self).__name__}: Keras does not know how many steps an epoch has: say "
                "steps_per_epoch"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remembers which."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets it."""
        if self._epoch < self._start_epoch:
            return
        if self._end_epoch is not None and self._epoch >= self._end_epoch:
            return
        if not self._staircase:
            assert self.steps_per_epoch is not None
            self._set_learning_rate(self._epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._set_learning_rate(self._epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs it, as "lr"."""
        if logs is not None:
            logs["lr"] = self._learning_rate()


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Begins with the learning rate of one rank, ``initial_lr / size()``, and comes to `initial_lr`
    batch by batch (section 2.2 of arXiv 1706.02677)."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """
        Args:
            initial_lr: the learning rate after it: usually one rank's times the number of ranks.
            warmup_epochs: how long it takes.
            momentum_correction: see `LearningRateScheduleCallback`.
            steps_per_epoch: None: as many as Keras says there are.
            verbose: 1: rank 0 says when it is over.
        """

        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch is not None
            # Round numbers at the ends of epochs.
            epoch += 1.0 / self.steps_per_epoch
            ranks = core.size()
            return (epoch * (ranks - 1) / warmup_epochs + 1) / ranks

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self._verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Says when it is over."""
        super().on_epoch_end(epoch, logs)
        over = self._end_epoch is not None and epoch == self._end_epoch - 1
        if over and self._verbose > 0 and core.rank() == 0:
            print(f"\nEpoch {epoch + 1}: the learning rate is {self._learning_rate():g} now.")
