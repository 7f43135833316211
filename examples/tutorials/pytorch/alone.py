"""Trains a small net in one process: which points of a square lie in a circle?

python alone.py [EPOCHS]
"""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 5

torch.manual_seed(1)
points = torch.rand(1024, 2) * 2 - 1
inside = (points.norm(dim=1) < 0.7).long()

model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)

for epoch in range(epochs):
    for batch in torch.randperm(len(points)).split(64):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(points[batch]), inside[batch])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss:.3f}")

right = (model(points).argmax(1) == inside).float().mean()
print(f"right: {right:.1%}")
