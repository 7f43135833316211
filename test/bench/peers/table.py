#!/usr/bin/env python3
"""Makes tables of what run.sh has measured: medians over the rounds, in microseconds.

table.py RESULTS.jsonl
"""
import collections
import json
import statistics
import sys

NAMES = {"rueda_registered": "**Rueda**, memory of `rueda_mem_alloc`", "rueda": "**Rueda**",
         "openmpi": "Open MPI", "gloo": "Gloo, its better algorithm", "torch": "torch.distributed, Gloo"}


def size_text(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(medians, ranks, keys, title, text):
    rows = [peer for peer in NAMES if any((peer, ranks, key) in medians for key in keys)]
    if not rows:
        return
    print(f"| {title} | " + " | ".join(text(key) for key in keys) + " |")
    print("|---" * (len(keys) + 1) + "|")
    for peer in rows:
        cells = [medians.get((peer, ranks, key)) for key in keys]
        print(f"| {NAMES[peer]} | " + " | ".join("" if c is None else number(c) for c in cells) + " |")
    print()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    rounds = collections.defaultdict(list)
    for line in open(sys.argv[1], encoding="utf-8"):
        row = json.loads(line)
        if row["op"] == "about":
            print(f"{row['cpu']}, {row['cores']} cores, {row['date']}, {row['scheduling']}. "
                  "Medians in µs.\n")
            continue
        peer = row.get("peer", "rueda")
        op = row["op"].removesuffix("_registered")
        if row["op"].endswith("_registered"):
            peer = "rueda_registered"
        key = row["bytes"] if op == "allreduce" else op
        rounds[peer, row["np"], key].append(row["p50_us"])
    medians = {key: statistics.median(values) for key, values in rounds.items()}
    for (peer, ranks, key), value in list(medians.items()):
        if peer.startswith("gloo_"):
            best = medians.get(("gloo", ranks, key), value)
            medians["gloo", ranks, key] = min(best, value)
    for ranks in sorted({ranks for _, ranks, _ in medians}):
        keys = {key for _, n, key in medians if n == ranks}
        table(medians, ranks, sorted(k for k in keys if isinstance(k, int)), f"{ranks} ranks", size_text)
        bursts = sorted((k for k in keys if isinstance(k, str)), key=lambda k: int(k.split("x")[1]))

        def burst_text(key):
            count, size = key.removeprefix("many_").split("x")
            return f"{count} × {size_text(int(size))}"

        table(medians, ranks, bursts, f"{ranks} ranks, asynchronous", burst_text)


if __name__ == "__main__":
    main()
