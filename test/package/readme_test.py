#!/usr/bin/env python3
"""Does what README.md says, as somebody who reads it would.

    readme_test.py REPOSITORY BUILD [--package DIR]

Takes listings and commands out of README.md, writes the listings to the files that they are named
after, runs the commands in a home and folders of their own, and compares what is printed. Commands
that take minutes are not run, only what they name is looked for. Links must lead somewhere.

--package is where BUILD was installed already; else `cmake --install` does that, as README says.
Exit status: 0, 1, or 77 when skipped. What is skipped is printed, with the reason.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

# Tested by others, or too long for this test. README must have them all.
LONG = [
    "third_party/setup.sh",
    "cmake --workflow --preset release",
    "pip wheel",
    "pip install",
    "examples/mnist/run.sh",
    "test/run.sh",
]
LONG_WORDS = ["python -m rueda.build"]  # between the lines: the modules need only exist
LISTINGS = ("python", "cpp", "cmake")
PAGES = ("README.md", "SECURITY.md", "RELEASING.md")
SECONDS = 240  # for one block; a compiler takes ten for torch, on an idle machine


class Failure(Exception):
    """What README says is not so."""


@dataclasses.dataclass
class Block:
    """A listing, commands (`sh`), or what they print (`text`)."""

    kind: str
    text: str
    line: int
    section: str
    name: str = ""  # a listing's file


def blocks_of(page):
    """All blocks of a page in their order; indented ones are commands."""
    blocks, section, inside = [], "", None
    above, words = "", ""  # the line above, and the last one that is not empty
    for number, line in enumerate(page.splitlines(), 1):
        if inside is not None:
            if line == "```":
                inside = None
            else:
                inside.text += line + "\n"
            continue
        if line.startswith("```"):
            named = re.search(r"`([\w.]+)`:$", words)
            inside = Block(line[3:], "", number, section, named[1] if named else "")
            blocks.append(inside)
        elif line.startswith("    ") and (not above or above.startswith("    ")):
            blocks.append(Block("sh", line[4:] + "\n", number, section))
        elif line.startswith("## "):
            section = line[3:]
        above, words = line, line or words
    if inside is not None:
        raise Failure(f"README.md:{inside.line}: the listing has no end")
    return blocks


def commands_of(text):
    """The commands of a block, without comments; a line that ends in a backslash goes on."""
    lines = text.replace("\\\n", " ").splitlines()
    return [" ".join(line.split(" #")[0].split()) for line in lines if line.strip()]


def slug(heading):
    """As GitHub makes anchors of headings."""
    words = re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors_of(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {slug(heading) for heading in re.findall(r"^#+ +(.*)$", text, re.M)}


def check_links(root):
    for name in PAGES:
        page = root / name
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if re.match(r"https?:", target):
                continue
            place, _, anchor = target.partition("#")
            path = page.parent / place if place else page
            if not path.exists():
                raise Failure(f"{name}: the link {target} leads nowhere")
            if anchor and anchor not in anchors_of(path):
                raise Failure(f"{name}: the link {target} has no such heading")


def check_words(root, page):
    """Scripts and modules that the text names exist. Returns the commands that are short."""
    commands = []
    for word in re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page, flags=re.M | re.S)):
        script = re.match(r"([\w./-]+/[\w.-]+\.(?:sh|py))\b", word)
        if script and not (root / script[1]).exists():
            raise Failure(f"README.md names {script[1]}, which does not exist")
        module = re.match(r"python -m ([\w.]+)$", word)
        if module:
            place = root / "bindings" / "python" / module[1].replace(".", "/")
            if not (place.with_suffix(".py").exists() or (place / "__main__.py").exists()):
                raise Failure(f"README.md: there is no module for `{word}`")
        if (module or word.startswith("ruedarun ")) and word not in LONG_WORDS:
            commands.append(word)
    return commands


def check_chart(root, page):
    """The picture is that of the numbers, and so is the text."""
    done = subprocess.run([sys.executable, root / "docs/assets/training_step.py", "--check"],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(done.stderr.strip())
    numbers = json.loads((root / "docs/assets/training_step.json").read_text(encoding="utf-8"))
    words = " ".join(page.split())
    for way in numbers["ways"]:
        if way["name"] == "rueda.torch" or way["name"].startswith("Horovod"):
            first, second, third = (f"{number:g}" for number in way["added"])
            if f"{first}, {second} and {third} ms" not in words:
                raise Failure(f"README.md does not say what {way['name']} adds: {way['added']}")


def check_long(root, command):
    words = shlex.split(command)
    if command.startswith("cmake --workflow"):
        presets = json.loads((root / "CMakePresets.json").read_text(encoding="utf-8"))
        if words[-1] not in [preset["name"] for preset in presets["workflowPresets"]]:
            raise Failure(f"there is no preset for: {command}")
    elif command.startswith("pip wheel"):
        if not (root / words[-1] / "pyproject.toml").exists():
            raise Failure(f"there is nothing to build: {command}")
    elif command.startswith("pip install"):
        # Nothing of ours is on an index.
        if not all("/" in word or word.startswith("-") for word in words[2:]):
            raise Failure(f"installs something that is no path: {command}")
    elif not os.access(root / words[0], os.X_OK):
        raise Failure(f"there is no such script: {command}")


class Reader:
    """Somebody with a clone, a build and a home."""

    def __init__(self, root, build, package, scratch):
        self.root, self.build, self.package = root, build, package
        self.home, self.clone, self.own = (scratch / name for name in ("home", "clone", "own"))
        for folder in (self.home, self.clone, self.own, self.clone / "build"):
            folder.mkdir()
        for path in root.iterdir():
            if path.name not in ("build", ".git"):
                (self.clone / path.name).symlink_to(path)
        (self.clone / "build" / "release").symlink_to(build)
        if package:
            (self.home / "rueda").symlink_to(package)
        cache = self.home / ".cache" / "rueda"
        cache.mkdir(parents=True)
        self.has_venv = sys.prefix != sys.base_prefix
        if self.has_venv:
            (cache / "venv").symlink_to(sys.prefix)
        self.settings = []  # commands that later ones rely on

    def run(self, commands, folder):
        """Runs commands after the settings; returns what they print."""
        leave_out = re.compile("RUEDA_|HOROVOD_|XDG_|PYTHONPATH|LD_LIBRARY_PATH|VIRTUAL_ENV|OMP_")
        environment = {k: v for k, v in os.environ.items() if not leave_out.match(k)}
        environment["HOME"] = str(self.home)
        lines = [f"cd {shlex.quote(str(self.clone))}", *self.settings,
                 f"cd {shlex.quote(str(folder))}", *commands]
        what = "; ".join(commands)
        with subprocess.Popen(["bash", "-euc", "\n".join(lines)], env=environment, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, start_new_session=True) as shell:
            try:
                out, errors = shell.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(shell.pid, signal.SIGKILL)  # with all that it has started
                out, errors = shell.communicate()
                raise Failure(f"README.md: {what}: not done after {SECONDS} s\n{out}{errors}"
                              ) from None
        if shell.returncode != 0:
            raise Failure(f"README.md: {what}: exit status {shell.returncode}\n{out}{errors}")
        return out

    def set_up(self, commands):
        """What README has one do in the clone."""
        for command in commands:
            if command.startswith(". "):
                if self.has_venv:
                    self.settings.append(command)
            elif command.startswith("export "):
                self.settings.append(command)
            elif command.startswith("cmake --install") and self.package:
                continue
            else:
                self.run([command], self.clone)


def missing(text, build):
    """Why a listing can't be used here; nothing when it can."""
    if "torch" not in text:
        return ""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:  # the folder `torch` beside this file is no package
        return "this Python has no torch"
    if "rueda.torch" not in text and not (build / "lib" / "librueda_torch.so").exists():
        return "the LibTorch adapter was not built"
    return ""


def follow(reader, blocks):
    """Does what the blocks say."""
    met, names, why, printed, checked = set(), [], "", None, 0
    for block in blocks:
        where = f"README.md:{block.line}"
        if block.kind in LISTINGS:
            if not block.name:
                raise Failure(f"{where}: name the listing's file before it: `name`:")
            (reader.own / block.name).write_text(block.text, encoding="utf-8")
            names.append(block.name)
            why = why or missing(block.text, reader.build)
        elif block.kind == "sh":
            printed, commands = None, commands_of(block.text)
            long = {c: next((n for n in LONG if c.startswith(n)), None) for c in commands}
            for command in filter(long.get, commands):
                check_long(reader.root, command)
                met.add(long[command])
            short = [command for command in commands if not long[command]]
            if block.section == "Install":
                reader.set_up(short)
            elif why:
                print(f"SKIPPED in part: {', '.join(names)}: {why}")
            elif short:
                printed = reader.run(short, reader.own)
                print(f"{where}: {'; '.join(short)}: done")
            if short and not why:
                checked += len(names)
            names, why = [], ""
        elif block.kind == "text":
            if printed is not None and sorted(printed.splitlines()) != sorted(
                    block.text.splitlines()):
                raise Failure(f"{where}: it says that this is printed:\n{block.text}"
                              f"but this is:\n{printed}")
        else:
            raise Failure(f"{where}: what is a listing of {block.kind or 'no language'}?")
    if names:
        raise Failure(f"README.md: no command starts {', '.join(names)}")
    if set(LONG) - met:
        raise Failure(f"README.md does not have: {', '.join(sorted(set(LONG) - met))}")
    return checked


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("repository", type=pathlib.Path)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--package", type=lambda text: pathlib.Path(text).resolve())
    arguments = parser.parse_args()
    root, build = arguments.repository.resolve(), arguments.build.resolve()
    for program in ("bash", "cmake", "g++"):
        if shutil.which(program) is None:
            print(f"SKIPPED: there is no {program}")
            return 77
    page = (root / "README.md").read_text(encoding="utf-8")
    try:
        check_links(root)
        words = check_words(root, page)
        check_chart(root, page)
        with tempfile.TemporaryDirectory(prefix="readme-") as scratch:
            reader = Reader(root, build, arguments.package, pathlib.Path(scratch))
            done = follow(reader, blocks_of(page))
            for command in words:
                reader.run([command], reader.own)
                print(f"README.md: {command}: done")
            print(f"listings that did what README.md says: {done}")
    except Failure as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
