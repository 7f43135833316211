"""A sampler for elastic jobs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch

from rueda import core


def world() -> tuple[int, int]:
    """This rank, and how many there are."""
    return core.rank(), core.size()


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Shares the samples of a dataset out to the ranks, as torch's DistributedSampler does. When
    the job's ranks change it shares out those that have not been processed in this epoch.

        sampler = hvd.elastic.ElasticSampler(dataset)
        loader = DataLoader(dataset, batch_size=32, sampler=sampler)
        state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)

        for i, (x, y) in enumerate(loader):
            ...
            state.sampler.record_batch(i, 32)
            state.commit()
        state.sampler.set_epoch(state.epoch + 1)

    All ranks get equally many samples. No sample comes twice in an epoch, but for the few that make
    the last shares equal.

    Args:
        dataset: has a length, which does not change.
        shuffle: whether each epoch has an order of its own.
        seed: of that order; the same on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        #: How many samples, from the beginning of the epoch's order on, all ranks have processed.
        self.processed_num = 0
        self._others: set[int] = set()  # that were processed, by record_indices
        self._taken = 0  # of the remaining ones
        self._own: set[int] = set()  # those of them that other ranks don't know of
        self.reset()

    @property
    def processed_indices(self) -> set[int]:
        """What has been processed in this epoch, as far as this rank knows."""
        return set(self._order[: self.processed_num]) | self._others

    def set_epoch(self, epoch: int) -> None:
        """Begins another epoch, of which nothing is processed. Call it at the end of an epoch: at
        the beginning it would forget what was processed before the job's ranks changed."""
        self.epoch = epoch
        self.processed_num = 0
        self._others, self._own = set(), set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """All ranks have processed one more batch. They call it alike, in the order of batches.

        Args:
            batch_idx: not looked at.
            batch_size: of each rank. The last batch may have been smaller.
        """
        taken = self._taken + batch_size * self.num_replicas
        self._taken = min(taken, len(self.remaining_indices))
        if self._taken == len(self.remaining_indices):
            self.processed_num = len(self._order)
        else:
            self.processed_num = self._places[self._taken]

    def record_indices(self, indices: Iterable[int]) -> None:
        """This rank has processed these samples. The others hear of it at the next commit."""
        new = {int(index) for index in indices} - self._others
        self._others |= new
        self._own |= new

    def state_dict(self) -> dict[str, Any]:
        """How far it is."""
        return {
            "epoch": self.epoch,
            "processed_num": self.processed_num,
            "processed_indices": set(self._others),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there, shared out among the ranks that there are now."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict.get("processed_num", 0)
        self._others = set(state_dict.get("processed_indices", ()))
        self._own = set()
        self.reset()

    def merge(self) -> None:
        """All ranks know what each has recorded. Collective."""
        for epoch, indices in core.allgather_object((self.epoch, self._own), "elastic.sampler"):
            if epoch == self.epoch:
                self._others |= indices
        self._own = set()

    def reset(self) -> None:
        """Shares out what has not been processed, among the ranks that there are now."""
        self.rank, self.num_replicas = world()
        self._order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(self._order)
        places = range(self.processed_num, len(self._order))
        self._places: list[int] | range = places
        if self._others:
            self._places = [i for i in places if self._order[i] not in self._others]
        self.remaining_indices = [self._order[i] for i in self._places]
        self._taken = 0
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        padded = itertools.islice(itertools.cycle(self.remaining_indices), self.total_size)
        self.indices = list(itertools.islice(padded, self.rank, None, self.num_replicas))
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
