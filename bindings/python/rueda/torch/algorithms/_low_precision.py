"""low_precision_decentralized: ranks in a ring step by their own gradients, and send both
neighbors in 8 bits by how much they have moved (DCD-PSGD, arXiv 1803.06443; Bagua, arXiv
2107.01499).

A rank knows what its neighbors know of it: of itself and of both, which all three change by the
same decoded difference. So errors of the quantizer don't add up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from rueda import core
from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.torch.algorithms._algorithm import (
    NamedParameters,
    Packed,
    SteppingAlgorithm,
    wait_all,
)

_BLOCK = 512  # numbers that share a scale


class _Coded(NamedTuple):
    """256 steps between the least and the largest number of each block, as the compressor int8."""

    levels: torch.Tensor  # uint8, blocks x _BLOCK
    extremes: torch.Tensor  # float32, blocks x 2


def _empty(elements: int, device: torch.device) -> _Coded:
    blocks = -(-elements // _BLOCK)
    return _Coded(
        torch.empty((blocks, _BLOCK), dtype=torch.uint8, device=device),
        torch.empty((blocks, 2), device=device),
    )


def _encode(values: torch.Tensor) -> _Coded:
    more = -values.numel() % _BLOCK
    # Zeros would be the last block's least or largest.
    padded = torch.cat([values, values[-1:].expand(more)]) if more else values
    rows = padded.view(-1, _BLOCK)
    least, largest = rows.amin(1, True), rows.amax(1, True)
    step = ((largest - least) / 255).clamp_min(1e-30)
    levels = ((rows - least) / step + 0.5).floor().clamp(0, 255).to(torch.uint8)
    return _Coded(levels, torch.cat([least, largest], 1))


def _decode(coded: _Coded, elements: int) -> torch.Tensor:
    least, largest = torch.split(coded.extremes, 1, 1)
    values = coded.levels * ((largest - least) / 255) + least
    return values.view(-1)[:elements]


class LowPrecisionDecentralized(SteppingAlgorithm):
    """For parameters of float32 on one device.

    Args:
        communication_interval: ranks tell each other in every so many steps.
    """

    differs = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedParameters = None,
        *,
        communication_interval: int = 1,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if communication_interval < 1:
            raise ValueError("communication_interval must be at least 1")
        super().__init__(optimizer, named_parameters, process_set)
        self._interval = communication_interval
        self._packed = Packed(self._parameters)
        if [value.dtype for value in self._packed.values] != [torch.float32]:
            raise ValueError(
                "low_precision_decentralized is for parameters of float32 on one device, of which "
                f"one at least is not frozen; these are of: {', '.join(self._packed.names)}"
            )
        me, ranks = process_set.rank(), process_set.ranks
        self._left, self._right = ranks[me - 1], ranks[(me + 1) % self._ranks]
        self._remember()

    def finish(self) -> None:
        """All parameters are the average of all ranks' then."""
        if self._ranks == 1:
            return
        self._average_all(self._packed)
        self._remember()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from parameters that all ranks have alike."""
        super().load_state_dict(state)
        self._remember()

    def _remember(self) -> None:
        """All ranks have the same."""
        self._packed.copy_in()
        own = self._packed.values[0]
        self._known = own.clone(), own.clone(), own.clone()

    @torch.no_grad()
    def _after(self) -> None:
        if self._ranks == 1 or (self.steps + 1) % self._interval != 0:
            return
        self._packed.copy_in()
        share = self._packed.values[0]
        own, left, right = self._known
        change = _encode(share + left / 3 + right / 3 - own * (5 / 3))
        from_left = _empty(share.numel(), share.device)
        from_right = _empty(share.numel(), share.device)
        flights: list[Any] = []
        # With two ranks both neighbors are one: what goes left has another name than what goes
        # right.
        for what in _Coded._fields:
            name, of_set = f"{self._prefix}{what}", {"process_set": self.process_set}
            sent = getattr(change, what)
            flights += [
                core.send_async(sent, self._left, f"{name} left", **of_set),
                core.send_async(sent, self._right, f"{name} right", **of_set),
                core.recv_async_(getattr(from_right, what), self._right, f"{name} left", **of_set),
                core.recv_async_(getattr(from_left, what), self._left, f"{name} right", **of_set),
            ]
        wait_all(flights)
        own.add_(_decode(change, share.numel()))
        left.add_(_decode(from_left, share.numel()))
        right.add_(_decode(from_right, share.numel()))
        share.copy_(own)
        self._packed.copy_out()
