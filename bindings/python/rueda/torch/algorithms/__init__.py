"""Bagua's algorithms (arXiv 2107.01499): other ways to train one model on several ranks.

    import rueda.torch as hvd
    from rueda.torch import algorithms

    hvd.init()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    algorithm = algorithms.make("decentralized", optimizer, model.named_parameters())
    optimizer = algorithm.optimizer
    for x, y in batches:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    algorithm.finish()  # before the model is evaluated or saved

They mean what the strategies of the same names do (docs/guides/strategies.md).
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from rueda.torch.algorithms._algorithm import Algorithm, NamedParameters
from rueda.torch.algorithms._asynchronous import Async
from rueda.torch.algorithms._decentralized import Decentralized
from rueda.torch.algorithms._gradients import ByteGrad, GradientAllreduce
from rueda.torch.algorithms._low_precision import LowPrecisionDecentralized
from rueda.torch.algorithms._qadam import QAdam

ALGORITHMS: dict[str, type[Algorithm]] = {
    "gradient_allreduce": GradientAllreduce,
    "bytegrad": ByteGrad,
    "qadam": QAdam,
    "decentralized": Decentralized,
    "low_precision_decentralized": LowPrecisionDecentralized,
    "async": Async,
}


def check_name(name: str) -> None:
    """Raises a ValueError if there is no algorithm of this name."""
    if name not in ALGORITHMS:
        raise ValueError(f"there is no algorithm {name!r}; there are {', '.join(ALGORITHMS)}")


def options_of(name: str) -> list[str]:
    """What the algorithm of this name may be told."""
    check_name(name)
    parameters = inspect.signature(ALGORITHMS[name]).parameters.values()
    return [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]


def make(
    name: str,
    optimizer: torch.optim.Optimizer,
    named_parameters: NamedParameters = None,
    **options: Any,
) -> Algorithm:
    """The algorithm of this name, for an optimizer. All ranks make it alike.

    Args:
        name: one of `ALGORITHMS`.
        optimizer: whose parameters all ranks have then as rank 0 has them.
        named_parameters: `model.named_parameters()`, or more than the optimizer has.
        options: those of the algorithm's class.
    """
    check_name(name)
    return ALGORITHMS[name](optimizer, named_parameters, **options)


__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Async",
    "ByteGrad",
    "Decentralized",
    "GradientAllreduce",
    "LowPrecisionDecentralized",
    "QAdam",
    "check_name",
    "make",
    "options_of",
]
