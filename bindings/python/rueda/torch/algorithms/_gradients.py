"""gradient_allreduce and bytegrad: all ranks step by the average of their gradients."""

from __future__ import annotations

from typing import Any

import torch

from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.torch._operations import Average, Sum
from rueda.torch._optimizer import DistributedOptimizer
from rueda.torch.algorithms._algorithm import Algorithm, NamedParameters


class GradientAllreduce(Algorithm):
    """Gradients are averaged while the backward pass computes them: `DistributedOptimizer`.

    Args:
        average: else they are added up.
        hierarchical: not looked at: on several hosts a host's ranks add up first in any case.
        compression: how gradients are made smaller on their way; None: not.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedParameters = None,
        *,
        average: bool = True,
        hierarchical: bool = True,
        compression: Any = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(optimizer, named_parameters, process_set)
        self.optimizer = DistributedOptimizer(
            optimizer,
            self._named,
            compression=compression,
            op=Average if average else Sum,
            process_set=process_set,
        )

    def set_passes(self, passes: int) -> None:
        """How many backward passes add their gradients up before they are sent."""
        self.optimizer.set_backward_passes_per_step(passes)

    def synchronize(self) -> None:
        """Waits for the gradients of all ranks."""
        self.optimizer.synchronize()

    def close(self) -> None:
        """The optimizer is a plain one again."""
        self.optimizer.remove_hooks()


class ByteGrad(GradientAllreduce):
    """The same with gradients in 8 bits, and nothing remembered of what that loses."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedParameters = None,
        *,
        average: bool = True,
        hierarchical: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(
            optimizer,
            named_parameters,
            average=average,
            hierarchical=hierarchical,
            compression="int8,no_feedback",
            process_set=process_set,
        )
