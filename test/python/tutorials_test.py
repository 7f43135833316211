"""The tutorials: the commands of docs/tutorials print what the pages show, and what the pages quote
is in examples/tutorials.

A command is run if a block of text comes after it. In such a block a line of three dots stands for
any lines, dots within a line for anything, and a line that is indented by eight continues the one
before. Process ids and host names may differ, losses a little.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from rueda import launcher

sys.path.append(str(pathlib.Path(__file__).parent.parent / "clusters"))
import sshd  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ROOT / "docs" / "tutorials"
PROGRAMS = ROOT / "examples" / "tutorials"
# Of the build; an installation from a wheel has none.
BUILD = pathlib.Path(launcher.program()).resolve().parents[1]
HANG_S = 200
TOLERANCE = {"loss": 0.02, "right:": 1.0}


class Block(NamedTuple):
    kind: str
    text: str


def blocks(page: str) -> list[Block]:
    text = (PAGES / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(*each) for each in found]


def commands(page: str) -> Iterator[tuple[str, str]]:
    """Each with what it prints; "": the page does not say."""
    all_blocks = blocks(page)
    for block, following in zip(all_blocks, [*all_blocks[1:], Block("", "")], strict=True):
        if block.kind == "sh":
            yield block.text, following.text if following.kind == "text" else ""


# ---- what is quoted ----


def is_in(quote: str, program: pathlib.Path) -> bool:
    """Whether the lines are some of the program's, as they stand."""
    return f"\n{quote}" in "\n" + program.read_text(encoding="utf-8")


def side(diff: str, left_out: str) -> str:
    """One of the two texts that a diff compares."""
    kept = [line[1:] for line in diff.splitlines() if not line.startswith(left_out)]
    return "".join(f"{line}\n" for line in kept)


@pytest.mark.parametrize(
    "page, folder, count",
    [("pytorch.md", "pytorch", 6), ("cpp.md", "cpp", 6), ("two-hosts.md", "two_hosts", 1)],
)
def test_pages_quote_programs(page, folder, count):
    quotes = [each for each in blocks(page) if each.kind not in ("sh", "text")]
    assert len(quotes) >= count
    for quote in quotes:
        if quote.kind == "diff":
            assert is_in(side(quote.text, "+"), PROGRAMS / folder / "alone.py"), quote.text
            assert is_in(side(quote.text, "-"), PROGRAMS / folder / "train.py"), quote.text
        else:
            files = [each for each in (PROGRAMS / folder).iterdir() if each.is_file()]
            assert any(is_in(quote.text, file) for file in files), quote.text


def test_programs_differ_by_what_is_added():
    """But for what they report, and their headings."""
    alone, together = (
        (PROGRAMS / "pytorch" / name).read_text(encoding="utf-8").split("import sys")[1]
        for name in ("alone.py", "train.py")
    )
    left = iter(together.splitlines())
    for line in alone.splitlines():
        if "print" not in line:
            assert line in left, f"train.py has no line '{line}', or has it too early"


# ---- what is printed ----


def masked(line: str) -> tuple[str, list[tuple[str, float]]]:
    """Without what may differ, and the numbers that are to be near."""
    line = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "vm", line)
    line = re.sub(r"\(SIGKILL\), .*; membership", "(SIGKILL), #; membership", line)
    line = re.sub(r"\bpid \d+", "pid #", line)
    # A rank that has an error and takes long to end is ended.
    line = re.sub(
        r"(exited with status 1|ended by ruedarun \(SIGTERM\) after rank \d+ failed)$",
        "ended",
        line,
    )
    line = re.sub(r"^(\*?) +(\d+|rank) +(\d+|pid) +", r"\1 \2 # ", line)  # of ruedarun's table
    line = re.sub(r" +", " ", line)
    numbers: list[tuple[str, float]] = []

    def keep(match: re.Match[str]) -> str:
        numbers.append((match[1], float(match[2])))
        return f"{match[1]} #"

    return re.sub(r"(loss|right:) ([\d.]+)", keep, line), numbers


def is_like(printed: str, shown: str) -> bool:
    (text, numbers), (wanted, near) = masked(printed), masked(shown)
    pattern = re.escape(wanted).replace(re.escape("..."), ".*")
    if not re.fullmatch(pattern, text):
        return False
    return all(
        abs(a - b) <= TOLERANCE[what] for (what, a), (_, b) in zip(numbers, near, strict=True)
    )


def expect(printed: str, shown: str) -> None:
    """Ranks print in any order."""
    # On a machine that is busy ranks may warn of connections that came to nothing.
    left = [
        line for line in printed.splitlines() if not re.match(r"(\[\d+\] )?\[rueda \d+\] W", line)
    ]
    wanted = re.sub(r"\n {8}(?=\S)", " ", shown).splitlines()
    for line in wanted:
        if line != "...":
            found = next((each for each in left if is_like(each, line)), None)
            assert found is not None, f"'{line}' is not in\n{printed}"
            left.remove(found)
    assert "..." in wanted or not left, f"not on the page: {left}"


class Shell:
    """A copy of a tutorial's folder, in which `python` and `ruedarun` are the ones under test."""

    def __init__(self, folder: str, scratch: pathlib.Path) -> None:
        self.folder = scratch / folder
        shutil.copytree(PROGRAMS / folder, self.folder)
        tools = scratch / "bin"
        tools.mkdir()
        # A link would make another environment of a virtual one.
        (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
        (tools / "python").chmod(0o755)
        (tools / "ruedarun").symlink_to(launcher.program())
        self.environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "HOME": str(scratch),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(scratch),
            "TUTORIAL_DIR": str(scratch / f"tutorial-{os.getpid()}"),
        }

    def start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    @staticmethod
    def end(process: subprocess.Popen[str]) -> None:
        """With what it has started, if anything is left."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def run(self, command: str) -> str:
        """What it prints, and its status."""
        process = self.start(f"{command}\necho status $?")
        try:
            return process.communicate(timeout=HANG_S)[0]
        finally:
            self.end(process)

    def expect(self, command: str, shown: str) -> None:
        printed = self.run(command)
        text, _, status = printed.rpartition("status ")
        if shown:
            expect(text, shown)
        else:
            assert int(status) == 0, f"{command}: {printed}"


# ---- the commands ----


def kill_rank_1(shell: Shell, command: str) -> str:
    """Once it trains; what all print. A pipe hides lines from people only."""
    process = shell.start(f"exec {command.partition('|')[0]}")
    printed, pid = "", 0
    try:
        assert process.stdout is not None
        for line in process.stdout:
            printed += line
            if started := re.match(r"ruedarun: rank 1 started, pid (\d+)", line):
                pid = int(started[1])
            if line.startswith("[0] epoch 2:") and pid:
                os.kill(pid, signal.SIGKILL)
        process.wait(HANG_S)
    finally:
        shell.end(process)
    return printed


def test_pytorch(tmp_path):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    shell = Shell("pytorch", tmp_path)
    run = 0
    for command, shown in commands("pytorch.md"):
        if "--verbose" in command:
            expect(kill_rank_1(shell, command), shown)
        elif shown:
            shell.expect(command, shown)
        else:
            continue
        run += 1
    assert run == 4


def installed(shell: Shell) -> None:
    """At ~/rueda, as the page has it."""
    place = pathlib.Path(shell.environment["HOME"]) / "rueda"
    if given := os.environ.get("PREFIX_OF_RUEDA"):
        place.symlink_to(given)
    elif (BUILD / "cmake_install.cmake").exists():
        subprocess.run(
            ["cmake", "--install", str(BUILD), "--prefix", str(place)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    else:
        pytest.skip("there is no build to install")


def test_cpp(tmp_path):
    """The project is configured as a whole. Of its programs train.cc takes a compiler half a minute
    and is compiled by the build (examples/CMakeLists.txt)."""
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    train = BUILD / "bin" / "tutorial_train"
    if not train.exists():
        pytest.skip("the LibTorch adapter was not built")
    shell = Shell("cpp", tmp_path)
    shell.environment["CCACHE_DISABLE"] = "1"
    installed(shell)
    venv = pathlib.Path(sys.executable).parents[1]
    shell.environment.setdefault("RUEDA_VENV", str(venv))  # HOME is another
    run = 0
    for command, shown in commands("cpp.md"):
        if "cmake --build build" in command:
            shell.expect("set -e\n" + command.rstrip() + " --target average wrong_shape", "")
            (shell.folder / "build" / "train").symlink_to(train)
        elif shown:
            shell.expect(command, shown)
        else:
            continue
        run += 1
    assert run == 4


def test_two_hosts(tmp_path):
    shell = Shell("two_hosts", tmp_path)
    why_not = sshd.why_not()
    run = 0
    try:
        for command, shown in commands("two-hosts.md"):
            if command.startswith("cd ") or (why_not and "namespaces.sh" in command):
                continue
            place = shell.environment["TUTORIAL_DIR"]
            shell.expect(command.replace("/tmp/rueda-tutorial", place), shown)
            run += 1
    finally:
        if not why_not:
            shell.run("./namespaces.sh down")
    if why_not:
        pytest.skip(why_not)
    assert run == 6
