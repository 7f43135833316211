"""A training step on two ranks: torch's DDP over Gloo, the same over Rueda, rueda.torch, and Horovod.

    PYTHONPATH=build/release/python python3 test/bench/python_train_bench.py [--np 2] [--rounds 3]
        [--horovod PYTHON]     a Python that has Horovod (test/bench/peers/setup.sh makes one)

Three models, as usual: two convolutions (22,000 parameters in 8 tensors), an MLP of 24 million
parameters in 8 tensors, and one of 200 small tensors. One thread a rank. The ways take turns within a
round; the table has medians of all rounds' medians in ms, and what each takes over the step of a rank
that communicates with nobody.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

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
    for name, (batch, steps) in STEPS.items():
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
    if rank == 0:
        print(json.dumps(took), flush=True)


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
    lines = [line[line.index("{") :] for line in done.stdout.splitlines() if '{"cnn"' in line]
    if done.returncode != 0 or not lines:
        sys.exit(f"{way} failed:\n{done.stdout}{done.stderr}")
    return json.loads(lines[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--np", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--horovod")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        rank_main(arguments.way)
        return
    ways = [way for way in WAYS if way != "horovod" or arguments.horovod]
    times: dict[str, dict[str, list[float]]] = {way: {m: [] for m in STEPS} for way in ways}
    for _ in range(arguments.rounds):
        for way in ways:
            for model, took in run(way, arguments.np, arguments.horovod).items():
                times[way][model].append(took)
    print(f"{arguments.np} ranks, {os.cpu_count()} cores: ms a step (over that of `nobody`)")
    print(f"{'':14}" + "".join(f"{model:>22}" for model in STEPS))
    base = {model: statistics.median(times["nobody"][model]) for model in STEPS}
    for way in ways:
        row = ""
        for model in STEPS:
            median = statistics.median(times[way][model])
            row += f"{median:12.2f} ({median - base[model]:7.2f})"
        print(f"{way:14}{row}")


if __name__ == "__main__":
    main()
