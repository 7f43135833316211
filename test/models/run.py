#!/usr/bin/env python3
"""Checks the protocols' models with spin: all states with two and with three ranks, and each deliberate break.

    test/models/run.py [MODEL...]      such as baton; without one: all

A model lists its breaks in its first comment: macro, number of ranks, what spin must report ("assertion" or
"end state"), what is broken, further definitions. Exit status 77: skipped, as there is no spin.
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
RANKS = (2, 3)
DEPTH = 100_000  # steps of a run; a search that needs more says so, and fails
MEMORY_MB = 6_000
SECONDS_MAX = 240
JOBS = min(2, os.cpu_count() or 1)
BREAK = re.compile(r"^ \*   (BREAK_\w+) +(\d) (assertion|end state) +\S.*?((?: -D\S+)*)$", re.M)
REPORTS = {"assertion": "assertion violated", "end state": "invalid end state"}


class Case:
    def __init__(self, model, ranks, macro="", report="", definitions=()):
        self.model, self.ranks, self.macro, self.report = model, ranks, macro, report
        self.definitions = [f"-DN={ranks}", *definitions] + ([f"-D{macro}"] if macro else [])
        self.states, self.seconds, self.error = "", 0.0, ""

    def run(self, folder):
        began = time.monotonic()
        try:
            self.error = self.judge(self.search(folder))
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            self.error = f"{error}\n{error.stdout or ''}"
        self.seconds = time.monotonic() - began
        return self

    def search(self, folder):
        """What the generated program says."""
        def call(*words):
            return subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  check=True, timeout=SECONDS_MAX).stdout
        said = call("spin", "-a", *self.definitions, str(HERE / f"{self.model}.pml"))
        if "rror" in said:
            raise subprocess.CalledProcessError(1, "spin", said)
        # A break is found soon, mostly: then compiling takes longer than running.
        call("gcc", "-O0" if self.macro else "-O2", "-w", "-DSAFETY", "-DNOCLAIM", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MB}",
             "-o", "pan", "pan.c")
        return call("./pan", f"-m{DEPTH}", "-w22")

    def judge(self, said):
        """What is wrong with that; empty: nothing."""
        states = re.search(r"^ *(\S+) states, stored", said, re.M)
        errors = re.search(r"errors: (\d+)$", said, re.M)
        if states is None or errors is None:
            return "the search said neither states nor errors\n" + said
        self.states = f"{float(states[1]):,.0f}"
        if not self.macro:
            if errors[1] != "0":
                return "spin has found an error\n" + said
            for trouble in ("Search not completed", "max search depth too small", "out of memory"):
                if trouble in said:
                    return f"the search is not complete: {trouble}\n" + said
            return ""
        if errors[1] == "0":
            return "the break was not noticed"
        if REPORTS[self.report] not in said:
            return f"spin should have reported: {REPORTS[self.report]}\n" + said
        return ""

    def row(self):
        verdict = "FAILED" if self.error else "caught" if self.macro else "holds"
        return [self.model, str(self.ranks), self.macro[len("BREAK_"):].lower(), self.states, f"{self.seconds:.1f}", verdict]


def cases_of(model):
    text = (HERE / f"{model}.pml").read_text(encoding="utf-8")
    cases = [Case(model, ranks) for ranks in RANKS]
    for macro, ranks, report, definitions in BREAK.findall(text):
        cases.append(Case(model, int(ranks), macro, report, definitions.split()))
    listed = {case.macro for case in cases if case.macro}
    used = set(re.findall(r"BREAK_\w+", re.sub(r"/\*.*?\*/", "", text, flags=re.S)))
    if listed != used:
        sys.exit(f"{model}.pml: its comment lists other breaks than it has: {', '.join(sorted(listed ^ used))}")
    return cases


def show(cases):
    rows = [["model", "ranks", "break", "states", "seconds", "verdict"]] + [case.row() for case in cases]
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    for row in rows:
        print("  ".join(text.rjust(width) if i in (1, 3, 4) else text.ljust(width)
                        for i, (text, width) in enumerate(zip(row, widths))).rstrip())


def main():
    models = sys.argv[1:] or sorted(path.stem for path in HERE.glob("*.pml"))
    for program in ("spin", "gcc"):
        if shutil.which(program) is None:
            print(f"SKIPPED: there is no {program} (third_party/setup.sh --tests)")
            sys.exit(77)
    cases = [case for model in models for case in cases_of(model)]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        runs = []
        for number, case in enumerate(cases):
            place = os.path.join(folder, str(number))
            os.mkdir(place)
            runs.append(pool.submit(case.run, place))
        cases = [run.result() for run in runs]
    show(cases)
    failed = [case for case in cases if case.error]
    for case in failed:
        print(f"\n{case.model}, {case.ranks} ranks {case.macro}: {case.error}")
        print(f"    its trail: spin -a {' '.join(case.definitions)} {case.model}.pml; gcc -DSAFETY -o pan pan.c; ./pan -m{DEPTH}; "
              f"spin -t -p {' '.join(case.definitions)} {case.model}.pml")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
