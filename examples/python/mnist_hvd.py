"""Trains a classifier of handwritten digits with plain torch, in the manner of Horovod.

    ruedarun -np 2 python examples/python/mnist_hvd.py
"""

from __future__ import annotations

import argparse

import digits
import torch
import torch.nn.functional as F
from net import Net

import rueda.torch as hvd


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--compression", default="none", help="fp16, bf16, int8, ...")
    arguments = parser.parse_args()

    hvd.init()
    torch.manual_seed(hvd.rank())
    images, labels, test_images, test_labels = map(torch.from_numpy, digits.load())
    data = torch.utils.data.TensorDataset(images, labels)
    sampler = torch.utils.data.DistributedSampler(data, hvd.size(), hvd.rank(), drop_last=True)
    batches = torch.utils.data.DataLoader(data, arguments.batch_size, sampler=sampler)

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), compression=getattr(hvd.Compression, arguments.compression)
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for x, y in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        mean_loss = hvd.allreduce(loss.detach(), name="loss")
        if hvd.rank() == 0:
            print(f"epoch={epoch + 1} loss={mean_loss:.4f}", flush=True)

    model.eval()
    part = slice(hvd.rank(), None, hvd.size())  # each rank tests its own part
    with torch.no_grad():
        right = (model(test_images[part]).argmax(1) == test_labels[part]).sum()
    right = hvd.allreduce(right, op=hvd.Sum, name="right")
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    equal = len(set(hvd.allgather_object(weights.numpy().tobytes()))) == 1
    if hvd.rank() == 0:
        print(f"test_accuracy={right / len(test_labels):.4f} replicas_equal={str(equal).lower()}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
