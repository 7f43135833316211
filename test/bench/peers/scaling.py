#!/usr/bin/env python3
"""Weak scaling of a synthetic training step: every rank computes as much, however many there are.
`rueda_bench --scaling LIST` starts it."""
import argparse
import collections
import pathlib
import statistics
import sys

import compare
import runs

EXPLANATION = """\
step: until the last of the ranks has done it; computing: the same ranks at once, without communication.
efficiency: samples/s, divided by N times those of one rank. Ranks that share cores compute more slowly;
communication: computing / step of the same N ranks, what communication leaves of the speed."""


def options_of(arguments):
    parser = argparse.ArgumentParser(prog="rueda_bench",
                                     usage="rueda_bench --help lists the options")
    parser.add_argument("--scaling", required=True, type=compare.counts)
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="where rueda_bench lies")
    parser.add_argument("--step", default="32x256x64")
    parser.add_argument("--registered", action="store_true")
    parser.add_argument("--iterations", help="steps in a row, instead of 0.1 s of them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", default="rueda_scaling.jsonl", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path)
    return parser.parse_args(arguments)


def efficiencies(rows):
    """[(ranks, computing us, step us, samples/s, efficiency, communication's)], medians over the
    rounds; efficiency is None without one rank to compare with."""
    rounds = collections.defaultdict(list)
    for row in rows:
        if row["op"] == "step":
            rounds[row["np"]].append(row)
    rates, result = {}, []
    for ranks, same in sorted(rounds.items()):
        computing = statistics.median(row["computing_us"] for row in same)
        step = statistics.median(row["step_us"] for row in same)
        rates[ranks] = ranks * same[0]["batch"] / step * 1e6
        efficiency = rates[ranks] / (ranks * rates[1]) if 1 in rates else None
        result.append((ranks, computing, step, rates[ranks], efficiency, computing / step))
    return result


def text(rows):
    lines = ["| ranks | computing, ms | step, ms | samples/s | efficiency | communication |", "|---" * 6 + "|"]
    for ranks, computing, step, rate, efficiency, communication in efficiencies(rows):
        lines.append(f"| {ranks} | {computing / 1e3:.3g} | {step / 1e3:.3g} | {rate:,.0f} | "
                     f"{efficiency:.1%} | {communication:.1%} |")
    first = rows[0]
    header = (f"{first['cpu']}, {first['cores']} cores, {first['date']}, {first['scheduling']}. "
              f"Steps of {first['step']} (layers x width x batch), medians over the rounds.\n")
    return "\n".join([header, *lines, "", EXPLANATION])


def main(arguments):
    options = options_of(arguments)
    counts = sorted({1, *options.scaling})  # efficiency is by what one rank does
    runs.say(f"{runs.scheduling()}; results go to {options.results}")
    results = runs.Results(options.results)
    results.add(runs.about(step=options.step))
    extra = ["--registered"] if options.registered else []
    extra += ["--iterations", options.iterations] if options.iterations else []
    for round_ in range(options.rounds):
        for ranks in counts:
            command = [options.bin / "ruedarun", "-np", ranks, "--prefix", "none",
                       options.bin / "rueda_bench", "--step", options.step, *extra]
            for row in runs.json_lines(runs.real_time() + [str(word) for word in command]):
                results.add({"round": round_ + 1, **row})
    if not any(row["op"] == "step" and row["np"] == 1 for row in results.rows):
        sys.exit("rueda_bench: nothing was measured")
    print(text(results.rows))
    compare.draw(options.results, options.plot)


if __name__ == "__main__":
    main(sys.argv[1:])
