"""dp and ddp2: the devices of a host share out each batch. Lightning had them do so as threads of
one process; here each device is a rank, and the result is the same.

All ranks of a host load the same batches, and each takes its part of them, as torch's DataParallel
deals it out. The gradient is that of the whole batch's loss, also where parts are unequal.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch

import rueda
from rueda.lightning import _lightning
from rueda.lightning._ddp import RuedaStrategy


def _first_tensor(batch: Any) -> torch.Tensor | None:
    if torch.is_tensor(batch):
        return batch if batch.dim() > 0 else None
    items = batch.values() if isinstance(batch, Mapping) else batch
    if not isinstance(batch, (Mapping, list, tuple)):
        return None
    return next((t for item in items if (t := _first_tensor(item)) is not None), None)


def _like(mapping: Any, items: dict[Any, Any]) -> Any:
    """One of the same kind, with these items: a dict, a defaultdict, a BatchEncoding of Hugging
    Face's."""
    if not isinstance(mapping, MutableMapping):
        return type(mapping)(items)
    other = copy.copy(mapping)
    for key, item in items.items():
        other[key] = item
    return other


def _taken(batch: Any, rows: slice) -> Any:
    """These rows of all its tensors. Other values stay unchanged, as with DataParallel."""
    if torch.is_tensor(batch):
        return batch[rows] if batch.dim() > 0 else batch
    if isinstance(batch, Mapping):
        return _like(batch, {key: _taken(item, rows) for key, item in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_taken(item, rows) for item in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_taken(item, rows) for item in batch)
    return batch


def _joined(parts: list[Any]) -> Any:
    """What ranks have predicted, as of the whole batch."""
    first = parts[0]
    if torch.is_tensor(first):
        return torch.cat(parts) if first.dim() > 0 else torch.stack(parts)
    if isinstance(first, Mapping):
        return _like(first, {key: _joined([part[key] for part in parts]) for key in first})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(_joined, map(list, zip(*parts, strict=True))))
    if isinstance(first, (list, tuple)):
        return type(first)(map(_joined, map(list, zip(*parts, strict=True))))
    return parts


class DataParallelStrategy(RuedaStrategy):
    """dp: the devices of one host share out each batch of the loader.

    Args:
        loss: "mean" if `training_step` returns the mean of its samples' losses, "sum" if it returns
            their sum.
        kwargs: of `RuedaStrategy`.
    """

    strategy_name = "dp"

    def __init__(self, loss: str = "mean", **kwargs: Any) -> None:
        if loss not in ("mean", "sum"):
            raise ValueError(f"loss is {loss!r}; there are 'mean' and 'sum'")
        super().__init__(**kwargs)
        self._loss = loss
        self._factor = 1.0  # of the loss, for its gradient
        self._rows = 0  # of the batch that this rank has; 0: it repeats another's

    def setup_environment(self) -> None:
        """As always, on one host."""
        super().setup_environment()
        if self.node_place()[1] > 1 and type(self) is DataParallelStrategy:
            raise _lightning.MisconfigurationException(
                "strategy='dp' is for one host: on several, 'ddp2' is dp inside each of them"
            )

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """A host's ranks have the same batches; hosts have different ones."""
        node, nodes = self.node_place()
        return {"num_replicas": nodes, "rank": node}

    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """This rank's part of it. A rank for which there is none takes the last sample, which
        counts for nothing in training, and once more in an evaluation."""
        me, ranks = self.local_place()
        found = _first_tensor(batch)
        whole = 0 if found is None else len(found)
        if whole == 0:
            self._rows, self._factor = 0, 1.0
        else:
            size = -(-whole // ranks)
            begin, end = min(me * size, whole), min((me + 1) * size, whole)
            self._rows = end - begin
            share = self._rows / whole if self._loss == "mean" else float(self._rows > 0)
            self._factor = share * ranks
            batch = _taken(batch, slice(begin, end) if end > begin else slice(whole - 1, whole))
        return super().batch_to_device(batch, device, dataloader_idx)

    def backward(self, closure_loss: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """The ranks' gradients are averaged: what they have to be of."""
        return super().backward(closure_loss * self._factor, optimizer, *args, **kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Of the whole batch, on each of the host's ranks."""
        own = super().predict_step(*args, **kwargs)
        node, me = self.node_place()[0], self.local_place()[0]
        all_parts = rueda.allgather_object((node, me, self._rows, own), name="rueda.lightning dp")
        parts = [part for n, _, rows, part in all_parts if n == node and (rows > 0 or part is None)]
        return own if not parts or parts[0] is None else _joined(parts)


class DDP2Strategy(DataParallelStrategy):
    """ddp2: dp inside each host, and the hosts' gradients are averaged."""

    strategy_name = "ddp2"
