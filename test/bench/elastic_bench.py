"""How long a job stands still when a process is killed: from `kill -9` of one of four ranks on this host to the first
allreduce that the others complete, and what others do with the same program.

    test/bench/elastic_bench.py --build build/release [--kills 200] [--large-kills 10] [--peers 5]

Rueda's own part needs no torch; the peers' part trains the same model in torch, by `hvd.elastic` and by torchrun, which
starts all processes anew."""
import argparse
import atexit
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

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


PROGRAM = '''
import os, sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(32, 256)).square().mean().backward()
    optimizer.step()
    time.sleep(0.005)
if sys.argv[1] == "rueda":
    import rueda
    import rueda.torch as hvd
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
    @hvd.elastic.run
    def train(state):
        first = True
        while True:
            step(model, optimizer)
            if first:
                info = rueda.membership_info()
                print(f"membership {info.number} rank {hvd.rank()} of {hvd.size()} survivors {info.survivors} step "
                      f"{state.step} pid {os.getpid()} at {time.monotonic():.6f}", flush=True)
            first = False
            state.step += 1
            if state.step % 10 == 0:
                state.commit()
    train(state)
else:
    import torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
    at, path = 0, os.path.join(os.path.dirname(os.environ["END"]), "checkpoint.pt")
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"]); optimizer.load_state_dict(saved["optimizer"]); at = saved["step"]
    first = True
    while True:
        step(model, optimizer)
        if first:
            print(f"membership {int(os.environ['TORCHELASTIC_RESTART_COUNT']) + 1} rank {dist.get_rank()} of "
                  f"{dist.get_world_size()} survivors 0 step {at} pid {os.getpid()} at {time.monotonic():.6f}", flush=True)
        first = False
        at += 1
        if at % 10 == 0 and dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": at}, path + ".new")
            os.replace(path + ".new", path)
'''


def peer(name, words, kills, others):
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as program:
        program.write(PROGRAM)
    job = Job([*words, program.name, "rueda" if others == 3 else "torchrun"])
    gaps, number = [], 0
    for _ in range(kills):
        number, pids, _ = job.membership(4, number - 1)
        time.sleep(0.5)
        killed = time.monotonic()
        os.kill(pids[2], signal.SIGKILL)
        try:
            number, _, at = job.membership(others, number)
        except SystemExit:
            print(f"{name:34} not at work again within {HANG} s", flush=True)
            job.end()
            return
        gaps.append(at - killed)
    job.end()
    row(name, gaps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--large-kills", type=int, default=10)
    parser.add_argument("--peers", type=int, default=5, help="kills of each; 0: leave them out")
    args = parser.parse_args()
    args.build = os.path.abspath(args.build)
    print(f"4 ranks on one host, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    if args.kills:
        own(args, args.kills, 0)
    if args.large_kills:
        own(args, args.large_kills, 500)
        own(args, args.large_kills, 2048)
    if args.peers:
        os.environ["PYTHONPATH"] = f"{args.build}/python"
        peer("Rueda, hvd.elastic in torch", [f"{args.build}/bin/ruedarun", "-np", 4, "--min-np", 2,
                                             "--blacklist-cooldown-range", "0.01", "0.01", sys.executable], args.peers, 3)
        peer("torchrun --max-restarts, Gloo", [os.path.join(os.path.dirname(sys.executable), "torchrun"), "--nproc-per-node",
                                               4, "--max-restarts", 100, "--monitor-interval", "0.1"], args.peers, 4)


if __name__ == "__main__":
    main()
