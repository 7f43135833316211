"""Runs a program that prints JSON lines: under real-time scheduling where that is allowed, in a
process group of its own that is ended with all it has started, and never for longer than its time."""
import datetime
import functools
import json
import os
import signal
import subprocess
import sys

SECONDS_MAX = 300


def say(text):
    print(f"rueda_bench: {text}", file=sys.stderr, flush=True)


@functools.cache
def real_time():
    """The words before a command that give it real-time scheduling; none when not allowed."""
    words = ["chrt", "-r", "1"]
    try:
        allowed = subprocess.run(words + ["true"], stderr=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        allowed = False
    return words if allowed else []


def scheduling():
    return "real-time scheduling (chrt -r 1)" if real_time() else "ordinary scheduling"


def cores():
    return len(os.sched_getaffinity(0))


def about(**more):
    """The first line of a run: where, when and how."""
    cpu = "unknown processor"
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        for line in info:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    return {"op": "about", "cpu": cpu, "cores": cores(), "scheduling": scheduling(),
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(), **more}


def json_lines(command, environment=None, seconds=SECONDS_MAX):
    """The rows that a program prints; says so when it fails, and returns what there was."""
    try:
        process = subprocess.Popen(command, env={**os.environ, **(environment or {})},
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, start_new_session=True)
    except OSError as error:
        say(f"failed: {error}")
        return []
    failed = ""
    try:
        out, err = process.communicate(timeout=seconds)
        if process.returncode != 0:
            failed = f"status {process.returncode}: {err.strip()[-500:]}"
    except subprocess.TimeoutExpired:
        failed = f"not done after {seconds} s"
        out = end(process)
    except BaseException:
        end(process)
        raise
    if failed:
        say(f"failed: {' '.join(command)}: {failed}")
    # Launchers may mark lines with their rank.
    texts = (line[line.find("{"):] for line in out.splitlines() if '{"' in line)
    return [json.loads(text) for text in texts if text.endswith("}")]


def end(process):
    """Launchers end their ranks when they are asked to; then whatever is left."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        out, _ = process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
    return out


class Results:
    """A file to which rows are appended as they come; keeps this run's own."""

    def __init__(self, path):
        self.rows = []
        self._file = open(path, "a", encoding="utf-8")

    def add(self, row):
        self.rows.append(row)
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()


def last_run(path):
    """The rows of the last run in a file, from its `about` on."""
    rows = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if row["op"] == "about":
                rows = []
            rows.append(row)
    return rows
