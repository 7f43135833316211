"""A mistake: rank 1 brings one number more than rank 0. Both get the same error, and go on.

ruedarun -np 2 python wrong_shape.py
"""

import torch

import rueda
import rueda.torch as hvd

hvd.init()
gradient = torch.ones(3 + hvd.rank())
try:
    hvd.allreduce(gradient, name="gradient")
except rueda.MismatchError as error:
    print(error, flush=True)
mean = hvd.allreduce(gradient[:3], name="gradient")
print(f"rank {hvd.rank()} goes on: {mean.tolist()}")
hvd.shutdown()
