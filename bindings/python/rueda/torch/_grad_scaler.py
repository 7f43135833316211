"""torch.amp.GradScaler on several ranks: all unscale the gradients that they step by, and skip the
same steps.

A GradScaler multiplies gradients by 1 / scale, and when one of them is infinite or NaN it leaves
the step out and lowers its scale. So it has to look at gradients when the ranks' have been
combined, and what it finds on one rank counts on all. Only `GradScaler.unscale_`, which
`GradScaler.step` calls too, knows both the scale and the optimizer: it is extended, for optimizers
that ask for it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from rueda.core import _context
from rueda.core._process_sets import ProcessSet
from rueda.torch import _operations

# By device: above 0 if a gradient is infinite or NaN.
Found = dict[torch.device, torch.Tensor]


def follow(
    optimizer: Any,
    before: Callable[[], None],
    after: Callable[[Found], None] | None = None,
) -> None:
    """From now on `before` is called when a GradScaler is about to unscale the optimizer's
    gradients, and `after` when it has, with what it has found."""
    # What a fused optimizer does by itself, within step(), begins with a look before step().
    optimizer._step_supports_amp_scaling = False
    optimizer._rueda_unscale = (before, after)
    if not hasattr(torch.amp.GradScaler.unscale_, "_rueda"):
        extended = _extended(torch.amp.GradScaler.unscale_)
        torch.amp.GradScaler.unscale_ = extended  # type: ignore[method-assign]


def leave(optimizer: Any) -> None:
    """The opposite."""
    optimizer.__dict__.pop("_rueda_unscale", None)


# Those that have unscaled gradients.
_scalers: weakref.WeakSet[torch.amp.GradScaler] = weakref.WeakSet()


def _after_regroup(_: int) -> None:
    """What scalers have found in the gradients of a step that has failed is dropped."""
    for scaler in list(_scalers):
        scaler._per_optimizer_states.clear()


_context.after_regroup.append(_after_regroup)


def _extended(unscale: Any) -> Any:
    @functools.wraps(unscale)
    def extended(scaler: torch.amp.GradScaler, optimizer: Any) -> None:
        before, after = getattr(optimizer, "_rueda_unscale", (None, None))
        _scalers.add(scaler)
        if before is not None and scaler.is_enabled():
            before()
        unscale(scaler, optimizer)
        if after is not None and scaler.is_enabled():
            states: Any = scaler._per_optimizer_states
            after(states[id(optimizer)]["found_inf_per_device"])

    extended._rueda = True  # type: ignore[attr-defined]
    return extended


def agree(found: Found, name: str, process_set: ProcessSet) -> bool:
    """Whether some rank has found something, which all have from then on. Collective."""
    mine = torch.stack([each.cpu() for each in found.values()]).amax()
    worst = _operations.allreduce(mine, name=name, op=_operations.Max, process_set=process_set)
    for each in found.values():
        each.copy_(worst)
    return bool(worst > 0)
