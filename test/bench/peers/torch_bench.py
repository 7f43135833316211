#!/usr/bin/env python3
"""torch.distributed.all_reduce over Gloo, as rueda_bench measures its own: one JSON line per size.

torch_bench.py [--on INTERFACE ADDRESS PORT FIRST COUNT] [--op OPERATION] [--dtype DTYPE] RANKS BYTES|COUNTxBYTES...

--on: only COUNT of the ranks, from FIRST on, over that interface; the others are on other hosts. Rank 0 listens at
ADDRESS and PORT. --op: another of rueda_bench's, blocking; a broadcast begins behind a barrier, and is over when the
last rank has it.
"""
import argparse
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import timing


def agree(value, op):
    tensor = torch.tensor([value])
    dist.all_reduce(tensor, op)
    return tensor.item()


def mean(value):
    return agree(value, dist.ReduceOp.SUM) / dist.get_world_size()


def blocking(op, dtype, size):
    """Microseconds of each call, and of how many bytes."""
    ranks = dist.get_world_size()
    if op in ("alltoall", "reducescatter"):  # whole shares, as rueda_bench
        size = -(-size // (4 * ranks)) * 4 * ranks
    tensor = torch.ones(size // dtype.itemsize, dtype=dtype)
    if op == "allreduce":
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full_like(tensor, ranks)), "wrong result"
        tensor.zero_()
    result = torch.empty(tensor.numel() * (ranks if op == "allgather" else 1), dtype=dtype)
    call = {"allreduce": lambda: dist.all_reduce(tensor),
            "broadcast": lambda: dist.broadcast(tensor, 0),
            "allgather": lambda: dist.all_gather_into_tensor(result, tensor),
            "alltoall": lambda: dist.all_to_all_single(result, tensor),
            "reducescatter": lambda: dist.reduce_scatter_tensor(result[: tensor.numel() // ranks], tensor),
            "barrier": dist.barrier}[op]
    if op != "broadcast":
        return size, timing.measure(call, size, mean)
    times = timing.measure(call, size, mean, before=dist.barrier)
    times[len(times) // 2] = agree(times[len(times) // 2], dist.ReduceOp.MAX)
    return size, times


def batch(count, size):
    tensors = [torch.zeros(size // 4) for _ in range(count)]

    def burst():
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    return timing.measure(burst, count * size, mean, before=dist.barrier)


def run(index, args):
    network, address, port, first, _ = args.on
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=port, GLOO_SOCKET_IFNAME=network)
    rank = int(first) + index
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    for operand in args.operands:
        count, size = timing.parse(operand)
        if count:
            times = batch(count, size)
        else:
            size, times = blocking(args.op, getattr(torch, args.dtype), size)
        if rank == 0:
            timing.report("torch", args.ranks, count, size, times, args.op)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", nargs=5)
    parser.add_argument("--op", default="allreduce")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("ranks", type=int)
    parser.add_argument("operands", nargs="+")
    args = parser.parse_args()
    if not args.on:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            args.on = ("lo", "127.0.0.1", str(free.getsockname()[1]), "0", str(args.ranks))
    mp.spawn(run, (args,), nprocs=int(args.on[4]))


if __name__ == "__main__":
    main()
