#!/usr/bin/env python3
"""Horovod's allreduce of float32, in place, as rueda_bench measures its own: one JSON line per size.

horovodrun -np N horovod_bench.py ROW BYTES|COUNTxBYTES...
"""
import sys

import horovod.torch as hvd
import torch

import timing


def mean(value):
    return hvd.allreduce(torch.tensor([value]), op=hvd.Average, name="mean").item()


def blocking(size):
    name = f"blocking{size}"
    tensor = torch.ones(size // 4)
    hvd.allreduce_(tensor, op=hvd.Sum, name=name)
    assert torch.equal(tensor, torch.full_like(tensor, hvd.size())), "wrong result"
    tensor.zero_()
    return timing.measure(lambda: hvd.allreduce_(tensor, op=hvd.Sum, name=name), size, mean)


def batch(count, size):
    # Horovod's cache of responses holds 1,024 names, all of those of a run.
    tensors = [torch.zeros(size // 4) for _ in range(count)]
    names = [f"batch{size}.{i}" for i in range(count)]

    def burst():
        for handle in [hvd.allreduce_async_(tensor, op=hvd.Sum, name=name)
                       for tensor, name in zip(tensors, names)]:
            hvd.synchronize(handle)

    return timing.measure(burst, count * size, mean, before=lambda: mean(0.0))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    hvd.init()
    for operand in sys.argv[2:]:
        count, size = timing.parse(operand)
        times = batch(count, size) if count else blocking(size)
        if hvd.rank() == 0:
            timing.report(sys.argv[1], hvd.size(), count, size, times)
    hvd.shutdown()
