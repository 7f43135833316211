"""What works on this machine, and how to get what does not: ``python -m rueda.doctor``."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import rueda
from rueda import build, launcher
from rueda.core import _library

#: What pip calls the package; `rueda` on the Python Package Index is another project.
_DISTRIBUTION = "rueda-collectives"
_TRIAL_S = 60.0
_LINES_MAX = 20  # of what a failed trial has printed


@dataclass
class _Finding:
    is_well: bool
    text: str
    details: list[str]
    # Whether nothing works without it.
    is_core: bool = False

    def lines(self) -> list[str]:
        first = f"  {'ok' if self.is_well else 'no'}  {self.text}"
        return [first, *(f"        {line}" for line in self.details)]


@dataclass(frozen=True)
class _Framework:
    name: str
    distributions: tuple[str, ...]  # the first is what to install
    module: str  # of Rueda, for it
    has_tensors: bool  # that Rueda takes without a module for them


_FRAMEWORKS = (
    _Framework("NumPy", ("numpy",), "", True),
    _Framework("torch", ("torch",), "rueda.torch", True),
    _Framework("JAX", ("jax",), "rueda.jax", True),
    _Framework("Lightning", ("lightning", "pytorch-lightning"), "rueda.lightning", False),
    _Framework("TensorFlow", ("tensorflow", "tensorflow-cpu"), "rueda.tensorflow", False),
)


def report() -> str:
    """What works, what does not, and why. Starts a job of two ranks on this host, which takes a
    second, or up to a minute if something is wrong. Frameworks are not imported."""
    return _report(_findings())


def main() -> None:
    """Prints the report. The exit status is 0 if what everything else needs works, else 1."""
    argparse.ArgumentParser(prog="python -m rueda.doctor", description=__doc__).parse_args()
    findings = _findings()
    print(_report(findings))
    sys.exit(0 if all(each.is_well for each in _all(findings) if each.is_core) else 1)


# By the sections of the report.
_Findings = dict[str, list[_Finding]]


def _findings() -> _Findings:
    if mixed := _mixed():
        return {"The package": [mixed]}
    return {
        "The package": [_library_found(), _cloudpickle()],
        **_build(),
        "Tensors of": [_framework(each) for each in _FRAMEWORKS],
        "A job of two ranks on this host": [_trial()],
    }


def _all(findings: _Findings) -> Iterator[_Finding]:
    for section in findings.values():
        yield from section


def _report(findings: _Findings) -> str:
    version = sys.version.split()[0]
    lines = [
        f"Rueda {_library.version()}, in {_library.folder()}",
        f"Python {version}, {sys.executable}",
    ]
    for title, section in findings.items():
        lines += ["", f"{title}:"]
        for each in section:
            lines += each.lines()
    return "\n".join(lines)


# ---- the package ----


def _folder_of(distribution: importlib.metadata.Distribution) -> pathlib.Path:
    return pathlib.Path(str(distribution.locate_file("rueda"))).resolve()


def _mixed() -> _Finding | None:
    """Whether the package's folder is not as its wheel made it: nothing else can be trusted then.
    Uses nothing of the package."""
    folder = pathlib.Path(__file__).parent.resolve()
    again = "pip install --force-reinstall --no-deps WHEEL"
    for name in importlib.metadata.packages_distributions().get("rueda", []):
        each = importlib.metadata.distribution(name)
        if name == _DISTRIBUTION or _folder_of(each) != folder:
            continue
        text = f"another project, {name} {each.version}, has files in {folder} too"
        details = [f"pip uninstall {name}", f"then install Rueda's wheel again: {again}"]
        return _Finding(False, text, details, is_core=True)
    try:
        own = importlib.metadata.distribution(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None  # in a build folder
    if _folder_of(own) != folder:
        return None
    gone = [
        str(file)
        for file in own.files or []
        if file.parts[0] == "rueda" and file.suffix != ".pyc"
        if not pathlib.Path(str(file.locate())).exists()
    ]
    if not gone:
        return None
    text = f"{len(gone)} files of {_DISTRIBUTION} are missing, {gone[0]} for one"
    return _Finding(False, text, [f"install Rueda's wheel again: {again}"], is_core=True)


def _library_found() -> _Finding:
    version = _library.version()
    if version == rueda.__version__:
        return _Finding(True, f"librueda {version}", [], is_core=True)
    text = f"librueda {version}, which is not the package's version: install the wheel again"
    return _Finding(False, text, [], is_core=True)


def _version(distributions: Iterable[str]) -> str:
    """Of the first of them that is installed; "": none is."""
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return ""


def _cloudpickle() -> _Finding:
    version = _version(["cloudpickle"])
    text = f"cloudpickle {version}" if version else "cloudpickle: pip install cloudpickle"
    return _Finding(bool(version), text, [], is_core=True)


def _build() -> _Findings:
    """What ruedarun says of how tensors move and hosts are reached."""
    try:
        said = subprocess.run(
            [launcher.program(), "--check-build"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TRIAL_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        text = f"ruedarun: {error}; install the wheel again"
        return {"ruedarun": [_Finding(False, text, [], is_core=True)]}
    return _read_build(said.stdout)


def _read_build(text: str) -> _Findings:
    """Lines of the form "  [X] what", below a title and with details below them."""
    findings: _Findings = {}
    section: list[_Finding] = []
    for line in text.splitlines():
        if entry := re.fullmatch(r"  \[(.)\] (.*)", line):
            section.append(_Finding(entry[1] == "X", entry[2], []))
        elif line.startswith("      ") and section:
            section[-1].details.append(line.strip())
            section[-1].is_well &= "can't be used here" not in line
        elif line.endswith(":") and not line.startswith(" "):
            section = findings.setdefault(line[:-1], [])
    # Of programs in other languages than this one.
    return {title: each for title, each in findings.items() if not title.startswith("For programs")}


# ---- frameworks ----


def _wanted(distribution: str) -> str:
    """As pip takes it, with the versions that this package names, if it does."""
    try:
        requirements = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    for requirement in requirements:
        wanted = requirement.partition(";")[0].strip()
        if re.match(re.escape(distribution) + "[<>=!~]", wanted):
            return f'"{wanted}"'
    return distribution


def _framework(framework: _Framework) -> _Finding:
    has_module = bool(framework.module) and importlib.util.find_spec(framework.module) is not None
    if not has_module and not framework.has_tensors:
        text = f"{framework.name}: this version of Rueda has no {framework.module}"
        return _Finding(False, text, [])
    version = _version(framework.distributions)
    if not version:
        text = f"{framework.name}: pip install {_wanted(framework.distributions[0])}"
        return _Finding(False, text, [])
    text = f"{framework.name} {version}"
    details = []
    if framework.name == "torch":
        text += f", {_device_of_torch()}"
        backend = "built" if build.find(version) else f"{sys.executable} -m rueda.build"
        details = [f"torch.distributed's backend 'rueda': {backend}"]
    return _Finding(True, f"{text}: import {framework.module if has_module else 'rueda'}", details)


def _device_of_torch() -> str:
    """What it was built for, by its own file, since to import it takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "which can't be found"
    try:
        text = (pathlib.Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return "built for an unknown device"
    cuda = re.search(r"^cuda\b[^=]*=\s*['\"]([^'\"]+)", text, re.MULTILINE)
    return f"CUDA {cuda[1]}" if cuda else "CPU only"


# ---- the trial ----


def _sum_of_ranks() -> int:
    rueda.init()
    total = bytearray([rueda.rank() + 1])
    rueda.allreduce_(total, op=rueda.Sum)
    return total[0]


def _try() -> None:
    sums = rueda.run(_sum_of_ranks, np=2)
    if sums != [3, 3]:
        sys.exit(f"the sums of 1 and 2 are {sums}")


def _trial() -> _Finding:
    """In a process of its own, which can be given up."""
    if importlib.util.find_spec("cloudpickle") is None:
        return _Finding(False, "allreduce by rueda.run: it needs cloudpickle", [], is_core=True)
    folder = str(_library.folder().parent)
    program = f"import sys; sys.path.append({folder!r}); import rueda.doctor as d; d._try()"
    begin = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            said, _ = process.communicate(timeout=_TRIAL_S)
            what = f"failed with status {process.returncode}"
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate()
            what = f"was given up after {_TRIAL_S:.0f} s"
    if process.returncode == 0:
        took = time.monotonic() - begin
        return _Finding(True, f"allreduce by rueda.run, {took:.1f} s", [], is_core=True)
    details = said.splitlines()[-_LINES_MAX:]
    return _Finding(False, f"allreduce by rueda.run {what}", details, is_core=True)


if __name__ == "__main__":
    main()
