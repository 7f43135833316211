"""Trains a classifier of handwritten digits with torch's own DistributedDataParallel, over Rueda.

    ruedarun -np 2 python examples/python/mnist_ddp.py
    torchrun --nproc-per-node 2 examples/python/mnist_ddp.py

What is Rueda's are the import and the backend's name.
"""

from __future__ import annotations

import argparse

import digits
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from net import Net

import rueda.distributed  # noqa: F401


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--backend", default="rueda", help="gloo, to compare")
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    images, labels, test_images, test_labels = map(torch.from_numpy, digits.load())
    data = torch.utils.data.TensorDataset(images, labels)
    sampler = torch.utils.data.DistributedSampler(data, drop_last=True)
    batches = torch.utils.data.DataLoader(data, arguments.batch_size, sampler=sampler)

    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for x, y in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        mean_loss = loss.detach().clone()
        dist.all_reduce(mean_loss)
        if rank == 0:
            print(f"epoch={epoch + 1} loss={mean_loss / size:.4f}", flush=True)

    model.eval()
    part = slice(rank, None, size)  # each rank tests its own part
    with torch.no_grad():
        right = (model.module(test_images[part]).argmax(1) == test_labels[part]).sum()
    dist.all_reduce(right)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    everybody = [torch.empty_like(weights) for _ in range(size)]
    dist.all_gather(everybody, weights)
    equal = all(torch.equal(other, weights) for other in everybody)
    if rank == 0:
        print(f"test_accuracy={right / len(test_labels):.4f} replicas_equal={str(equal).lower()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
