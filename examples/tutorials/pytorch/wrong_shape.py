"""A mistake: the net is wider on rank 1 than on rank 0. Both get the same error.

ruedarun -np 2 python wrong_shape.py
"""

import torch.nn as nn

import rueda.torch as hvd

hvd.init()
width = 32 + hvd.rank()
model = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
