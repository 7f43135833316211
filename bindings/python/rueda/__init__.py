"""Rueda: collective communication for data-parallel training.

    import numpy as np
    import rueda

    rueda.init()
    mean = rueda.allreduce(np.arange(3) * rueda.rank(), name="gradient")
    rueda.shutdown()

started as ``ruedarun -np 4 python program.py``, or by ``rueda.run``. Tensors are NumPy's arrays,
torch's tensors, and whatever has DLPack or the buffer protocol. ``import rueda.torch as hvd`` is in
the manner of Horovod.
"""

from rueda import core, errors
from rueda.core import *  # noqa: F403
from rueda.core import elastic
from rueda.errors import (
    AbortedError,
    DismissedError,
    LostRankError,
    MismatchError,
    NotInitializedError,
    RemoteError,
    RuedaError,
    StalledError,
    TimeIsUpError,
    UnsupportedError,
)
from rueda.run import run

__version__ = "0.1.0"

__all__ = [
    "AbortedError",
    "DismissedError",
    "LostRankError",
    "MismatchError",
    "NotInitializedError",
    "RemoteError",
    "RuedaError",
    "StalledError",
    "TimeIsUpError",
    "UnsupportedError",
    "elastic",
    "errors",
    "run",
]
__all__ += core.__all__
