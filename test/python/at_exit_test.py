"""Operations in a program's exit handlers, with each Python that is found: since 3.12 no thread can
be started there."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from rueda import launcher

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
PYTHONS = CACHE / "rueda" / "pythons"
PROGRAM = """
import atexit, sys, threading, weakref
import numpy as np
import rueda

rueda.init()


def act():
    if "refuse" in sys.argv:
        threading.Thread.start = refuse
    rank, size, x = rueda.rank(), rueda.size(), np.ones(3)
    assert rueda.allreduce(x, op=rueda.Sum).tolist() == [size] * 3
    assert len(rueda.allgather(x)) == 3 * size
    rueda.barrier()
    assert rueda.synchronize(rueda.allreduce_async(x, op=rueda.Sum))[0] == size
    assert rueda.allgather_object(rank) == list(range(size))
    assert rueda.broadcast_object({"rank": rank}, 1) == {"rank": 1}
    alone = rueda.add_process_set([0])
    if alone.included():
        assert rueda.allreduce(x, process_set=alone).tolist() == [1] * 3
    rueda.remove_process_set(alone)
    assert rueda.join() in range(size)
    rueda.shutdown()
    print("done", flush=True)


def refuse(self):
    raise RuntimeError("can't create new thread at interpreter shutdown")


class Thing:
    pass


thing = Thing()
if "atexit" in sys.argv:
    atexit.register(act)
else:
    weakref.finalize(thing, act)
"""


def end_two_ranks(python: str, *how: str) -> None:
    done = subprocess.run(
        [launcher.program(), "-np", "2", python, "-c", PROGRAM, *how],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "RUEDA_STALL_TIMEOUT_S": "20"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 2


@pytest.fixture(params=["3.10", "3.11", "3.12", "3.13"])
def python(request) -> str:
    version = request.param
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    found = PYTHONS / version / "bin" / "python3"
    if not found.exists():
        pytest.skip(f"third_party/setup.sh --tests has found no Python {version}")
    return str(found)


@pytest.mark.parametrize("hook", ["atexit", "finalize"])
def test_operations_in_exit_handlers(python, hook):
    end_two_ranks(python, hook)


EXITS = """
import sys
import rueda

rueda.init()
try:
    if rueda.rank() == 1:
        sys.exit(7)
    rueda.barrier()
except rueda.AbortedError as error:
    sys.exit(f"told: {error}")
"""


def test_the_others_are_told_of_sys_exit(python):
    done = subprocess.run(
        [launcher.program(), "-np", "2", python, "-c", EXITS],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 7
    assert "told: " in done.stderr and "rank 1 aborted the job: SystemExit: 7" in done.stderr


@pytest.mark.parametrize("hook", ["atexit", "finalize"])
def test_a_python_that_starts_no_thread_there(hook):
    """FAKE: this one, which refuses as 3.12 does."""
    end_two_ranks(sys.executable, hook, "refuse")
