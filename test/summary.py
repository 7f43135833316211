#!/usr/bin/env python3
"""The end of test/run.sh: what was skipped and why, what failed, and a table of the parts.

    test/summary.py DIR

DIR holds, for each part in order, NN.part ("name<TAB>seconds<TAB>exit status") and, where the part
ran tests, ctest's NN.xml. Exit status 1 when a part failed.
"""
import pathlib
import re
import sys
import xml.etree.ElementTree

# How a test says that it left something out: whole (exit status 77), a part, or a GoogleTest case.
SAID = re.compile(r"^SKIPPED(?: in part)?: (.*)$", re.M)
CASE = re.compile(r"^(?:\S+:\d+: Skipped\n((?:.*\n)*?)\n*)?\[  SKIPPED \] ([^\s,]+)(?:,.*)? \(\d+ ms\)$", re.M)
# What a GoogleTest case that failed has printed begins so, and ends with [  FAILED  ].
BEGINS = re.compile(r"^\S+:\d+: Failure$")
SHOWN = 40  # lines of a test that failed


def why(output):
    """The lines that tell most of a failure: those of the cases, or else the last ones."""
    lines, told, inside = output.rstrip().splitlines(), [], False
    for line in lines:
        inside = (inside or BEGINS.match(line) is not None) and not line.startswith("[ RUN ")
        if inside:
            told.append(line)
            inside = not line.startswith("[  FAILED  ]")
    return "\n".join("    " + line for line in (told[:SHOWN] or lines[-SHOWN:]))


class Part:
    def __init__(self, path):
        name, seconds, status = path.read_text().rstrip("\n").split("\t")
        self.name, self.seconds, self.failed_itself = name, int(seconds), status != "0"
        self.passed = 0
        self.failed, self.reasons, self.skipped = [], [], []
        report = path.with_suffix(".xml")
        self.has_tests = report.exists()
        if self.has_tests:
            for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
                self.add(case)

    def add(self, case):
        name = case.get("name")
        output = case.findtext("system-out") or ""
        reasons = [f"{name}: {reason}" for reason in SAID.findall(output)]
        for reason, test in CASE.findall(output):
            reasons.append(f"{name}: {test}: {' '.join(reason.split()) or 'no reason given'}")
        if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            message = case.find("skipped")
            self.skipped += reasons or [
                f"{name}: {message.get('message') if message is not None else 'not run'}"]
            return
        if case.get("status") == "run":
            self.passed += 1
        else:
            self.failed.append(name)
            self.reasons.append(f"{name}:\n{why(output)}")
        self.skipped += reasons

    def row(self):
        counts = [str(self.passed), str(len(self.failed)), str(len(self.skipped))]
        if not self.has_tests:
            counts = ["", "failed" if self.failed_itself else "", ""]
        return [self.name, str(self.seconds)] + counts


def main():
    parts = [Part(path) for path in sorted(pathlib.Path(sys.argv[1]).glob("*.part"))]
    print()
    for title, lines in (
            ("Skipped", [f"{p.name}: {line}" for p in parts for line in p.skipped]),
            ("Why", [f"{p.name}: {text}" for p in parts for text in p.reasons]),
            ("Failed", [f"{p.name}: {line}" for p in parts for line in p.failed])):
        if lines:
            print(f"{title}:\n  " + "\n  ".join(lines) + "\n")
    rows = [["part", "seconds", "passed", "failed", "skipped"]] + [part.row() for part in parts]
    rows.append(["all", str(sum(p.seconds for p in parts)), str(sum(p.passed for p in parts)),
                 str(sum(len(p.failed) for p in parts)), str(sum(len(p.skipped) for p in parts))])
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for row in rows:
        print("  ".join([row[0].ljust(widths[0])] + [row[i].rjust(widths[i]) for i in range(1, 5)]))
    print()
    # A part that fails without a failed test counts as one: a build, or no test found.
    alone = [p.name for p in parts if p.failed_itself and not p.failed]
    if alone:
        print("Failed as a whole: " + ", ".join(alone) + "\n")
    failed = sum(len(p.failed) for p in parts) + len(alone)
    print(f"{sum(p.passed for p in parts)} passed, {failed} failed, "
          f"{sum(len(p.skipped) for p in parts)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
