"""torchft over Rueda: its process group, and trainings that lose replica groups and take in
others."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchft", reason="torchft is not installed (pip install torchft)")

import torch.distributed as dist  # noqa: E402

CASES = str(pathlib.Path(__file__).parent / "torchft_cases.py")
LIMIT_S = 60


class Process:
    """One that tells lines of JSON."""

    def __init__(self, *arguments, **variables):
        self.told = []
        self._errors = tempfile.TemporaryFile("w+")
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, CASES, *map(str, arguments)],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            with self._news:
                self.told.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def errors(self):
        self._errors.seek(0)
        return self._errors.read()

    def await_line(self, wanted):
        """The first that is."""

        def found():
            return next((each for each in list(self.told) if wanted(each)), None)

        def settled():
            return found() is not None or self._process.poll() is not None

        with self._news:
            while not settled() and self._news.wait(LIMIT_S):
                pass
        assert found() is not None, self.errors() + str(self.told[-3:])
        return found()

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        return time.monotonic()

    def status(self):
        """None while it runs."""
        return self._process.poll()

    def end(self):
        """Waits for it: its status."""
        try:
            return self._process.wait(LIMIT_S)
        finally:
            self._process.kill()
            self._reader.join(LIMIT_S)


@pytest.fixture
def processes():
    """Those of a test, none of which outlives it."""
    started = []

    def start(*arguments, **variables):
        started.append(Process(*arguments, **variables))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.end()


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def members(processes, store):
    """Runs a case on so many processes, all of which end well or by SIGKILL: what each has told."""

    ends = (0, -signal.SIGKILL)

    def run(size, case, *arguments, variables=lambda number: {}):
        started = [
            processes(case, number, size, store.port, *arguments, **variables(number))
            for number in range(size)
        ]
        until = time.monotonic() + LIMIT_S
        statuses = [None]
        while None in statuses and {*statuses} <= {None, *ends} and time.monotonic() < until:
            time.sleep(0.02)
            statuses = [process.status() for process in started]
        errors = [process.errors() for process in started if process.status() not in ends]
        assert {*statuses} <= {*ends}, f"{statuses}\n" + "\n".join(errors)
        for process in started:
            process.end()
        return [process.told for process in started]

    return run


def host_of(number):
    """Variables that make each process a host of its own."""
    return {
        "RUEDA_HOST_ID": f"host {number}",
        "RUEDA_NETWORK_INTERFACE": "lo",
        "RUEDA_ALLOW_UNAUTHENTICATED": "1",
    }


on_hosts = pytest.mark.parametrize("hosts", [lambda number: {}, host_of], ids=["one", "several"])


def test_collectives_are_those_of_gloo(members):
    assert members(3, "collectives") == [[{"collectives": 11}]] * 3


def test_configurations_leave_nothing_behind(members):
    for told in members(3, "configurations", 51):
        before, first, *later, after = told
        assert len(later) == 16
        for each in later:
            for what in ("descriptors", "threads", "children"):
                assert each[what] == first[what], (what, told)
        assert later[-1]["kib"] - later[0]["kib"] < 4096, told
        for what in ("descriptors", "children"):
            assert after[what] == before[what], (what, told)


@on_hosts
def test_operations_fail_when_a_member_is_killed(members, hosts):
    told = members(4, "killed", variables=hosts)
    assert [len(each) for each in told] == [0, 2, 4, 1]
    for each in sum(told, []):
        if "lost" in each:
            assert each["rank"] == each["lost"], each
            assert f"rank {each['lost']} (" in each["error"], each
            assert f"rank {each['lost']} (" in each["errored"], each
            assert each["seconds"] < 5, each
    assert told[2][-1] == {"total": 5.0}


@on_hosts
def test_abort_ends_what_another_thread_waits_for(members, hosts):
    aborter, *others = members(3, "aborted", variables=hosts)
    assert "the process group was aborted" in aborter[0]["errored"]
    for told in (aborter, *others):
        assert told[0]["kind"] == "AbortedError" and told[0]["is_error"], told
        assert "rank 0 aborted its process group" in told[0]["error"], told
        assert told[0]["seconds"] < 5, told
        assert told[1] == {"total": 3.0}


def test_abort_may_come_at_any_time(members):
    assert members(2, "aborted_at_any_time", 20) == [[{"total": 0}, {"total": 2.0}]] * 2


def test_waits_have_a_limit(members):
    (operation, meeting, total), _ = members(2, "limits")
    assert operation["kind"] == "TimeIsUpError" and 0.5 <= operation["seconds"] < 5
    assert "process group torchft quorum 1: after a timeout of 0.5 s" in operation["error"]
    assert meeting["kind"] == "DistStoreError" and meeting["seconds"] < 15
    assert total == {"total": 2.0}


def test_a_program_that_ends_waits_for_nobody(processes, store):
    """But for a moment, in which the others are not disturbed."""
    one, two, three = [processes("left", number, 3, store.port) for number in range(3)]
    told = three.await_line(lambda line: "error" in line)
    assert "rank 0 has shut down" in told["error"], told
    ended = one.await_line(lambda line: "ends" in line)["ends"]
    assert one.end() == 0
    assert time.monotonic() - ended < 20
    store.set("ended", "")
    assert two.end() == three.end() == 0, two.errors() + three.errors()


# ---- trainings ----


@pytest.fixture
def lighthouse():
    """torchft's own, as people start it: its address."""
    program = pathlib.Path(sys.executable).parent / "torchft_lighthouse"
    process = subprocess.Popen(
        [program, "--bind", "[::]:0", "--min_replicas", "2", "--join_timeout_ms", "20000"]
        + ["--heartbeat_timeout_ms", "1000", "--quorum_tick_ms", "20"],
        env=os.environ | {"RUST_LOG": "info"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for line in process.stdout:
        if found := re.search(r"listening on:? http://\S*:(\d+)", line):
            break
    reader = threading.Thread(target=lambda: [None for _ in process.stdout], daemon=True)
    reader.start()
    yield f"http://localhost:{found[1]}"
    process.kill()
    process.wait()


@pytest.mark.skipif(
    os.environ.get("SOAK_TORCHFT") != "1", reason="test/soak/run.sh has it: SOAK_TORCHFT=1"
)
@pytest.mark.parametrize("transport", ["http", "pg"])
def test_a_training_goes_on_without_a_replica_group_and_takes_it_in_again(
    processes, lighthouse, tmp_path, transport
):
    def start(number, *last_step):
        return processes("train", number, lighthouse, tmp_path, transport, *last_step)

    def steps(process, members, since):
        """Waits until it has taken a step in a group of that size, after a moment."""
        return process.await_line(
            lambda line: line.get("committed") and line["members"] == members and line["at"] > since
        )

    replicas = [start(0), start(1, 10), start(2)]
    killed = replicas[1].await_line(lambda line: "killed_at" in line)["killed_at"]
    survivors = [replicas[0], replicas[2]]
    for replica in survivors:
        failed = replica.await_line(lambda line: line.get("failure"))
        step = steps(replica, 2, killed)
        print(f"error after {failed['failed_at'] - killed:.3f} s, step {step['at'] - killed:.3f} s")
        assert "rank " in failed["failure"] and "SIGKILL" in failed["failure"], failed
        assert failed["failed_at"] - killed < 5
    again = start(1)
    for replica in (*survivors, again):
        steps(replica, 3, killed)
    (tmp_path / "stop").touch()
    for replica in (*survivors, again):
        assert replica.end() == 0, replica.errors()
    ends = [replica.told[-1] for replica in (*survivors, again)]
    assert ends[0] == ends[1] == ends[2]
    first = again.await_line(lambda line: line.get("committed"))
    assert first["step"] > failed["step"]  # it has the others' weights, and did not begin anew
