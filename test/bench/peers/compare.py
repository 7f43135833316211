#!/usr/bin/env python3
"""Measures Rueda, the floor and the peers, interleaved, and prints tables and a plot.
`rueda_bench --vs LIST` starts it."""
import argparse
import difflib
import pathlib
import subprocess
import sys

import peers
import runs
import table

BATCHES = ("200x4096", "500x1024", "50x262144")


def counts(text):
    """"1,2,4": numbers of ranks."""
    numbers = [int(word) for word in text.split(",")]
    if min(numbers) < 1:
        raise ValueError(text)
    return numbers


def options_of(arguments):
    parser = argparse.ArgumentParser(prog="rueda_bench",
                                     usage="rueda_bench --help lists the options")
    parser.add_argument("--vs", required=True)
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="where rueda_bench lies")
    parser.add_argument("--np", default="2,4", type=counts)
    parser.add_argument("--bytes", default="4,4096,65536,1048576,16777216,67108864,268435456")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", default="rueda_vs.jsonl", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path)
    return parser.parse_args(arguments)


def checked_names(text):
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in peers.KNOWN:
            near = difflib.get_close_matches(name, peers.KNOWN, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            sys.exit(f"rueda_bench: --vs: unknown peer '{name}'{hint} There are "
                     f"{', '.join(peers.KNOWN)}")
    return names


def own_programs(bin_dir, ranks):
    launch = [bin_dir / "ruedarun", "-np", ranks, "--prefix", "none", bin_dir / "rueda_bench",
              "--json"]
    return [peers.Program("floor", [bin_dir / "limits_bench", ranks]),
            peers.Program("rueda_registered", launch + ["--registered"]),
            peers.Program("rueda", launch)]


def commands_of(program, sizes):
    """Rueda's own take their sizes by options."""
    batches = BATCHES if program.batches else ()
    if not program.row.startswith("rueda"):
        return [program.command + sizes + list(batches)]
    many = [word for batch in batches for word in ("--many", batch)]
    return [program.command + ["--bytes", ",".join(sizes)], program.command + many]


def measure(program, ranks, sizes):
    """The rows that a program prints; Rueda's do not name it, nor do all say the same op."""
    spins = program.spins and ranks > runs.cores()
    for command in commands_of(program, sizes):
        words = ([] if spins else runs.real_time()) + [str(word) for word in command]
        for row in runs.json_lines(words, program.environment):
            row.setdefault("peer", program.row)
            row["op"] = row["op"].removesuffix("_registered")
            yield row


def main(arguments):
    options = options_of(arguments)
    names = checked_names(options.vs)
    present = [name for name in names if peers.is_set_up(name)]
    missing = [name for name in names if name not in present]
    if missing:
        runs.say(f"not set up, left out: {', '.join(missing)}. To set them up: "
                 f"{peers.HERE}/setup.sh {' '.join(missing)}")
    runs.say(f"{runs.scheduling()}, {runs.cores()} cores; results go to {options.results}")
    results = runs.Results(options.results)
    versions = {name: peers.version(name) for name in present}
    results.add(runs.about(versions=versions))
    sizes = options.bytes.split(",")
    for round_ in range(options.rounds):
        for ranks in options.np:
            programs = own_programs(options.bin, ranks)
            for name in present:
                programs += peers.programs_of(name, ranks)
            runs.say(f"round {round_ + 1} of {options.rounds}, {ranks} ranks")
            for program in programs:
                for row in measure(program, ranks, sizes):
                    results.add({"round": round_ + 1, **row})
    print(table.text(results.rows))
    draw(options.results, options.plot)


def draw(results, plot):
    """By a Python that has matplotlib: the peers', or this one."""
    plot = plot or results.with_suffix(".svg")
    for python in (peers.PYTHON, sys.executable):
        if pathlib.Path(python).exists() and subprocess.run(
                [python, "-c", "import matplotlib"], stderr=subprocess.DEVNULL).returncode == 0:
            subprocess.run([python, peers.HERE / "plot.py", results, plot], check=True)
            runs.say(f"plot: {plot}")
            return
    runs.say(f"no plot: there is no matplotlib ({peers.HERE}/setup.sh installs it)")


if __name__ == "__main__":
    main(sys.argv[1:])
