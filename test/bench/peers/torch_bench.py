#!/usr/bin/env python3
"""torch.distributed.all_reduce over Gloo, as rueda_bench measures its own: one JSON line a size.

torch_bench.py RANKS BYTES...        blocking operations
torch_bench.py RANKS many COUNT SIZE COUNT asynchronous ones of SIZE bytes, waited for as one
"""
import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def iterations_for(size):
    if size <= 64 << 10:
        return 1000
    if size <= 1 << 20:
        return 200
    return 30 if size <= 16 << 20 else 8


def measure(action, iterations, before=lambda: None):
    times = []
    for i in range(-(iterations // 10 + 1), iterations):
        before()
        start = time.perf_counter()
        action()
        if i >= 0:
            times.append((time.perf_counter() - start) * 1e6)
    return sorted(times)


def report(rank, op, ranks, size, times):
    if rank != 0:
        return
    p50 = times[len(times) // 2]
    print(json.dumps({"peer": "torch", "op": op, "np": ranks, "bytes": size, "p50_us": round(p50, 2),
                      "min_us": round(times[0], 2), "p99_us": round(times[len(times) * 99 // 100], 2),
                      "algbw_GBps": round(size / p50 / 1e3, 3)}), flush=True)


def run(rank, ranks, port, arguments):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    if arguments[0] == "many":
        count, size = int(arguments[1]), int(arguments[2])
        tensors = [torch.zeros(size // 4) for _ in range(count)]

        def burst():
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

        report(rank, f"many_{count}x{size}", ranks, count * size, measure(burst, 20, dist.barrier))
    else:
        for size in map(int, arguments):
            tensor = torch.ones(size // 4)
            dist.all_reduce(tensor)
            assert torch.equal(tensor, torch.full_like(tensor, ranks)), "wrong result"
            tensor.zero_()
            report(rank, "allreduce", ranks, size,
                   measure(lambda: dist.all_reduce(tensor), iterations_for(size)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        free_port = free.getsockname()[1]
    mp.spawn(run, (int(sys.argv[1]), free_port, sys.argv[2:]), nprocs=int(sys.argv[1]))
