"""What the algorithms have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from rueda import core
from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.torch import _grad_scaler
from rueda.torch._functions import broadcast_parameters
from rueda.torch._operations import Average, grouped_allreduce, grouped_allreduce_async_
from rueda.torch._optimizer import names_of, prefix_of

NamedParameters = Iterable[tuple[str, Any]] | None


class Algorithm:
    """A way to train one model on several ranks, bound to an optimizer. Its methods are
    collective, and are called by one thread."""

    #: Whether the ranks' parameters are different between the steps.
    differs = False
    #: Step with this one.
    optimizer: Any

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedParameters = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """All ranks get the first one's parameters."""
        self.optimizer = optimizer
        self.process_set = process_set
        self._named = names_of(optimizer, named_parameters)
        self._parameters = [p for _, p in self._named if p.requires_grad]
        self._ranks = process_set.size()
        self._prefix = prefix_of("algorithm")
        if self._ranks > 1:
            broadcast_parameters(self._named, process_set.ranks[0], process_set)

    # ---- for all of them ----

    def set_passes(self, passes: int) -> None:
        """How many backward passes there are to a step; where nothing is sent during the backward
        pass it makes no difference."""

    def synchronize(self) -> None:
        """Call it between backward() and step() to look at gradients or to clip them: they are
        then those that the step is made by. step() does it by itself otherwise."""

    def finish(self) -> None:
        """Makes the ranks' parameters the same: before the model is evaluated or saved."""

    def close(self) -> None:
        """The optimizer is a plain one again."""

    def state_dict(self) -> dict[str, Any]:
        """What goes on from here, beside parameters and the optimizer's state, after finish()."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The opposite, when parameters have been loaded."""


class SteppingAlgorithm(Algorithm):
    """One that does something before and after each step of the user's own optimizer."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedParameters = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError("LBFGS computes several gradients in a step: gradient_allreduce only")
        super().__init__(optimizer, named_parameters, process_set)
        self.steps = 0
        self._synchronized = False
        self._hooks = [
            optimizer.register_step_pre_hook(self._on_step),
            optimizer.register_step_post_hook(self._on_end_of_step),
        ]
        if self._ranks > 1:
            _grad_scaler.follow(optimizer, self._before_unscale, self._after_unscale)

    def close(self) -> None:
        """The optimizer is a plain one again."""
        for hook in self._hooks:
            hook.remove()
        _grad_scaler.leave(self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """How many steps there were."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from them."""
        self.steps = int(state["steps"])

    # ---- a step ----

    def _begin(self) -> None:
        """A step begins; with a closure, before it computes gradients."""

    def _before(self) -> None:
        """Gradients are there."""

    def _after(self) -> None:
        """The optimizer has made its step."""

    def _on_step(self, _: Any, args: Any, kwargs: Any) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self._begin()
        if closure is None:
            self._ready()
            return None

        def closure_then_ready() -> Any:
            loss = closure()
            self._ready()
            return loss

        if len(args) > 1:
            return (args[0], closure_then_ready, *args[2:]), kwargs
        return args, kwargs | {"closure": closure_then_ready}

    def _ready(self) -> None:
        if not self._synchronized:
            self.synchronize()
        self._before()

    def _steps_together(self) -> bool:
        """Whether all ranks make their next step at once."""
        return True

    def _before_unscale(self) -> None:
        if not self._synchronized:
            self.synchronize()

    def _after_unscale(self, found: _grad_scaler.Found) -> None:
        if not self._steps_together():
            return
        if _grad_scaler.agree(found, f"{self._prefix}found inf", self.process_set):
            self._synchronized = False  # there will be no step

    def _on_end_of_step(self, *_: Any) -> None:
        self._synchronized = False
        self._after()
        self.steps += 1

    # ---- tools ----

    def _average_all(self, packed: Packed) -> None:
        """All ranks' parameters are their average then."""
        packed.copy_in()
        wait_all(average(packed, f"{self._prefix}all", self.process_set))
        packed.copy_out()

    def _average_gradients(self, parameters: Sequence[Any]) -> None:
        """Of all ranks, in place. Missing gradients count as zeros."""
        if self._ranks == 1:
            return
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            elif p.grad.is_sparse:
                p.grad = p.grad.to_dense()
        for kind, gradients in _by_kind([p.grad for p in parameters]).items():
            name = f"{self._prefix}gradients {kind}"
            grouped_allreduce_async_(
                gradients, name=name, op=Average, process_set=self.process_set
            ).wait()


def _by_kind(tensors: Sequence[torch.Tensor]) -> dict[str, list[torch.Tensor]]:
    kinds: dict[str, list[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault(f"{tensor.device.type} {tensor.dtype}", []).append(tensor)
    return kinds


class Packed:
    """A copy of tensors, joined: one flat tensor a device and type. The tensors' memory is left
    alone until `copy_out`, so that a copy can be under way while they are used."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._kinds = list(_by_kind(tensors).items())
        self.names = [kind for kind, _ in self._kinds]
        self.values = [
            torch.zeros(sum(t.numel() for t in own), dtype=own[0].dtype, device=own[0].device)
            for _, own in self._kinds
        ]

    def _pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [
            (tensor, part.view(tensor.shape))
            for (_, own), value in zip(self._kinds, self.values, strict=True)
            for tensor, part in zip(own, torch.split(value, [t.numel() for t in own]), strict=True)
        ]

    @torch.no_grad()
    def copy_in(self) -> None:
        """From the tensors."""
        for tensor, part in self._pairs():
            part.copy_(tensor)

    @torch.no_grad()
    def copy_out(self) -> None:
        """Back to them."""
        for tensor, part in self._pairs():
            tensor.copy_(part)

    @torch.no_grad()
    def add_out(self) -> None:
        """Adds it to them."""
        for tensor, part in self._pairs():
            tensor.add_(part)


def average(
    packed: Packed, name: str, process_set: ProcessSet
) -> list[core.Handle[list[torch.Tensor]]]:
    """Averages it over all ranks, in place, in the background."""
    return [
        grouped_allreduce_async_([value], name=f"{name} {kind}", process_set=process_set)
        for kind, value in zip(packed.names, packed.values, strict=True)
    ]


def average_compressed(
    tensors: Sequence[torch.Tensor], name: str, compression: Any, process_set: ProcessSet
) -> list[torch.Tensor]:
    """New tensors: the averages over all ranks, in few bits on the way where their type has
    such."""
    averages: dict[torch.Tensor, torch.Tensor] = {}
    for kind, own in _by_kind(tensors).items():
        means = grouped_allreduce(
            own, name=f"{name} {kind}", compression=compression, process_set=process_set
        )
        averages.update(zip(own, means, strict=True))
    return [averages[tensor] for tensor in tensors]


def wait_all(handles: list[Any]) -> None:
    """For all of them, which are then forgotten."""
    flights = list(handles)
    handles.clear()
    for flight in flights:
        flight.wait()
