#!/usr/bin/env python3
"""Checks who includes whom.

    test/lint/include_edges.py [ROOT]

* Layers: core <- ops <- controller <- bindings/c <- bindings/cpp, bindings/torch, examples. Above
  the C API nothing below it is included.
* Edges: a file of core, ops, controller or bindings/c includes only what its target in the list
  files reaches through DEPS. The edges of the code and those of the build are the same.
* Rooms of pure decisions (negotiation, membership, SLURM's lists, the launcher's decisions)
  reach core and one another only.
* A file that says PURE in its first comment, and its other half, include no header that stands for
  sockets, threads, clocks, files, chance or hash order.
* The sections of rueda.hpp are included by it and by one another only.
* Torch's headers are included by the adapter, its examples and its tests, and nobody else.
"""
import pathlib
import re
import sys

LAYERS = ["core", "ops", "controller", "bindings/c"]  # each may include itself and those before
ABOVE = ["bindings/cpp", "bindings/torch", "bindings/python", "examples"]
PUBLIC = {"rueda/rueda.h": "bindings/c", "rueda/rueda.hpp": "bindings/cpp", "rueda/run.hpp": "bindings/cpp",
          "rueda/precision.hpp": "bindings/torch", "rueda/strategy.hpp": "bindings/torch", "rueda/torch.hpp": "bindings/torch",
          "rueda/torch_deprecated.hpp": "bindings/torch",
          "rueda/training.hpp": "bindings/torch"}
PUBLIC_ALLOWED = {"bindings/c": ["bindings/c"],
                  "bindings/cpp": ["bindings/c", "bindings/cpp"],
                  "bindings/torch": ["bindings/c", "bindings/cpp", "bindings/torch"],
                  "bindings/python": ["bindings/c"],
                  "examples": ["bindings/c", "bindings/cpp", "bindings/torch"]}
# What rueda.hpp is made of, and alone includes.
SECTIONS = "rueda/cpp/"
SECTIONS_HOME = "bindings/cpp/include/"
# Plain C data: what a module and the library know of each other without linking.
WALL_HEADERS = ["ops/backend/module_abi.h", "ops/nccl/cuda_abi.h"]
PURE_TARGETS = ["rueda_negotiation", "rueda_membership", "rueda_slurm_lists", "rueda_launcher_decide"]
TORCH_ALLOWED = ["bindings/torch/", "examples/compare/", "examples/mnist/", "examples/torch_loop/", "examples/trainer/",
                  "examples/tutorials/",
                  "test/torch/",
                 "test/bench/torch/",
                 "test/package/torch/", "test/ops/gloo/gloo_torch_test.cc"]
TORCH_HEADER = re.compile(r"(torch|ATen|c10|caffe2)/")
IMPURE_HEADER = re.compile(
    r"(sys/(socket|un|epoll|eventfd|signalfd|select|poll|time|timerfd|stat|mman|random|syscall|"
    r"resource|prctl|ioctl|file)\.h|netinet/.*|arpa/.*|netdb\.h|ifaddrs\.h|poll\.h|fcntl\.h|"
    r"unistd\.h|dirent\.h|dlfcn\.h|pthread\.h|sched\.h|semaphore\.h|time\.h|"
    r"ctime|chrono|thread|mutex|shared_mutex|condition_variable|future|semaphore|latch|barrier|"
    r"stop_token|random|filesystem|fstream|iostream|unordered_map|unordered_set)")
SUFFIXES = {".h", ".hpp", ".cc", ".c"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


class Target:
    def __init__(self, name, folder, sources, deps):
        self.name, self.folder, self.sources, self.deps = name, folder, sources, deps


def read_targets(root):
    """The targets of the list files under the layers: name -> Target."""
    targets = {}
    for layer in LAYERS:
        for path in sorted((root / layer).rglob("CMakeLists.txt")):
            text = re.sub(r"#.*", "", path.read_text())
            folder = path.parent.relative_to(root).as_posix()
            for body in re.findall(r"rueda_(?:library|program)\(([^)]*)\)", text):
                words = body.split()
                sources = deps = ()
                if "DEPS" in words:
                    deps = words[words.index("DEPS") + 1:]
                    words = words[:words.index("DEPS")]
                if "SOURCES" in words:
                    sources = words[words.index("SOURCES") + 1:]
                targets[words[0]] = Target(words[0], folder, list(sources), list(deps))
            for body in re.findall(r"add_library\(([^)]*)\)", text):
                words = [w for w in body.split() if w not in ("STATIC", "SHARED", "MODULE", "INTERFACE")]
                targets.setdefault(words[0], Target(words[0], folder, words[1:], []))
            for body in re.findall(r"target_link_libraries\(([^)]*)\)", text):
                words = body.split()
                if words[0] in targets:
                    targets[words[0]].deps += words[1:]
    return targets


def reach(targets, name):
    """The names of the targets that `name` may include, itself among them."""
    seen, todo = set(), [name]
    while todo:
        one = todo.pop()
        if one in targets and one not in seen:
            seen.add(one)
            todo += targets[one].deps
    return seen


def owners(targets, path):
    """The targets that a file belongs to: the one that compiles it or its other half, else all of
    its folder."""
    folder, stem = path.parent.as_posix(), path.stem
    here = [t for t in targets.values() if t.folder == folder]
    exact = [t for t in here if any(pathlib.PurePath(s).stem == stem for s in t.sources)]
    return exact or here


def first_comment(text):
    lines = []
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        lines.append(line)
    return "\n".join(lines)


def layer_of(path):
    return next((l for l in LAYERS + ABOVE if path.startswith(l + "/")), None)


class Checker:
    def __init__(self, root):
        self.root = root
        self.targets = read_targets(root)
        self.reached = {name: reach(self.targets, name) for name in self.targets}
        self.errors = []
        self.edges = self.pure_files = 0

    def error(self, path, header, why):
        self.errors.append(f"{path.as_posix()}: includes {header}: {why}")

    def check_layer(self, path, header):
        """True when the header is in an allowed layer."""
        if header.startswith(SECTIONS) and not path.as_posix().startswith(SECTIONS_HOME):
            self.error(path, header, "it is a section of rueda/rueda.hpp: include that")
            return False
        mine, theirs = layer_of(path.as_posix()), PUBLIC.get(header) or layer_of(header)
        if theirs is None or mine is None:
            return True
        if header in PUBLIC:
            allowed = theirs in PUBLIC_ALLOWED.get(mine, [])
        elif mine in LAYERS:
            allowed = theirs in LAYERS[:LAYERS.index(mine) + 1]
        else:
            allowed = theirs == mine
        if not allowed:
            self.error(path, header, f"{mine} knows nothing of {theirs}")
        return allowed

    def check_edge(self, path, header):
        if layer_of(path.as_posix()) not in LAYERS or layer_of(header) not in LAYERS:
            return
        if header in WALL_HEADERS:
            return
        self.edges += 1
        mine = owners(self.targets, path)
        generated = header.endswith(".pb.h")
        if not generated and not (self.root / header).exists():
            self.error(path, header, "there is no such file")
            return
        theirs = owners(self.targets, pathlib.PurePath(header))
        reached = set().union(*(self.reached[t.name] for t in mine))
        if not reached & {t.name for t in theirs}:
            names = ", ".join(sorted(t.name for t in mine)) or "(no target)"
            wanted = ", ".join(sorted(t.name for t in theirs)) or header
            self.error(path, header, f"{names} does not reach {wanted} through DEPS")

    def check_pure_targets(self):
        for name in PURE_TARGETS:
            if name not in self.targets:
                self.errors.append(f"there is no target {name}; is {sys.argv[0]} out of date?")
                continue
            for other in sorted(self.reached[name]):
                folder = self.targets[other].folder
                if not folder.startswith("core/") and other not in PURE_TARGETS:
                    self.errors.append(f"{name} reaches {other} of {folder}: it may see core only")

    def is_pure(self, path, text):
        if re.search(r"\bPURE\b", first_comment(text)):
            return True
        for suffix in SUFFIXES - {path.suffix}:
            half = (self.root / path).with_suffix(suffix)
            if half.exists() and re.search(r"\bPURE\b", first_comment(half.read_text())):
                return True
        return False

    def check_file(self, path):
        text = (self.root / path).read_text()
        pure = layer_of(path.as_posix()) in LAYERS and self.is_pure(path, text)
        self.pure_files += pure
        for _, header in INCLUDE.findall(text):
            if self.check_layer(path, header):
                self.check_edge(path, header)
            if pure and IMPURE_HEADER.fullmatch(header):
                self.error(path, header, "the file is PURE")
            if TORCH_HEADER.match(header) and not path.as_posix().startswith(tuple(TORCH_ALLOWED)):
                self.error(path, header, "only the LibTorch adapter and its users know torch")

    def run(self):
        files = 0
        for top in ["core", "ops", "controller", "bindings", "examples", "test"]:
            for path in sorted((self.root / top).rglob("*")):
                if path.suffix in SUFFIXES:
                    files += 1
                    self.check_file(path.relative_to(self.root))
        self.check_pure_targets()
        if files == 0 or self.edges == 0 or self.pure_files == 0:
            self.errors.append(f"nothing was checked under {self.root}")
        for error in self.errors:
            print(error)
        print(f"{files} files, {self.edges} edges, {self.pure_files} pure files, "
              f"{len(self.errors)} errors")
        return 1 if self.errors else 0


if __name__ == "__main__":
    default = pathlib.Path(__file__).resolve().parents[2]
    sys.exit(Checker(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default).run())
