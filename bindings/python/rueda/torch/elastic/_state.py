"""The state of a program with PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import torch

from rueda import core
from rueda.core.elastic import Kind, ObjectState
from rueda.torch._functions import (
    broadcast_optimizer_state,
    broadcast_parameters,
    load_state,
    state_of,
)
from rueda.torch.elastic._sampler import ElasticSampler


class _Model(Kind):
    def keep(self, value: Any) -> Any:
        return copy.deepcopy(value.state_dict())

    def load(self, value: Any, kept: Any) -> None:
        value.load_state_dict(kept)

    def sync(self, value: Any, root: int, name: str) -> None:
        state = value.state_dict()
        broadcast_parameters(state, root)
        others = {key: item for key, item in state.items() if not torch.is_tensor(item)}
        if others:  # get_extra_state
            state.update(core.broadcast_object(others, root, name))
            value.load_state_dict(state)


class _Optimizer(Kind):
    def keep(self, value: Any) -> Any:
        return copy.deepcopy(state_of(value))

    def load(self, value: Any, kept: Any) -> None:
        load_state(value, *copy.deepcopy(kept))  # which keeps the tensors

    def sync(self, value: Any, root: int, name: str) -> None:
        broadcast_optimizer_state(value, root)


class _Sampler(Kind):
    def gather(self, value: Any, name: str) -> None:
        value.merge()

    def keep(self, value: Any) -> Any:
        return value.state_dict()

    def load(self, value: Any, kept: Any) -> None:
        value.load_state_dict(kept)

    def sync(self, value: Any, root: int, name: str) -> None:
        value.merge()
        value.load_state_dict(core.broadcast_object(value.state_dict(), root, name))

    def reset(self, value: Any) -> None:
        value.reset()


class _Stateful(Kind):
    """Whatever else has a state_dict: schedulers, a GradScaler."""

    def keep(self, value: Any) -> Any:
        return copy.deepcopy(value.state_dict())

    def load(self, value: Any, kept: Any) -> None:
        value.load_state_dict(copy.deepcopy(kept))

    def sync(self, value: Any, root: int, name: str) -> None:
        value.load_state_dict(core.broadcast_object(value.state_dict(), root, name))

    def replicated(self, value: Any, kept: Any) -> Any:
        return ()  # what it takes of that is its own business


_KINDS: list[tuple[type, Kind]] = [
    (torch.nn.Module, _Model()),
    (torch.optim.Optimizer, _Optimizer()),
    (ElasticSampler, _Sampler()),
]
_STATEFUL = _Stateful()


class TorchState(ObjectState):
    """The state of a program with PyTorch. Each argument becomes an attribute.

        state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)

    Models, optimizers, an `ElasticSampler`, learning rate schedulers, a GradScaler and whatever
    else has `state_dict` and `load_state_dict` are kept and synced by these, in place. Everything
    else is copied and pickled.

    Args:
        model: a torch.nn.Module.
        optimizer: of torch.optim; also a DistributedOptimizer.
        kwargs: more attributes; there may be several models and optimizers.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model=model, optimizer=optimizer, **kwargs)

    def _kind_of(self, value: Any) -> Kind | None:
        for cls, kind in _KINDS:
            if isinstance(value, cls):
                return kind
        own = super()._kind_of(value)
        if own is not None:
            return own
        is_stateful = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
        return _STATEFUL if is_stateful and not isinstance(value, type) else None
