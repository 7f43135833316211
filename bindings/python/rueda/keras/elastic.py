"""Elastic jobs with Keras, in the manner of Horovod.

state = hvd.elastic.KerasState(model, batch=0, epoch=0)
callbacks = [
    hvd.elastic.UpdateEpochStateCallback(state),
    hvd.elastic.UpdateBatchStateCallback(state),
    hvd.elastic.CommitStateCallback(state),
]

@hvd.elastic.run
def train(state):
    model.fit(dataset, callbacks=callbacks, epochs=epochs - state.epoch)

train(state)
"""

from __future__ import annotations

import weakref
from typing import Any

import keras

from rueda.core.elastic import HorovodInternalError, HostsUpdatedInterrupt
from rueda.tensorflow.elastic import TensorFlowKerasState, run

__all__ = [
    "CommitStateCallback",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(TensorFlowKerasState):
    """The state of a program with a model of Keras: see TensorFlowKerasState.

    Args:
        model: has its weights already.
        optimizer: None: that of `model.compile`.
        kwargs: more attributes, such as `epoch` and `batch`.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


# By state: a commit has what they know, in whatever order the callbacks are given.
_updates: weakref.WeakKeyDictionary[Any, weakref.WeakSet[_Update]] = weakref.WeakKeyDictionary()


class _Update(keras.callbacks.Callback):  # type: ignore[misc]
    """Lets the state follow the training."""

    def __init__(self, state: Any) -> None:
        """
        Args:
            state: to be updated.
        """
        super().__init__()
        self.state = state
        _updates.setdefault(state, weakref.WeakSet()).add(self)

    def batch_ends(self, batch: int) -> None:
        """May be called twice for a batch."""

    def epoch_ends(self, epoch: int) -> None:
        """May be called twice for an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Updates the state."""
        self.batch_ends(batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Updates the state."""
        self.epoch_ends(epoch)


class UpdateBatchStateCallback(_Update):
    """Sets `state.batch` to the number of the last batch, and to 0 when an epoch ends. An epoch
    that was interrupted begins anew with the next fit()."""

    def batch_ends(self, batch: int) -> None:
        """The batch's number."""
        self.state.batch = batch

    def epoch_ends(self, epoch: int) -> None:
        """The next epoch begins with 0."""
        self.state.batch = 0


class UpdateEpochStateCallback(_Update):
    """Sets `state.epoch` to the number of epochs that are done, those of earlier calls of fit()
    too, when an epoch ends."""

    _before: int | None = None  # what is done beyond the number that fit() gives an epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """fit() has been called."""
        self._before = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Its first epoch may be 0, or another."""
        if self._before is None:
            self._before = self.state.epoch - epoch

    def epoch_ends(self, epoch: int) -> None:
        """One more."""
        self.state.epoch = (self._before or 0) + epoch + 1


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Commits the state after every so many batches, and when an epoch ends."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        """
        Args:
            state: to be committed, on all ranks.
            batches_per_commit: how many batches there are from one commit to the next.
        """
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit is {batches_per_commit}: at least 1")
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Newcomers count from here, and so do all."""
        self._left = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits when it is time."""
        self._left -= 1
        if self._left <= 0:
            self._left = self.batches_per_commit
            for update in _updates.get(self.state, ()):
                update.batch_ends(batch)
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        for update in _updates.get(self.state, ()):
            update.epoch_ends(epoch)
        self.state.commit()
