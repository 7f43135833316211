"""A training step on two ranks: torch's DDP over Gloo, the same over Rueda, rueda.torch, and Horovod.

    PYTHONPATH=build/release/python python3 test/bench/python_train_bench.py [--np 2] [--rounds 3]
        [--horovod PYTHON]     a Python that has Horovod (test/bench/peers/setup.sh makes one)
        [--hosts N [--rate 1gbit]]   on so many hosts, which are network namespaces of this machine and need root,
                               with a limit on each one's link. Without Horovod
        [--models mlp25m,...]

Three models, as usual: two convolutions (22,000 parameters in 8 tensors), an MLP of 24 million
parameters in 8 tensors, and one of 200 small tensors. One thread a rank. The ways take turns within a
round; the table has medians of all rounds' medians in ms, and what each takes over the step of a rank
that communicates with nobody. On several hosts also the least: forward, backward until the first gradient is there, and
the time that the link needs for the gradients.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

#: Bytes on the link for each byte that TCP takes over it, in full frames.
IN_FRAMES = 1514 / 1448
WAYS = ["nobody", "ddp_gloo", "ddp_rueda", "rueda_torch", "horovod"]
STEPS = {"cnn": (64, 100), "deep_mlp": (32, 40), "mlp25m": (32, 8)}


def make(name: str):
    import torch.nn as nn

    if name == "cnn":
        convolutions = [nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5)]
        rest = [nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(320, 50), nn.ReLU()]
        return nn.Sequential(*convolutions, *rest, nn.Linear(50, 10))
    widths = [784, 4096, 4096, 1024, 10] if name == "mlp25m" else [784] + [64] * 100 + [10]
    layers: list = [nn.Flatten()]
    for i, (before, after) in enumerate(zip(widths, widths[1:], strict=False)):
        layers += [nn.Linear(before, after)] + ([nn.ReLU()] if i < len(widths) - 2 else [])
    return nn.Sequential(*layers)


def rank_main(way: str) -> None:
    """On each rank: rank 0 prints one line of JSON."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK") or os.environ["HOROVOD_RANK"])
    if way.startswith("ddp"):
        import torch.distributed as dist

        if way == "ddp_rueda":
            import rueda.distributed  # noqa: F401
        dist.init_process_group(way.removeprefix("ddp_"))
    elif way == "rueda_torch":
        import rueda.torch as hvd

        hvd.init()
    elif way == "horovod":
        import horovod.torch as hvd

        hvd.init()
        rank = hvd.rank()
    took = {}
    for name in os.environ["MODELS"].split(","):
        batch, steps = STEPS[name]
        torch.manual_seed(0)
        model = make(name)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if way.startswith("ddp"):
            model = torch.nn.parallel.DistributedDataParallel(model)
        elif way in ("rueda_torch", "horovod"):
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        x, y = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))
        times = []
        for step in range(steps + 3):
            begin = time.perf_counter()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if step >= 3:
                times.append((time.perf_counter() - begin) * 1e3)
        took[name] = statistics.median(times)
        if way == "nobody":
            took[f"{name} begins"] = statistics.median(first_gradients(model, x, y))
            took[f"{name} bytes"] = sum(p.numel() * p.element_size() for p in model.parameters())
    if rank == 0:
        print(json.dumps(took), flush=True)


def first_gradients(model, x, y) -> list[float]:
    """How long it takes until the first parameter, the last layer's, has its gradient, in ms."""
    import torch.nn.functional as F

    times = []
    for _ in range(5):
        begin, there = time.perf_counter(), []
        hooks = [
            p.register_post_accumulate_grad_hook(
                lambda _, there=there: there.append(time.perf_counter())
            )
            for p in model.parameters()
        ]
        F.cross_entropy(model(x), y).backward()
        for hook in hooks:
            hook.remove()
        times.append((min(there) - begin) * 1e3)
    return times


class OnHosts:
    """Starts ranks in network namespaces."""

    def __init__(self, count: int, rate: str):
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "clusters"))
        import hosts

        if reason := hosts.why_not():
            sys.exit(f"python_train_bench: {reason}")
        self.cluster, self.count, self.port = hosts.Hosts(count), count, 7600
        if rate != "none":
            self.cluster.limit(rate)

    def run(self, way: str, np: int, environment: dict[str, str]) -> str:
        self.port += 1
        with tempfile.TemporaryDirectory() as shared:
            ranks = []
            for rank in range(np):
                words = [sys.executable, str(pathlib.Path(__file__).resolve()), "--way", way]
                variables = {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(np),
                    "LOCAL_RANK": str(rank % (np // self.count)),
                    "LOCAL_WORLD_SIZE": str(np // self.count),
                    "MASTER_ADDR": "10.77.0.1",
                    "MASTER_PORT": str(self.port),
                    "GLOO_SOCKET_IFNAME": "eth0",
                    "RUEDA_SHARED_DIR": shared,
                }
                command = self.cluster.command(rank // (np // self.count), *words)
                ranks.append(
                    subprocess.Popen(
                        command, env={**environment, **variables}, stdout=subprocess.PIPE, text=True
                    )
                )
            outs = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode != 0 for rank in ranks):
            sys.exit(f"{way} failed")
        return outs[0]


def run(way: str, np: int, horovod: str | None) -> dict[str, float]:
    environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    command = [str(pathlib.Path(__file__).resolve()), "--way", way]
    if way == "horovod":
        assert horovod is not None
        launch = [
            str(pathlib.Path(horovod).parent / "horovodrun"),
            "-np",
            str(np),
            "--gloo",
            horovod,
        ]
    else:
        from rueda import launcher

        launch = [launcher.program(), "-np", str(np), "--prefix", "none", sys.executable]
    done = subprocess.run(launch + command, env=environment, capture_output=True, text=True)
    lines = [line[line.index("{") :] for line in done.stdout.splitlines() if '{"' in line]
    if done.returncode != 0 or not lines:
        sys.exit(f"{way} failed:\n{done.stdout}{done.stderr}")
    return json.loads(lines[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--np", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--horovod")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--models", default=",".join(STEPS))
    parser.add_argument("--way", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        rank_main(arguments.way)
        return
    os.environ["MODELS"] = arguments.models
    models = arguments.models.split(",")
    on_hosts = OnHosts(arguments.hosts, arguments.rate) if arguments.hosts > 1 else None
    try:
        compare(arguments, models, on_hosts)
    finally:
        if on_hosts:
            on_hosts.cluster.remove()


def compare(arguments: argparse.Namespace, models: list[str], on_hosts: OnHosts | None) -> None:
    ways = [way for way in WAYS if way != "horovod" or arguments.horovod]
    times: dict[str, dict[str, list[float]]] = {way: collections.defaultdict(list) for way in ways}
    for _ in range(arguments.rounds):
        for way in ways:
            if on_hosts:
                environment = dict(os.environ, OMP_NUM_THREADS="1")
                found = json.loads(on_hosts.run(way, arguments.np, environment))
            else:
                found = run(way, arguments.np, arguments.horovod)
            for what, took in found.items():
                times[way][what].append(took)
    where = f" on {arguments.hosts} hosts, {arguments.rate}" if on_hosts else ""
    print(f"{arguments.np} ranks{where}, {os.cpu_count()} cores: ms a step (over that of `nobody`)")
    print(f"{'':14}" + "".join(f"{model:>22}" for model in models))
    base = {model: statistics.median(times["nobody"][model]) for model in models}
    if on_hosts and arguments.rate.endswith("gbit"):
        row = ""
        for model in models:
            size = (
                times["nobody"][f"{model} bytes"][0] * 2 * (arguments.hosts - 1) / arguments.hosts
            )
            link = size * IN_FRAMES * 8 / float(arguments.rate[:-4]) / 1e6
            begins = statistics.median(times["nobody"][f"{model} begins"])
            row += f"{max(base[model], begins + link):12.2f} {'':9}"
        print(f"{'at least':14}{row}")
    for way in ways:
        row = ""
        for model in models:
            median = statistics.median(times[way][model])
            row += f"{median:12.2f} ({median - base[model]:7.2f})"
        print(f"{way:14}{row}")


if __name__ == "__main__":
    main()
