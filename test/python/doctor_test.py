"""rueda.doctor says what there is, and what there is not."""

import importlib.metadata
import os
import re
import subprocess
import sys

import pytest

import rueda
from rueda import doctor

HANG = 120  # seconds


def run_doctor(*options, **variables):
    return subprocess.run(
        [sys.executable, *options, "-m", "rueda.doctor"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG,
        env={**os.environ, **variables},
    )


def test_what_works_is_said():
    pytest.importorskip("cloudpickle")
    done = run_doctor()
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines[0].startswith(f"Rueda {rueda.__version__}, in {os.path.dirname(rueda.__file__)}")
    assert f"  ok  librueda {rueda.__version__}" in lines
    assert f"  ok  cloudpickle {importlib.metadata.version('cloudpickle')}" in lines
    assert "  ok  shared memory, inside a host" in lines
    assert re.fullmatch(r"  ok  allreduce by rueda\.run, \d+\.\d s", lines[-1])
    assert "LibTorch" not in done.stdout  # that is no matter of Python's


def test_what_is_not_installed_is_said_with_how_to_get_it():
    done = run_doctor("-S")  # nothing but the standard library
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    for line in (
        "  no  cloudpickle: pip install cloudpickle",
        "  no  NumPy: pip install numpy",
        "  no  torch: pip install torch",
        "  no  allreduce by rueda.run: it needs cloudpickle",
    ):
        assert line in lines, done.stdout


@pytest.mark.parametrize("module", ["rueda.build", "rueda.doctor"])
def test_a_command_without_options_has_help_and_refuses_the_rest(module):
    for option, status, text in (("--help", 0, f"usage: python -m {module}"), ("now", 2, "now")):
        done = subprocess.run(
            [sys.executable, "-m", module, option], capture_output=True, text=True, timeout=HANG
        )
        assert done.returncode == status and text in done.stdout + done.stderr


def test_a_job_that_fails_is_said_with_what_it_printed():
    pytest.importorskip("cloudpickle")
    done = run_doctor(RUEDA_STALL_WARN_S="soon")
    assert done.returncode == 1
    assert "  no  allreduce by rueda.run failed with status 1\n" in done.stdout
    assert "RUEDA_STALL_WARN_S" in done.stdout


def test_a_job_that_hangs_is_given_up(monkeypatch):
    pytest.importorskip("cloudpickle")
    monkeypatch.setattr(doctor, "_TRIAL_S", 0.01)
    finding = doctor._trial()
    assert not finding.is_well
    assert finding.text == "allreduce by rueda.run was given up after 0 s"


def test_frameworks_are_not_imported():
    program = """
import sys
from rueda import doctor
doctor.report()
print(*{"jax", "lightning", "numpy", "tensorflow", "torch"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "\n", done.stderr


def test_a_framework_is_said_to_work_only_with_the_module_for_it():
    def line(module, has_tensors):
        framework = doctor._Framework("Such", ("pytest",), module, has_tensors)
        return doctor._framework(framework).lines()

    version = importlib.metadata.version("pytest")
    assert line("rueda.core", False) == [f"  ok  Such {version}: import rueda.core"]
    assert line("rueda.such", False) == ["  no  Such: this version of Rueda has no rueda.such"]
    assert line("rueda.such", True) == [f"  ok  Such {version}: import rueda"]


def test_devices_that_cant_be_used_are_said_to_be_missing():
    text = """ruedarun 0.1.0

For programs in (libraries in /lib):
  [X] C and C++: librueda.so

Tensors move by:
  [X] shared memory, inside a host
  [{}] NCCL, between GPUs: librueda_nccl.so
      NCCL 2.32.3
      {}
"""

    def lines(mark, detail):
        return doctor._read_build(text.format(mark, detail))["Tensors move by"][1].lines()

    of_nccl = "NCCL, between GPUs: librueda_nccl.so"
    assert lines("X", "device 0: A")[::2] == [f"  ok  {of_nccl}", "        device 0: A"]
    assert lines("X", "can't be used here: no")[0] == f"  no  {of_nccl}"
    assert lines(" ", "")[0] == f"  no  {of_nccl}"
    assert list(doctor._read_build(text)) == ["Tensors move by"]


def test_the_device_of_torch_is_that_which_it_says_itself():
    torch = pytest.importorskip("torch")
    said = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    assert doctor._device_of_torch() == said
