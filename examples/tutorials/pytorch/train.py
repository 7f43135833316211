"""Trains the net of alone.py on several ranks, each with its part of every batch.

ruedarun -np 2 python train.py [EPOCHS]
"""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

import rueda.torch as hvd

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
hvd.init()

torch.manual_seed(1)
points = torch.rand(1024, 2) * 2 - 1
inside = (points.norm(dim=1) < 0.7).long()

model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

for epoch in range(epochs):
    for batch in torch.randperm(len(points)).split(64):
        batch = batch[hvd.rank() :: hvd.size()]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(points[batch]), inside[batch])
        loss.backward()
        optimizer.step()
    loss = hvd.allreduce(loss.detach(), name="loss")
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1}: loss {loss:.3f}", flush=True)

right = (model(points).argmax(1) == inside).float().mean()
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
replicas = hvd.allgather(weights.unsqueeze(0), name="weights")
equal = bool((replicas == replicas[0]).all())
if hvd.rank() == 0:
    print(f"right: {right:.1%}, replicas equal: {equal}")
hvd.shutdown()
