"""async: ranks step by themselves, and are pulled to the average of all as it comes (Bagua's
asynchronous model average). A rank sends its parameters, goes on, and when the average of all has
arrived adds the difference from what it had sent: no step of its own is lost, and it waits for
nobody. A slower rank only makes averages come less often.

Averages are collective, so that at the end all ranks must have made equally many: with its
parameters each sends whether it is in finish(), and the one in which all are is the last.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.torch._operations import grouped_allreduce_async_
from rueda.torch.algorithms._algorithm import (
    NamedParameters,
    Packed,
    SteppingAlgorithm,
    average,
    wait_all,
)


class Async(SteppingAlgorithm):
    """Ranks step by themselves, and are pulled to the average of all.

    Args:
        sync_interval_ms: between two averages, at least.
        warmup_steps: in so many steps at first gradients are averaged instead.
        stale_steps_max: after so many steps a rank waits for an average that has not come.
    """

    differs = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedParameters = None,
        *,
        sync_interval_ms: float = 0.0,
        warmup_steps: int = 0,
        stale_steps_max: int = 16,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if sync_interval_ms < 0 or warmup_steps < 0 or stale_steps_max < 1:
            raise ValueError(
                "sync_interval_ms and warmup_steps must be at least 0, and stale_steps_max 1"
            )
        super().__init__(optimizer, named_parameters, process_set)
        self._interval = sync_interval_ms / 1000
        self._warmup = warmup_steps
        self._stale_steps_max = stale_steps_max
        self._average = Packed(self._parameters)
        self._sent = [torch.empty_like(value) for value in self._average.values]
        self._finishing = torch.zeros(1)  # whether this rank is; of an average, the share of those
        self._flights: list[Any] = []  # of an average
        self._stale = 0  # steps since it was sent
        self._next = 0.0

    def synchronize(self) -> None:
        """In the warm-up, averages gradients; afterwards they are this rank's own."""
        if self._steps_together():
            self._average_gradients(self._parameters)
        self._synchronized = True

    def finish(self) -> None:
        """Others may be on their way still: goes on averaging with them until all are here. All
        parameters are the average of all ranks' then."""
        if self._ranks == 1:
            return
        if self._flights:
            self._receive()
        while True:
            self._send(finishing=True)
            wait_all(self._flights)
            self._average.copy_out()  # nothing has been done meanwhile
            if self._finishing.item() >= 1:
                return

    def _steps_together(self) -> bool:
        return self.steps < self._warmup

    def _after(self) -> None:
        """Toward the average of all, if one is there or due."""
        if self._ranks == 1 or self._steps_together():
            return
        if not self._flights:
            if time.monotonic() >= self._next:
                self._send(finishing=False)
            return
        self._stale += 1
        if self._stale >= self._stale_steps_max or all(f.poll() for f in self._flights):
            self._receive()

    def _send(self, finishing: bool) -> None:
        self._average.copy_in()
        for sent, value in zip(self._sent, self._average.values, strict=True):
            sent.copy_(value)
        name = f"{self._prefix}parameters"
        self._flights += average(self._average, name, self.process_set)
        self._flights.append(
            grouped_allreduce_async_(
                [self._finishing.fill_(float(finishing))],
                name=f"{self._prefix}finishing",
                process_set=self.process_set,
            )
        )
        self._stale = 0
        self._next = time.monotonic() + self._interval

    def _receive(self) -> None:
        wait_all(self._flights)
        for value, sent in zip(self._average.values, self._sent, strict=True):
            value.sub_(sent)
        self._average.add_out()
