"""How long a job stands still when a process is killed: from `kill -9` of one of four ranks on this host to the first
allreduce that the others complete, and what others do with the same program.

    test/bench/elastic_bench.py --build build/release [--kills 200] [--large-kills 10] [--spares 50]
        [--peers 3 --peer-rounds 3 --horovod-python PYTHON --torchft-python PYTHON]

Rueda's own part needs no torch. The peers' part trains one small model (peers/elastic_program.py) under Rueda, Horovod
Elastic, torchrun and torchft, one after the other in each round, and prints for each, as median and worst:

* the time from the kill to the next step that all survivors complete, or all processes where all start anew;
* the time until four ranks work again;
* the steps lost: completed ones that were rolled back, and ones whose gradients survivors gave up.

Some of it is a matter of settings. All but torchft, which needs none, commit or save every 10 steps. Horovod excludes a
failed host for 5 s here. Its ranks that have no exchange with the dead one wait for Gloo's limit, 30 s by default.
torchft's lighthouse takes a replica for dead after 5 s by default."""
import argparse
import atexit
import dataclasses
import glob
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import typing

AT_WORK = re.compile(r"membership (\d+) rank (\d+) of (\d+) survivors (\d+) step (\d+) pid (\d+) at ([\d.]+)")
HANG = 120


class Job:
    def __init__(self, words, **environment):
        self.folder = tempfile.mkdtemp()
        self.path = os.path.join(self.folder, "out")
        with open(self.path, "wb") as out:
            self.process = subprocess.Popen(list(map(str, words)), stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=subprocess.STDOUT, env={**os.environ, "RUEDA_RECORDER_DIR": self.folder,
                                                                           "END": os.path.join(self.folder, "end"),
                                                                           **environment})
        atexit.register(self.process.kill)

    def text(self):
        with open(self.path, encoding="utf-8", errors="replace") as out:
            return out.read()

    def membership(self, least, after):
        """The first after that number in which all of at least so many ranks are at work: its number, pids by rank, and
        when the last of them had completed an operation."""
        deadline = time.monotonic() + HANG
        while time.monotonic() < deadline and self.process.poll() is None:
            found = {}
            for line in AT_WORK.finditer(self.text()):
                found.setdefault((int(line[1]), int(line[3])), {})[int(line[2])] = (int(line[6]), float(line[7]))
            for (number, ranks), members in sorted(found.items()):
                if number > after and ranks >= least and len(members) == ranks:
                    return number, {rank: pid for rank, (pid, _) in members.items()}, max(at for _, at in members.values())
            time.sleep(0.005)
        sys.exit(f"no membership of {least} after {after}:\n{self.text()[-3000:]}")

    def end(self):
        self.process.kill()
        self.process.wait()


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def row(name, gaps, extra=""):
    print(f"{name:34} {len(gaps):4} kills  p50 {statistics.median(gaps) * 1e3:8.1f} ms  "
          f"p99 {percentile(gaps, 0.99) * 1e3:8.1f} ms  max {max(gaps) * 1e3:8.1f} ms{extra}", flush=True)


def end_of_file(megabytes):
    """From the kill of a plain process with so much memory to the end of file on its pipe."""
    program = f"import sys, time; b = bytearray(b'x') * ({megabytes} << 20); print('there', flush=True); time.sleep(1000)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    process.stdout.readline()
    since = time.monotonic()
    process.kill()
    process.stdout.read()
    took = time.monotonic() - since
    process.wait()
    return took


def own(args, kills, megabytes):
    chance = random.Random(1)
    job = Job([f"{args.build}/bin/ruedarun", "-np", 4, "--min-np", 2, "--blacklist-cooldown-range", "0.01", "0.01",
               f"{args.build}/test/elastic_helper", "--steps", 100_000_000, "--pause", 1, "--commit", 5,
               "--ballast", megabytes])
    gaps, files, number = [], [], 0
    for _ in range(kills):
        number, pids, _ = job.membership(4, number - 1)
        time.sleep(0.05 + 0.05 * chance.random())
        heavy = re.findall(r"^\[3\] membership \d+ rank \d+ of \d+ survivors \d+ step \d+ pid (\d+)", job.text(), re.MULTILINE)
        victim = int(heavy[-1]) if megabytes else pids[chance.randrange(4)]
        if megabytes:
            files.append(end_of_file(megabytes))
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        number, _, at = job.membership(3, number)
        gaps.append(at - killed)
    job.end()
    extra = f"  end of file of such a process {statistics.median(files) * 1e3:.0f} ms" if files else ""
    row(f"Rueda, {megabytes or 'a few'} MiB", gaps, extra)


def spares(args):
    """From the kill of one of four ranks to the first allreduce of four again: a spare has taken its place."""
    chance = random.Random(1)
    job = Job([f"{args.build}/bin/ruedarun", "-H", "localhost:5", "-np", 4, "--min-np", 3, "--max-np", 4, "--spares", 1,
               "--blacklist-cooldown-range", "0.01", "0.01",
               f"{args.build}/test/elastic_helper", "--steps", 100_000_000, "--pause", 1, "--commit", 5])
    gaps, number = [], 0
    for _ in range(args.spares):
        number, pids, _ = job.membership(4, number - 1)
        time.sleep(1 + 0.05 * chance.random())  # until the next spare waits
        killed = time.monotonic()
        os.kill(pids[chance.randrange(4)], signal.SIGKILL)
        number, _, at = job.membership(4, number)
        gaps.append(at - killed)
    job.end()
    row("Rueda, a spare's first step", gaps)


def signal_group(leader, which):
    try:
        os.killpg(leader.pid, which)
    except ProcessLookupError:
        pass


class PeerJob:
    """The processes of one peer, and what the program's have written."""

    def __init__(self, folder, commands, environment):
        self.folder = folder
        self.out = os.path.join(folder, "out")
        self.launchers = []
        atexit.register(self.end)
        with open(self.out, "wb") as out:
            for words, own in commands:
                self.launchers.append(subprocess.Popen(
                    list(map(str, words)), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=folder,
                    start_new_session=True,
                    env={**os.environ, "RUEDA_RECORDER_DIR": folder, "OMP_NUM_THREADS": "1", **environment, **own}))

    def steps(self):
        """By pid: (what, step, ranks, when), in order."""
        found = {}
        for path in glob.glob(os.path.join(self.folder, "steps.*")):
            with open(path, encoding="utf-8") as lines:
                words = [line.split() for line in lines if line.endswith("\n")]
            found[int(path.rsplit(".", 1)[1])] = [(what, int(number), int(ranks), float(when))
                                                  for what, number, ranks, when in words]
        return found

    def together(self, ranks, after, old, gone):
        """The first time after that one by which so many processes have completed a step of so many, not only `old` ones
        if there are any, nor the one that is `gone`; and their pids. None while there is none."""
        first = {}
        for pid, lines in self.steps().items():
            times = [when for what, _, size, when in lines if what == "done" and size == ranks and when > after]
            if times and pid != gone:
                first[pid] = times[0]
        newest = sorted(first, key=first.get)[-ranks:]
        if len(newest) < ranks or not set(newest) - old:
            return None
        return first[newest[-1]], frozenset(newest)

    def wait(self, condition):
        deadline = time.monotonic() + HANG
        while time.monotonic() < deadline:
            if condition() is not None:
                time.sleep(0.05)  # until those that were a moment later have their lines
                return condition()
            if any(launcher.poll() is not None for launcher in self.launchers):
                raise TimeoutError(f"a launcher ended; {self.out}")
            time.sleep(0.05)
        raise TimeoutError(f"nothing within {HANG} s; {self.out}")

    def end(self):
        """Ends them all; a launcher's own processes are in its group or are ended by it."""
        for launcher in self.launchers:
            signal_group(launcher, signal.SIGTERM)
        deadline = time.monotonic() + 10
        for launcher in self.launchers:
            try:
                launcher.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            signal_group(launcher, signal.SIGKILL)
            launcher.wait()
        for pid in self.steps():  # what a launcher has left behind
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as words:
                    if self.folder.encode() in words.read():
                        os.kill(pid, signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                pass
        self.launchers = []


@dataclasses.dataclass
class Loss:
    next_step: float  # from the kill until the others, or all when all start anew, have completed a step
    ranks: int  # how many took part in it
    all_again: float  # until four ranks have
    repeated: int  # completed steps that were rolled back
    dropped: int  # steps whose gradients a survivor computed and gave up


@dataclasses.dataclass
class Peer:
    name: str
    python: str
    module: str
    commands: typing.Callable  # of the program and its folder: [(command, environment)]
    environment: dict = dataclasses.field(default_factory=dict)
    losses: list = dataclasses.field(default_factory=list)
    failures: int = 0  # rounds that were given up

    def missing(self):
        if not os.path.exists(self.python):
            return f"{self.python} is missing"
        tried = subprocess.run([self.python, "-c", f"import torch, {self.module}"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, env={**os.environ, **self.environment}, check=False)
        return (tried.stderr.strip().splitlines() or ["?"])[-1] if tried.returncode else ""

    def round(self, turn, kills, chance):
        folder = tempfile.mkdtemp(prefix="elastic-bench-")
        job = PeerJob(folder, self.commands(folder), self.environment)
        try:
            _, pids = job.wait(lambda: job.together(4, 0, frozenset(), 0))
            for _ in range(kills):
                time.sleep(1 + chance.random())
                loss, pids = kill_one(job, pids, chance.choice(sorted(pids)))
                self.losses.append(loss)
                print(f"round {turn}  {self.name:30} next step {loss.next_step:7.3f} s "
                      f"of {loss.ranks}  all again {loss.all_again:7.3f} s  repeated {loss.repeated}  dropped {loss.dropped}", flush=True)
        except (TimeoutError, ProcessLookupError) as error:
            self.failures += 1
            print(f"round {turn}  {self.name:30} FAILED: {error}", flush=True)
        finally:
            job.end()


def kill_one(job, pids, victim):
    """What the loss of one of those four costs; and the pids of the four that work afterwards."""
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    others = pids - {victim}
    again, now = job.wait(lambda: job.together(4, killed, pids, victim))
    # Of the three others, one may be lost too: Horovod's abort at times.
    sizes = {ranks: found[0] for ranks in (2, 3) if (found := job.together(ranks, killed, frozenset(), victim))}
    sizes[4] = again
    ranks = min(sizes, key=sizes.get)
    steps = job.steps()
    # A step of all four may have been over but for its line. So a new step is one of fewer, or one of a new process.
    begun, step = min((line[3], line[1]) for pid, lines in steps.items() for line in lines
                      if line[0] == "done" and line[3] > killed and (line[2] < 4 or pid not in pids))
    last = max(line[1] for pid in pids for line in steps[pid] if line[0] == "done" and line[3] < begun)
    dropped = max(sum(line[0] == "dropped" and killed < line[3] <= again for line in steps[pid]) for pid in others)
    return Loss(sizes[ranks] - killed, ranks, again - killed, max(0, last + 1 - step), dropped), now


def peers(args):
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "elastic_program.py")

    def rueda(folder):
        return [([f"{args.build}/bin/ruedarun", "-np", 4, "--min-np", 2, "--blacklist-cooldown-range", "0.01", "0.01",
                  sys.executable, program, "rueda", folder], {})]

    def horovod(folder):
        # A failed rank's host is excluded, so each rank needs one of its own: names of this machine that need no ssh.
        script = os.path.join(folder, "hosts.sh")
        with open(script, "w", encoding="utf-8") as out:
            out.write("#!/bin/sh\nprintf '%s:1\\n' 127.0.0.1 127.0.1 127.1 localhost\n")
        os.chmod(script, 0o755)
        return [([os.path.join(os.path.dirname(args.horovod_python), "horovodrun"), "--gloo", "-np", 4, "--min-np", 2,
                  "--max-np", 4, "--host-discovery-script", script, "--blacklist-cooldown-range", 5, 5,
                  args.horovod_python, program, "horovod", folder], {})]

    def torchrun(folder):
        return [([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 4,
                  "--max-restarts", 100, "--monitor-interval", "0.1", program, "torchrun", folder], {})]

    def torchft(*limits):
        def commands(folder):
            with socket.socket() as probe:
                probe.bind(("localhost", 0))
                port = probe.getsockname()[1]
            lighthouse = [os.path.join(os.path.dirname(args.torchft_python), "torchft_lighthouse"), "--min_replicas", 2,
                          "--bind", f"[::]:{port}", "--join_timeout_ms", 10000, *limits]
            # Who restarts a replica group is up to the user; a loop in the shell is the quickest.
            replica = ["bash", "-c", 'while :; do "$@"; done', "replica", args.torchft_python, program, "torchft", folder]
            address = {"TORCHFT_LIGHTHOUSE": f"http://localhost:{port}"}
            return [(lighthouse, {})] + [(replica, {**address, "REPLICA": str(number)}) for number in range(4)]
        return commands

    # By default, torchrun's agent keeps one store across restarts, and torch 2.13 adds no prefix for each attempt. The
    # restarted processes then find the addresses of dead ones in it, and fail (pytorch/pytorch#135712). With the variable,
    # rank 0 of each attempt has a store of its own; it has no effect without --standalone.
    return [
        Peer("Rueda, hvd.elastic", sys.executable, "rueda.torch", rueda, {"PYTHONPATH": f"{args.build}/python"}),
        Peer("Horovod Elastic, Gloo", args.horovod_python, "horovod.torch", horovod),
        Peer("Horovod, Gloo's limit 5 s", args.horovod_python, "horovod.torch", horovod,
             {"HOROVOD_GLOO_TIMEOUT_SECONDS": "5"}),
        Peer("torchrun --max-restarts, Gloo", sys.executable, "torch", torchrun,
             {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
        Peer("torchft, Gloo", args.torchft_python, "torchft", torchft()),
        Peer("torchft, heartbeat limit 1 s", args.torchft_python, "torchft", torchft("--heartbeat_timeout_ms", 1000)),
    ]


def compare(args):
    present, rows = [], peers(args)
    for peer in rows:
        if args.only and not any(word in peer.name for word in args.only.split(",")):
            continue
        if missing := peer.missing():
            print(f"{peer.name}: left out: {missing}", flush=True)
        else:
            present.append(peer)
    chance = random.Random(1)
    for turn in range(args.peer_rounds):
        for peer in present[turn % len(present):] + present[:turn % len(present)]:
            peer.round(turn + 1, args.peers, chance)
    print("\nmedian (worst) | kills | next step | all four again | steps repeated | steps dropped")
    for peer in present:
        if peer.losses:
            cells = [f"{statistics.median(values) * scale:.{digits}f} ({max(values) * scale:.{digits}f}){unit}"
                     for values, scale, digits, unit in (([loss.next_step for loss in peer.losses], 1000, 0, " ms"),
                                                         ([loss.all_again for loss in peer.losses], 1, 1, " s"),
                                                         ([loss.repeated for loss in peer.losses], 1, 0, ""),
                                                         ([loss.dropped for loss in peer.losses], 1, 0, ""))]
            of = "".join(f"; {count} of {ranks}" for ranks in (2, 3, 4)
                         if (count := sum(loss.ranks == ranks for loss in peer.losses)))
            cells[0] += f"{of} ranks"
            failed = f" ({peer.failures} rounds given up)" if peer.failures else ""
            print(" | ".join([peer.name, f"{len(peer.losses)}{failed}", *cells]))
    print(f"load at the end {os.getloadavg()[0]:.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--large-kills", type=int, default=10)
    parser.add_argument("--spares", type=int, default=50, help="kills of a rank whose place a spare takes")
    parser.add_argument("--peers", type=int, default=3, help="kills of each peer in each round; 0: leave them out")
    parser.add_argument("--peer-rounds", type=int, default=3, help="rounds, in each of which every peer starts anew")
    parser.add_argument("--only", default="", help="the peers whose names have one of these words, separated by commas")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    usual = os.path.join(cache, "rueda", "peers", "venv", "bin", "python3")  # where peers/setup.sh has them
    for peer in ("horovod", "torchft"):
        variable = f"RUEDA_{peer.upper()}_PYTHON"
        parser.add_argument(f"--{peer}-python", default=os.environ.get(variable, usual),
                            help=f"a Python that has torch and {peer}; without, ${variable}, or that of peers/setup.sh")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the jobs are ended
    args.build = os.path.abspath(args.build)
    print(f"4 ranks on one host, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    if args.kills:
        own(args, args.kills, 0)
    if args.large_kills:
        own(args, args.large_kills, 500)
        own(args, args.large_kills, 2048)
    if args.spares:
        spares(args)
    if args.peers:
        compare(args)


if __name__ == "__main__":
    main()
