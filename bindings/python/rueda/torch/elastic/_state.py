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

#: How keys of a state_dict end whose values are from get_extra_state.
_EXTRA = "_extra_state"


class _Model(Kind):
    def keep(self, value: Any) -> Any:
        return copy.deepcopy(value.state_dict())

    def load(self, value: Any, kept: Any) -> None:
        value.load_state_dict(kept)

    def sync(self, value: Any, root: int, name: str) -> None:
        state = value.state_dict()
        others = {key: item for key, item in state.items() if key.endswith(_EXTRA)}
        broadcast_parameters({key: item for key, item in state.items() if key not in others}, root)
        if others:
            state.update(core.broadcast_object(others, root, name))
            value.load_state_dict(state)

    def replicated(self, value: Any, kept: Any) -> Any:
        # What a module takes of its extra state is its own business.
        return [item for key, item in kept.items() if not key.endswith(_EXTRA)]


class _Optimizer(Kind):
    def keep(self, value: Any) -> Any:
        return copy.deepcopy(state_of(value))

    def load(self, value: Any, kept: Any) -> None:
        load_state(value, *copy.deepcopy(kept))  # which keeps the tensors

    def sync(self, value: Any, root: int, name: str) -> None:
        broadcast_optimizer_state(value, root)

    def replicated(self, value: Any, kept: Any) -> Any:
        # What a hook or a subclass makes of its state is its own business.
        state, plain = kept
        return [state["state"][i] for i in plain]


class _Sampler(Kind):
    def gather(self, value: Any, name: str, *, in_background: bool = False) -> None:
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
