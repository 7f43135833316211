"""Elastic jobs with PyTorch, in the manner of Horovod.

state = hvd.elastic.TorchState(model, optimizer, epoch=0, batch=0)

@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, epochs):
        for state.batch in range(state.batch, batches):
            ...
            state.commit()
        state.batch = 0

train(state)
"""

from rueda.core.elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    Own,
    Sharded,
    State,
    run,
)
from rueda.torch.elastic._sampler import ElasticSampler
from rueda.torch.elastic._state import TorchState

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "Own",
    "Sharded",
    "State",
    "TorchState",
    "run",
]
