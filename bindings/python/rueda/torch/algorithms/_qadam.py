"""qadam: Adam whose variance stays as it is after a warm-up; from then on ranks average the
momentum, compressed, instead of gradients (QAdam: Bagua, arXiv 2107.01499; 1-bit Adam: arXiv
2102.02888)."""

from __future__ import annotations

from typing import Any

import torch

from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.torch.algorithms._algorithm import (
    NamedParameters,
    SteppingAlgorithm,
    average_compressed,
)


class QAdam(SteppingAlgorithm):
    """For Adam and AdamW.

    Args:
        warmup_steps: so many steps are Adam's own, by the average of gradients.
        hierarchical: not looked at: on several hosts a host's ranks add up first in any case.
        compression: of momenta, on their way.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedParameters = None,
        *,
        warmup_steps: int = 100,
        hierarchical: bool = True,
        compression: Any = "int8",
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if not isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
            raise TypeError(f"qadam needs an Adam or AdamW, not a {type(optimizer).__name__}")
        if warmup_steps < 1:
            raise ValueError("warmup_steps must be at least 1")
        for option in ("amsgrad", "maximize"):
            if any(group[option] for group in optimizer.param_groups):
                raise ValueError(f"qadam does not go with {option}")
        super().__init__(optimizer, named_parameters, process_set)
        self._warmup = warmup_steps
        self._compression = compression
        self._own_gradients: list[tuple[Any, Any]] = []  # of those that are past the warm-up

    def synchronize(self) -> None:
        """Averages gradients of parameters in the warm-up; the others' are this rank's own."""
        self._average_gradients([p for p in self._parameters if not self._is_steady(p)])
        self._synchronized = True

    def _is_steady(self, p: Any) -> bool:
        """Whether its warm-up is over: the same on all ranks, and known after loading."""
        state = self.optimizer.state.get(p)
        return bool(state) and int(state["step"]) >= self._warmup

    def _before(self) -> None:
        """Those in the warm-up are stepped by the optimizer, which skips what has no gradient."""
        self._own_gradients = [(p, p.grad) for p in self._parameters if self._is_steady(p)]
        for p, _ in self._own_gradients:
            p.grad = None

    @torch.no_grad()
    def _after(self) -> None:
        moved, self._own_gradients = self._own_gradients, []
        if not moved:
            return
        groups = {p: group for group in self.optimizer.param_groups for p in group["params"]}
        steps = []
        for p, gradient in moved:
            p.grad = gradient
            state, group = self.optimizer.state[p], groups[p]
            gradient = torch.zeros_like(p) if gradient is None else gradient
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            if group["weight_decay"] != 0 and not self._is_decoupled(group):
                gradient = gradient.add(p, alpha=group["weight_decay"])
            state.setdefault("variance_steps", int(state["step"]))
            state["exp_avg"].lerp_(gradient, 1 - float(group["betas"][0]))
            state["step"] += 1
            step = state["exp_avg"] / _divisor(state, group)
            # What never had a gradient in the warm-up has no scale: it stays where it is.
            steps.append(step.masked_fill_(state["exp_avg_sq"] == 0, 0))
        if self._ranks > 1:
            # Momenta over their scales, which all ranks have alike: what compression loses is
            # small beside each step. Of momenta it could be many times the step where the
            # variance is small.
            name = f"{self._prefix}momentum"
            steps = average_compressed(steps, name, self._compression, self.process_set)
        for (p, _), step in zip(moved, steps, strict=True):
            state, group = self.optimizer.state[p], groups[p]
            share = 1 - float(group["betas"][0]) ** int(state["step"])
            if self._is_decoupled(group):
                p.mul_(1 - float(group["lr"]) * group["weight_decay"])
            p.sub_(step, alpha=float(group["lr"]) / share)
            state["exp_avg"].copy_(step * _divisor(state, group))

    def _is_decoupled(self, group: dict[str, Any]) -> bool:
        is_adamw = isinstance(self.optimizer, torch.optim.AdamW)
        return bool(group.get("decoupled_weight_decay", is_adamw))


def _divisor(state: dict[str, Any], group: dict[str, Any]) -> torch.Tensor:
    """By what the momentum is divided: the variance as it was left, without its bias."""
    share = 1 - float(group["betas"][1]) ** state["variance_steps"]
    return state["exp_avg_sq"].sqrt().div_(share**0.5).add_(group["eps"])  # type: ignore[no-any-return]
