"""What calls of torch.distributed with 4 bytes take over Rueda and over Gloo, on two ranks.

    PYTHONPATH=build/release/python python3 test/bench/python_distributed_bench.py

Medians of runs of 300 calls, the backends alternating; microseconds. A ping-pong is two messages.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import rueda

ROUNDS, CALLS = 11, 300
BACKENDS = ("rueda", "gloo")


def times() -> dict[tuple[str, str], float]:
    import torch
    import torch.distributed as dist

    import rueda.distributed

    dist.init_process_group("rueda")
    rank = dist.get_rank()
    groups = {backend: dist.new_group([0, 1], backend=backend) for backend in BACKENDS}
    tensor = torch.zeros(1)

    def calls(group: dist.ProcessGroup) -> dict[str, Callable[[], object]]:
        def ping_pong(source: int | None = 1) -> None:
            if rank == 0:
                dist.recv(tensor, source, group)
                dist.send(tensor, 1, group)
            else:
                dist.send(tensor, 0, group)
                dist.recv(tensor, 0, group)

        return {
            "all_reduce": lambda: dist.all_reduce(tensor, group=group),
            "all_reduce, async_op": lambda: dist.all_reduce(
                tensor, group=group, async_op=True
            ).wait(),
            "broadcast": lambda: dist.broadcast(tensor, 0, group),
            "barrier": lambda: dist.barrier(group),
            "ping-pong": ping_pong,
            "ping-pong from any source": lambda: ping_pong(None),
        }

    took: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for backend, group in groups.items():
            for name, call in calls(group).items():
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(CALLS):
                    call()
                each = (time.perf_counter() - begin) / CALLS * 1e6
                took.setdefault((name, backend), []).append(each)
    dist.destroy_process_group()
    return {key: statistics.median(values) for key, values in took.items()}


def main() -> None:
    found = rueda.run(times, np=2)[0]
    print(f"{'us a call':32}{'rueda':>8}{'gloo':>8}{'ratio':>8}")
    for name in dict.fromkeys(name for name, _ in found):
        ours, theirs = (found[name, backend] for backend in BACKENDS)
        print(f"{name:32}{ours:8.1f}{theirs:8.1f}{ours / theirs:8.2f}")


if __name__ == "__main__":
    main()
