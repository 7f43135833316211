"""Trains a small net in an elastic job, and draws the loss and the number of ranks over time.

    ruedarun -np 3 --min-np 2 python examples/elastic/train.py --plot elastic.svg

It ends after --steps steps, or when it is told to stop: by SIGTERM or SIGUSR1 to any rank, or by
the file of RUEDA_STOP_FILE. examples/elastic/run.sh kills a rank of such a job, and adds another.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import time

import torch
import torch.nn.functional as F

import rueda
import rueda.torch as hvd


def make_data() -> torch.utils.data.TensorDataset:
    """Points, and which of three spirals each is on: the same on all ranks."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(3000) % 3
    radius = torch.rand(3000, generator=generator)
    angle = 4 * radius + labels * (2 * torch.pi / 3) + 0.1 * torch.randn(3000, generator=generator)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    return torch.utils.data.TensorDataset(3 * points, labels)


def path_of(points: list[tuple[float, float]], top: float, height: float) -> str:
    """A line of SVG through points whose coordinates go from 0 to 1."""
    return " ".join(f"{60 + 620 * x:.1f},{top + height * (1 - y):.1f}" for x, y in points)


def draw(history: list[tuple[float, float, int]], path: pathlib.Path) -> None:
    """Writes an SVG of two plots with one time axis: the loss, and below it the number of ranks.

    Args:
        history: seconds, loss and number of ranks, in the order of time.
        path: of the file.
    """
    seconds = max(history[-1][0], 1)
    loss_max, ranks_max = (max(each[i] for each in history) for i in (1, 2))
    losses = [(s / seconds, loss / loss_max) for s, loss, _ in history]
    ranks: list[tuple[float, float]] = []
    for s, _, count in history:  # a staircase
        if ranks:
            ranks.append((s / seconds, ranks[-1][1]))
        ranks.append((s / seconds, count / ranks_max))
    lines = []
    for top, height, maximum, points, name, color in (
        (40, 220, loss_max, losses, "loss", "#1f6fb4"),
        (300, 100, ranks_max, ranks, "ranks", "#c2571a"),
    ):
        lines += [
            f'<text x="60" y="{top - 10}" fill="{color}">{name}</text>',
            f'<text x="52" y="{top + 5}" text-anchor="end">{maximum:.3g}</text>',
            f'<text x="52" y="{top + height + 5}" text-anchor="end">0</text>',
            f'<path d="M60,{top} V{top + height} H680" fill="none" stroke="gray"/>',
            f'<polyline points="{path_of(points, top, height)}" fill="none" stroke="{color}" '
            'stroke-width="2"/>',
        ]
    step = max(1, round(seconds / 10))
    for s in range(0, int(seconds) + 1, step):
        lines.append(
            f'<text x="{60 + 620 * s / seconds:.1f}" y="420" text-anchor="middle">{s}</text>'
        )
    svg = "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" width="720" height="450"',
            '     viewBox="0 0 720 450" font-family="sans-serif" font-size="13">',
            '<rect width="720" height="450" fill="white"/>',
            *lines,
            '<text x="370" y="440" text-anchor="middle">seconds</text>',
            "</svg>\n",
        ]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=20, help="of one rank")
    parser.add_argument("--lr", type=float, default=0.02, help="for one rank")
    parser.add_argument("--pause", type=float, default=0.01, help="seconds to rest after each step")
    parser.add_argument("--plot", type=pathlib.Path, help="where rank 0 writes the plot, an SVG")
    arguments = parser.parse_args()

    hvd.init()
    torch.manual_seed(0)
    data = make_data()
    sampler = hvd.elastic.ElasticSampler(data)
    batches = torch.utils.data.DataLoader(data, arguments.batch_size, sampler=sampler)
    model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), arguments.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def scale_learning_rate() -> None:
        for group in optimizer.param_groups:
            group["lr"] = arguments.lr * hvd.size()

    # The history is state, too: a rank that comes later gets it, and rank 0 draws it at the end.
    state = hvd.elastic.TorchState(
        model, optimizer, sampler=sampler, step=0, epoch=0, began=time.time(), history=[]
    )
    state.register_reset_callbacks([scale_learning_rate])

    @hvd.elastic.run
    def train(state) -> None:
        number = rueda.membership_info().number
        print(
            f"membership {number}: rank {hvd.rank()} of {hvd.size()}, pid {os.getpid()}, goes on "
            f"from step {state.step}",
            flush=True,
        )
        while True:
            for i, (x, y) in enumerate(batches):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                mean_loss = float(hvd.allreduce(loss.detach(), name="loss"))
                state.sampler.record_batch(i, arguments.batch_size)
                state.step += 1
                if state.step % 5 == 1:
                    state.history.append((time.time() - state.began, mean_loss, hvd.size()))
                if state.step % 100 == 0 and hvd.rank() == 0:
                    print(
                        f"step {state.step}: loss {mean_loss:.3f}, {hvd.size()} ranks", flush=True
                    )
                if state.step >= arguments.steps or rueda.should_stop():
                    return
                if state.step % 10 == 0:
                    state.commit()
                time.sleep(arguments.pause)
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)

    train(state)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    every = hvd.allgather(weights.unsqueeze(0), name="weights")
    equal = all(torch.equal(each, weights) for each in every)
    if hvd.rank() == 0:
        print(f"done after step {state.step}: replicas_equal={str(equal).lower()}", flush=True)
        if arguments.plot is not None:
            draw(state.history, arguments.plot)
    hvd.shutdown()


if __name__ == "__main__":
    main()
