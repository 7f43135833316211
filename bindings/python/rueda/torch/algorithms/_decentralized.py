"""decentralized: ranks step by their own gradients, from the average of parameters (D-PSGD, arXiv
1705.09056). With a closure, the average is under way while gradients are computed."""

from __future__ import annotations

from typing import Any

import torch

from rueda import core
from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.torch.algorithms._algorithm import (
    NamedParameters,
    Packed,
    SteppingAlgorithm,
    average,
    wait_all,
)


class Decentralized(SteppingAlgorithm):
    """Every rank averages its parameters with the others', or with one other rank's, and steps
    from there by its own gradient.

    Args:
        peer_selection_mode: "all", or "shift_one": one other, another one each time; for an even
            number of ranks.
        communication_interval: in every so many steps.
    """

    differs = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedParameters = None,
        *,
        peer_selection_mode: str = "all",
        communication_interval: int = 1,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if peer_selection_mode not in ("all", "shift_one"):
            raise ValueError(
                f"peer_selection_mode is {peer_selection_mode!r}; there are 'all' and 'shift_one'"
            )
        ranks = process_set.size()
        if peer_selection_mode == "shift_one" and ranks > 1 and ranks % 2 != 0:
            raise ValueError(f"'shift_one' goes with an even number of ranks; there are {ranks}")
        if communication_interval < 1:
            raise ValueError("communication_interval must be at least 1")
        super().__init__(optimizer, named_parameters, process_set)
        self._shifts = peer_selection_mode == "shift_one"
        self._interval = communication_interval
        self._mine = Packed(self._parameters)
        self._theirs = [torch.empty_like(v) for v in self._mine.values] if self._shifts else []
        self._flights: list[Any] = []

    def finish(self) -> None:
        """All parameters are the average of all ranks' then."""
        if self._ranks == 1:
            return
        wait_all(self._flights)
        self._average_all(self._mine)

    def _begin(self) -> None:
        if self._ranks == 1 or self.steps % self._interval != 0 or self._flights:
            return
        self._mine.copy_in()
        name = f"{self._prefix}parameters"
        if not self._shifts:
            self._flights += average(self._mine, name, self.process_set)
            return
        peer = self.process_set.ranks[self._peer()]
        for kind, mine, theirs in zip(
            self._mine.names, self._mine.values, self._theirs, strict=True
        ):
            of_set = {"process_set": self.process_set}
            self._flights.append(core.send_async(mine, peer, f"{name} {kind}", **of_set))
            self._flights.append(core.recv_async_(theirs, peer, f"{name} {kind}", **of_set))

    def _before(self) -> None:
        if not self._flights:
            return
        wait_all(self._flights)
        for mine, theirs in zip(self._mine.values, self._theirs, strict=False):
            mine.add_(theirs).mul_(0.5)
        self._mine.copy_out()

    def _peer(self) -> int:
        """Whom this one meets: each of the first half each of the second in turn."""
        me, half = self.process_set.rank(), self._ranks // 2
        shift = self.steps // self._interval % half
        return half + (me + shift) % half if me < half else (me - half - shift) % half
