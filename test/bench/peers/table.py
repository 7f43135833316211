#!/usr/bin/env python3
"""Makes the tables of a run: medians over its rounds, in microseconds, and ratios.

table.py RESULTS.jsonl     those of the last run in the file
"""
import collections
import statistics
import sys

import runs

# What each row is called, from top to bottom.
FLOORS = {"floor_shared": "floor: tensors shared already",
          "floor_staged": "floor: staged in cache-sized pieces",
          "floor_exchange": "floor: everybody publishes, everybody sums"}
RUEDA = {"rueda_registered": "**Rueda**, memory of `rueda_mem_alloc`",
         "rueda": "**Rueda**, any memory"}
PEERS = {"openmpi": "Open MPI", "impi": "Intel MPI", "impi_unpinned": "Intel MPI, ranks not pinned",
         "mpich": "MPICH", "gloo_ring": "Gloo, ring", "gloo_halving_doubling": "Gloo, halving-doubling",
         "torch": "torch.distributed, Gloo",
         "horovod_gloo_1ms": "Horovod, Gloo, cycle 1 ms",
         "horovod_gloo_0.1ms": "Horovod, Gloo, cycle 0.1 ms",
         "horovod_mpi_1ms": "Horovod, Open MPI, cycle 1 ms",
         "horovod_mpi_0.1ms": "Horovod, Open MPI, cycle 0.1 ms"}
NAMES = {**FLOORS, **RUEDA, **PEERS}
# With which floors memory of either kind can be handled.
FLOORS_OF = {"rueda_registered": tuple(FLOORS), "rueda": ("floor_staged", "floor_exchange")}


def size_text(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def column_text(column):
    """A column is a size, or a batch: (number of tensors, size of each)."""
    if isinstance(column, int):
        return size_text(column)
    return f"{column[0]} × {size_text(column[1])}"


def number(value):
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def column_of(row):
    if row["op"] == "allreduce":
        return row["bytes"]
    count, size = row["op"].removeprefix("many_").split("x")
    return int(count), int(size)


def medians_of(rows):
    """{ranks: {peer: {column: median over the rounds of p50}}}."""
    rounds = collections.defaultdict(list)
    for row in rows:
        if "p50_us" in row and row.get("peer") in NAMES:
            rounds[row["np"], row["peer"], column_of(row)].append(row["p50_us"])
    medians = collections.defaultdict(lambda: collections.defaultdict(dict))
    for (ranks, peer, column), values in rounds.items():
        medians[ranks][peer][column] = statistics.median(values)
    return medians


def lowest(medians, peers, column):
    """(median, peer) of the fastest of them; None when none has the column."""
    return min(((medians[peer][column], peer) for peer in peers
                if column in medians.get(peer, {})), default=None)


def ratios_of(medians, peers_of, columns):
    """{row of Rueda: {column: (its median / the lowest of peers_of[row], who that was)}}."""
    ratios = {}
    for row in RUEDA:
        ratios[row] = {}
        for column in columns:
            best = lowest(medians, peers_of[row], column)
            if best and column in medians.get(row, {}):
                ratios[row][column] = (medians[row][column] / best[0], best[1])
    return ratios


def line(title, columns, cells):
    return f"| {title} | " + " | ".join(cells.get(column, "") for column in columns) + " |"


def part(medians, columns, title):
    """One table: who took how long, then how Rueda compares."""
    lines = [line(title, columns, {column: column_text(column) for column in columns}),
             "|---" * (len(columns) + 1) + "|"]
    for peer, name in NAMES.items():
        cells = {column: number(value) for column, value in medians.get(peer, {}).items()}
        if any(column in cells for column in columns):
            lines.append(line(name, columns, cells))
    best = {column: lowest(medians, PEERS, column) for column in columns}
    if any(best.values()):
        lines.append(line("the best peer", columns,
                          {column: NAMES[found[1]] for column, found in best.items() if found}))
    for other, peers_of in (("the best peer", {row: tuple(PEERS) for row in RUEDA}),
                            ("the floor", FLOORS_OF)):
        for row, cells in ratios_of(medians, peers_of, columns).items():
            if cells:
                lines.append(line(f"{RUEDA[row]} / {other}", columns,
                                  {column: f"{ratio:.2f}" for column, (ratio, _) in cells.items()}))
    return "\n".join(lines) + "\n"


def text(rows):
    parts = []
    for row in rows:
        if row["op"] == "about":
            versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
            parts.append(f"{row['cpu']}, {row['cores']} cores, {row['date']}, {row['scheduling']}. "
                         f"Medians in µs. {versions}\n")
    for ranks, medians in sorted(medians_of(rows).items()):
        columns = {column for cells in medians.values() for column in cells}
        sizes = sorted(column for column in columns if isinstance(column, int))
        batches = sorted((column for column in columns if not isinstance(column, int)),
                         key=lambda batch: batch[1])
        if sizes:
            parts.append(part(medians, sizes, f"{ranks} ranks"))
        if batches:
            parts.append(part(medians, batches, f"{ranks} ranks, asynchronous tensors"))
    return "\n".join(parts)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(text(runs.last_run(sys.argv[1])))
