#!/usr/bin/env python3
"""Counts the instructions of micro_bench's benchmarks and compares them with the table.

    test/bench/micro/instructions.py MICRO_BENCH [--build TEXT] [--write] [--profile DIR]

  --build    what MICRO_BENCH was built with; the list file passes it
  --write    makes the table anew, instead of comparing with it
  --profile  writes each benchmark's profile to DIR, for callgrind_annotate, instead of comparing

Valgrind counts, so neither the machine's speed nor its load matters; and it emulates a processor
with AVX2, so that Highway and the C library choose the same code everywhere. What is not the same
everywhere, the compiler and its options, stands in the table's head; another build is not compared:
exit status 77, skipped. Exit status 1 when a count has changed by more than TOLERANCE, up or down
(a table that is not true any more would let the next rise through), or when the table's benchmarks
are not those of the program.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TABLE = pathlib.Path(__file__).with_name("instructions.txt")
RENEW = "cmake --build build/release --target micro_instructions"
HEAD = f"""\
# Instructions of one iteration of each benchmark of micro_bench, as valgrind counts them. Made by
#     {RENEW}
# Of: """
# Where memory lies decides how hash tables collide, how malloc finds a block and how memcmp begins.
# It lies alike in every run of one program, but not after a change somewhere else: counts then
# moved by up to 1.5 %.
TOLERANCE = 0.05
LABEL = re.compile(r"^desc: Trigger: Client Request: (\S+) x (\d+)$", re.M)
TOTAL = re.compile(r"^totals: (\d+)$", re.M)
# Calls that began before the count did. callgrind_annotate takes them for their caller's own cost.
BEGUN_BEFORE = re.compile(r"^calls=0 .*\n.*\n", re.M)
VECTORS = re.compile(r"^vectors: (\S+)$", re.M)


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(77)


def run(program):
    """Runs all benchmarks under callgrind. Returns what the program printed, and the profiles: name
    of the benchmark -> (iterations, text)."""
    with tempfile.TemporaryDirectory() as scratch:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={scratch}/profile",
                   "--compress-strings=no",  # else a profile has no names but with those before it
                   str(program.resolve()), "--benchmark_min_time=0"]
        # A small environment, the same everywhere; no symbol is looked up while one is counted.
        env = {"PATH": os.environ["PATH"], "LC_ALL": "C", "LD_BIND_NOW": "1"}
        if "LD_LIBRARY_PATH" in os.environ:
            env["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        done = subprocess.run(command, cwd=scratch, env=env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"{done.stdout}\n{' '.join(command)}: exit status {done.returncode}")
        profiles = {}
        paths = pathlib.Path(scratch).glob("profile.*")
        for path in sorted(paths, key=lambda path: int(path.suffix[1:])):
            text = path.read_text()
            if label := LABEL.search(text):  # the last one has none: what follows the benchmarks
                profiles[label.group(1)] = int(label.group(2)), text
    if not profiles:
        sys.exit("nothing was counted: micro_bench was built before valgrind's headers were there; "
                 "remove its objects, build/*/test/bench/micro/CMakeFiles, and build again")
    return done.stdout, profiles


def write_profiles(profiles, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, (iterations, text) in profiles.items():
        path = folder / name.replace("/", "_")
        path.write_text(BEGUN_BEFORE.sub("", text))
        print(f"{path}: {iterations} iterations")


def read_table():
    """What it is of, and its counts."""
    text = TABLE.read_text()
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return re.search(r"^# Of: (.*)$", text, re.M).group(1), {
        name: int(count.replace(",", "")) for name, count in rows}


def write_table(of, counts):
    width = max(map(len, counts))
    rows = [f"{name:<{width}} {count:>12,}\n" for name, count in counts.items()]
    TABLE.write_text(HEAD + of + "\n" + "".join(rows))
    print(f"{TABLE}: {len(rows)} benchmarks")


def compare(counts, table):
    """Lines about what is not as the table has it; and the greatest change."""
    lines, greatest = [], (0.0, "none")
    for name in table.keys() - counts.keys():
        lines.append(f"{name}: is in the table, and no benchmark")
    for name in counts.keys() - table.keys():
        lines.append(f"{name}: is not in the table")
    for name in [name for name in counts if name in table]:
        change = counts[name] / table[name] - 1
        greatest = max(greatest, (abs(change), name))
        if abs(change) > TOLERANCE:
            lines.append(f"{name}: {'ROSE' if change > 0 else 'fell'} by {abs(change):.1%}, from "
                         f"{table[name]:,} to {counts[name]:,} instructions")
    return lines, f"{greatest[0]:.2%} ({greatest[1]})"


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--build", default="an unknown build")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--profile", type=pathlib.Path)
    args = parser.parse_args()
    if shutil.which("valgrind") is None:
        skip("there is no valgrind (Debian: valgrind)")
    if args.profile:
        write_profiles(run(args.program)[1], args.profile)
        return
    if not args.write and read_table()[0].rpartition(", ")[0] != args.build:
        skip(f"the table is of {read_table()[0]}, this is {args.build}")
    printed, profiles = run(args.program)
    of = f"{args.build}, {VECTORS.search(printed).group(1)}"
    counts = {name: round(int(TOTAL.search(text).group(1)) / iterations)
              for name, (iterations, text) in profiles.items()}
    if args.write:
        write_table(of, counts)
        return
    of_table, table = read_table()
    if of != of_table:
        skip(f"the table is of {of_table}, this is {of}: the machine has no AVX2")
    lines, greatest = compare(counts, table)
    print(f"{len(counts)} benchmarks; the greatest change is {greatest}")
    if lines:
        print("\n".join(sorted(lines)))
        print("Where that is meant, make the table anew and commit it with the change:")
        print("    " + RENEW)
        sys.exit(1)


if __name__ == "__main__":
    main()
