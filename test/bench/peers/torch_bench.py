#!/usr/bin/env python3
"""torch.distributed.all_reduce over Gloo, as rueda_bench measures its own: one JSON line per size.

torch_bench.py RANKS BYTES|COUNTxBYTES...
"""
import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import timing


def mean(value):
    tensor = torch.tensor([value])
    dist.all_reduce(tensor)
    return tensor.item() / dist.get_world_size()


def blocking(size):
    tensor = torch.ones(size // 4)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full_like(tensor, dist.get_world_size())), "wrong result"
    tensor.zero_()
    return timing.measure(lambda: dist.all_reduce(tensor), size, mean)


def batch(count, size):
    tensors = [torch.zeros(size // 4) for _ in range(count)]

    def burst():
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    return timing.measure(burst, count * size, mean, before=dist.barrier)


def run(rank, ranks, port, operands):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for operand in operands:
        count, size = timing.parse(operand)
        times = batch(count, size) if count else blocking(size)
        if rank == 0:
            timing.report("torch", ranks, count, size, times)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        free_port = free.getsockname()[1]
    mp.spawn(run, (int(sys.argv[1]), free_port, sys.argv[2:]), nprocs=int(sys.argv[1]))
