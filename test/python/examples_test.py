"""The examples of examples/python, on two ranks."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

from rueda import launcher

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"


def run(name: str, *arguments: str) -> str:
    """What rank 0 prints."""
    command = [launcher.program(), "-np", "2", "--prefix", "none", sys.executable]
    command += [str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


LOOPS = {
    "horovod": ["mnist_hvd.py"],
    "int8": ["mnist_hvd.py", "--compression", "int8"],
    "DistributedDataParallel": ["mnist_ddp.py"],
}


@pytest.mark.parametrize("loop", LOOPS)
def test_the_digits_are_learned(loop):
    pytest.importorskip("torch")
    out = run(*LOOPS[loop], "--epochs", "6")
    result = re.search(r"test_accuracy=([\d.]+) replicas_equal=true", out)
    assert result is not None and float(result[1]) > 0.94, out
    losses = [float(value) for value in re.findall(r"loss=([\d.]+)", out)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("compression", ["none", "int8"])
def test_the_digits_are_learned_with_jax(compression):
    pytest.importorskip("jax")
    out = run("mnist_jax.py", "--epochs", "6", "--compression", compression)
    result = re.search(r"test_accuracy=([\d.]+) replicas_equal=true", out)
    assert result is not None and float(result[1]) > 0.94, out
    losses = [float(value) for value in re.findall(r"loss=([\d.]+)", out)]
    assert losses[-1] < losses[0]


def test_the_digits_are_learned_with_keras():
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow-cpu is not installed")
    out = run("mnist_keras.py", "--epochs", "6")
    result = re.search(r"test_accuracy=([\d.]+) replicas_equal=true", out)
    assert result is not None and float(result[1]) > 0.94, out
    losses = [float(value) for value in re.findall(r"loss=([\d.]+)", out)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("strategy", ["horovod", "low_precision_decentralized"])
def test_the_digits_are_learned_by_lightning(strategy):
    pytest.importorskip("lightning")
    out = run("mnist_lightning.py", "--epochs", "6", "--accelerator", "cpu", "--strategy", strategy)
    for rank in range(2):
        place = f"global rank {rank}, member {rank + 1} of 2, backend rueda, local rank {rank}"
        assert f"{place}, device cpu" in out
    result = re.search(r"test_accuracy=([\d.]+) replicas_equal=true", out)
    assert result is not None and float(result[1]) > 0.94, out
