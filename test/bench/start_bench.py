#!/usr/bin/env python3
"""Where the time of a start goes: from `ruedarun` to the first allreduce, and to the end of the job.

    test/bench/start_bench.py [--build DIR] [--np 64] [--hosts 8] [--rounds 5]

Runs as many ranks on this host, and on hosts that are network namespaces of this machine, reached by `ip netns exec`
in the place of ssh (needs root; without it only the first). Prints medians over rounds, in ms. A phase lasts until the
last rank is through.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "clusters")]
import hosts  # noqa: E402

PHASES = ("in main", "met", "first allreduce", "second", "ended", "all")
SHELL = '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1\nshift\nexec ip netns exec "$host" sh -c "$*"\n'


def run(command):
    """How long each phase took, in s."""
    begin = time.monotonic()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True)
    end = time.monotonic()
    ranks = [[int(word) / 1e9 for word in line.split()[1:]] for line in done.stdout.splitlines() if line.startswith("times")]
    marks = [begin, *(max(times) for times in zip(*ranks)), end]
    return [after - before for before, after in zip(marks, marks[1:])] + [end - begin]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(HERE.parent.parent / "build" / "release"))
    parser.add_argument("--np", type=int, default=64)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    words = [f"{args.build}/bin/ruedarun", "--prefix", "none", "-np", str(args.np)]
    program = f"{args.build}/bin/start_phases"
    places = {f"{args.np} ranks, one host": [*words, program]}
    cluster = None
    if reason := hosts.why_not():
        print(f"one host alone: {reason}", file=sys.stderr)
    else:
        cluster = hosts.Hosts(args.hosts)
        shell = pathlib.Path(tempfile.mkdtemp(), "shell")
        shell.write_text(SHELL, encoding="ascii")
        shell.chmod(0o755)
        slots = ",".join(f"{name}:{args.np // args.hosts}" for name in cluster.names)
        places[f"{args.np} ranks, {args.hosts} hosts"] = cluster.command(
            0, *words, "--remote-shell", str(shell), "-H", slots, program)
    try:
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; ms\n{'':24}" + "".join(f"{p:>17}" for p in PHASES))
        for place, command in places.items():
            found = [run(command) for _ in range(args.rounds)]
            print(f"{place:24}" + "".join(f"{statistics.median(times) * 1e3:17.1f}" for times in zip(*found)), flush=True)
    finally:
        if cluster:
            cluster.remove()


if __name__ == "__main__":
    main()
