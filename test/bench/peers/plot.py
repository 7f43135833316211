#!/usr/bin/env python3
"""Draws what compare.py has measured: time against bytes, a panel for each number of ranks; or what
scaling.py has: efficiency against ranks.

plot.py RESULTS.jsonl PLOT.svg     the last run in the file; .png works too
"""
import sys

from matplotlib.figure import Figure

import runs
import scaling
import table

# Rueda stands out; the floors are gray; each family of peers has a colour.
STYLES = {"rueda_registered": ("#c1121f", "-", 2.2), "rueda": ("#f3722c", "-", 2.2),
          "floor_shared": ("#555555", ":", 1.2), "floor_staged": ("#888888", ":", 1.2),
          "floor_exchange": ("#bbbbbb", ":", 1.2),
          "openmpi": ("#1d4ed8", "-", 1.2), "impi": ("#0891b2", "-", 1.2),
          "impi_unpinned": ("#0891b2", "--", 1.2), "mpich": ("#7c3aed", "-", 1.2),
          "gloo_ring": ("#15803d", "-", 1.2), "gloo_halving_doubling": ("#15803d", "--", 1.2),
          "torch": ("#a16207", "-", 1.2), "horovod_gloo_1ms": ("#db2777", "-", 1.0),
          "horovod_gloo_0.1ms": ("#db2777", "--", 1.0), "horovod_mpi_1ms": ("#f472b6", "-", 1.0),
          "horovod_mpi_0.1ms": ("#f472b6", "--", 1.0)}


def plain(name):
    """Without Markdown."""
    return name.replace("**", "").replace("`", "")


def panel(axes, ranks, medians):
    shown = []
    for peer, name in table.NAMES.items():
        sizes = sorted(column for column in medians.get(peer, {}) if isinstance(column, int))
        if not sizes:
            continue
        colour, dashes, width = STYLES[peer]
        axes.plot(sizes, [medians[peer][size] for size in sizes], dashes, color=colour,
                  linewidth=width, marker=".", label=plain(name))
        shown = sorted(set(shown) | set(sizes))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(shown, [table.size_text(size) for size in shown], rotation=45, ha="right")
    axes.minorticks_off()
    axes.grid(True, linewidth=0.3)
    axes.set_title(f"{ranks} ranks")
    axes.set_xlabel("float32 on each rank")


def compared(rows):
    medians = table.medians_of(rows)
    figure = Figure(figsize=(1 + 5 * len(medians), 7), layout="constrained")
    panels = figure.subplots(1, len(medians), sharey=True, squeeze=False)[0]
    for axes, (ranks, cells) in zip(panels, sorted(medians.items())):
        panel(axes, ranks, cells)
    panels[0].set_ylabel("blocking allreduce, median in µs")
    drawn = {}
    for axes in panels:
        for curve, name in zip(*axes.get_legend_handles_labels()):
            drawn[name] = curve
    names = [name for name in map(plain, table.NAMES.values()) if name in drawn]
    figure.legend([drawn[name] for name in names], names, loc="outside lower center", ncols=3,
                  fontsize=8, frameon=False)
    return figure


def scaled(rows):
    ranks, _, _, _, efficiency, communication = zip(*scaling.efficiencies(rows))
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(ranks, efficiency, "-", color="#c1121f", marker="o", label="against one rank alone")
    axes.plot(ranks, communication, "--", color="#1d4ed8", marker="o",
              label="against as many ranks that don't communicate")
    axes.axvline(rows[0]["cores"], color="#888888", linestyle=":", linewidth=1, label="cores")
    axes.set_xticks(ranks)
    axes.set_ylim(bottom=0)
    axes.grid(True, linewidth=0.3)
    axes.set_xlabel("ranks")
    axes.set_ylabel("efficiency")
    axes.legend(fontsize=8, frameon=False)
    axes.set_title(f"Weak scaling, steps of {rows[0]['step']}")
    return figure


def main(results, plot):
    rows = runs.last_run(results)
    figure = scaled(rows) if any(row["op"] == "step" for row in rows) else compared(rows)
    figure.savefig(plot)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
