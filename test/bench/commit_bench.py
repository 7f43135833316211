"""What a commit of elastic state takes, and what it takes from the program while it is on its way to
another host.

    PYTHONPATH=build/release/python build/release/bin/ruedarun -np 2 --min-np 2 \
        -x RUEDA_HOSTS_FAKE=2 -x RUEDA_NETWORK_INTERFACE=lo python3 test/bench/commit_bench.py [MIB]

Two fake hosts, over loopback; without -x one host. MIB of float32 on each rank, 128 if not given, in
each of these ways, which take turns:

    replicated   in the rank's own memory
    rank         where neighbors open it (a rank alone on its host has none: it is as `host`)
    waits        to another host; the commit waits for it
    host         to another host; the commit does not wait

Then, while such a commit is on its way and while none is: allreduces of 4 KB and of 16 MiB, one at a
time. Medians of rank 0, and for allreduces the largest; milliseconds.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

import rueda
from rueda import elastic

ROUNDS, WARM_UP = 9, 3
MIB = int(sys.argv[1]) if len(sys.argv) > 1 else 128


class Commits:
    """One way."""

    def __init__(self, redundancy: str = "", waits: bool = False) -> None:
        count = MIB * 2**20 // 4
        if redundancy:
            value = elastic.Sharded(count * rueda.size(), redundancy=redundancy)
            self.on_its_way = lambda: value._sending
        else:
            value = np.zeros(count, np.float32)
            self.on_its_way = lambda: None
        self.state = elastic.ObjectState(value=value)
        self._waits = waits

    def commit(self) -> None:
        if self._waits:
            self.state.before_change()
            for _, value, _ in self.state._of_kinds():
                value.keep()
        else:
            self.state.commit()


def took(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - begin)


def while_on_its_way(commits: Commits, call: Callable[[], object]) -> Iterator[float]:
    """Times of calls that all ranks make as long as it is on its way on one."""
    commits.commit()
    while True:
        sending = commits.on_its_way()
        is_there = np.array([sending is None or sending.handle.poll()])
        if rueda.allreduce(is_there, "is there", op=rueda.Min)[0]:
            return
        yield took(call)


def main() -> None:
    rueda.init()
    os.environ["HOROVOD_HOSTNAME"] = f"host {rueda.cross_rank()}"  # fake hosts have one name
    ways = {
        "replicated": Commits(),
        "rank": Commits("rank"),
        "waits": Commits("host", waits=True),
        "host": Commits("host"),
    }
    times: dict[str, list[float]] = {}
    for round_ in range(WARM_UP + ROUNDS):
        for name, commits in ways.items():
            sending = commits.on_its_way()
            if sending is not None:
                sending.handle.wait()
            rueda.barrier()
            time.sleep(0.05)
            lasted = took(commits.commit)
            if round_ >= WARM_UP:
                times.setdefault(f"commit, {name}", []).append(lasted)
    for text, count in (("4 KB", 1024), ("16 MiB", 2**22)):
        tensor = np.ones(count, np.float32)

        def call(tensor=tensor) -> None:
            rueda.allreduce(tensor, "tensor")

        for _ in range(ROUNDS):
            rueda.barrier()
            times.setdefault(f"{text}, none on its way", []).extend(took(call) for _ in range(30))
            during = while_on_its_way(ways["host"], call)
            times.setdefault(f"{text}, one on its way", []).extend(during)
    if rueda.rank() == 0:
        for name, each in times.items():
            if not each:  # there is no other host
                continue
            print(
                f"{name:26}{statistics.median(each):9.3f}  at most {max(each):9.3f}  n {len(each)}"
            )
    rueda.shutdown()


main()
