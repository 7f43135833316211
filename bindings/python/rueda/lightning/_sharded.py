"""ZeRO-1: each rank keeps a part of the optimizers' state."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from rueda.lightning._ddp import RuedaStrategy
from rueda.lightning._optimizers import replace_optimizers


def _shared_out(optimizer: torch.optim.Optimizer) -> Any:
    """torch's ZeroRedundancyOptimizer of the same class, groups and settings. The optimizer must
    not have state yet."""
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        return optimizer
    kind = type(optimizer)
    taken = inspect.signature(kind.__init__).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())
    settings = {k: v for k, v in optimizer.defaults.items() if takes_all or k in taken}
    groups: Any = optimizer.param_groups
    return ZeroRedundancyOptimizer(groups, optimizer_class=kind, **settings)


class DDPShardedStrategy(RuedaStrategy):
    """DistributedDataParallel, with the optimizers' state shared out among the ranks: each updates
    its part of the parameters, and tells it the others. A checkpoint has all of it.

    For optimizers that take the settings in `defaults` for arguments, as all of torch's do.

    Args:
        kwargs: of `RuedaStrategy`.
    """

    strategy_name = "ddp_sharded"

    def setup_optimizers(self, trainer: Any) -> None:
        """Shares them out."""
        super().setup_optimizers(trainer)
        replace_optimizers(self, [_shared_out(optimizer) for optimizer in self.optimizers])
