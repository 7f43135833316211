"""Trains a small language model by Hugging Face Accelerate, over Rueda or Gloo.

    torchrun --nproc-per-node 2 examples/integrations/accelerate_train.py rueda
    ruedarun -np 2 python examples/integrations/accelerate_train.py rueda

Accelerate uses the process group that it finds, so the program makes one first.
"""

from __future__ import annotations

import argparse

import lm
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed

import rueda.distributed  # noqa: F401


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("backend", choices=["rueda", "gloo"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=2, help="of one rank")
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    accelerator = Accelerator(cpu=True)
    set_seed(1)
    model = lm.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dataset = lm.make_dataset(arguments.steps * arguments.batch_size * accelerator.num_processes)
    loader = torch.utils.data.DataLoader(dataset, arguments.batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    losses, watch = [], lm.Stopwatch()
    for batch in loader:
        watch.start()
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
        watch.stop()
    accelerator.print(lm.check(model, arguments.backend, losses, watch.steps))
    accelerator.end_training()  # destroys the process group, too


if __name__ == "__main__":
    main()
