"""Trains a small language model by the Trainer of Hugging Face Transformers, over Rueda or Gloo.

    torchrun --nproc-per-node 2 examples/integrations/trainer_train.py rueda
    ruedarun -np 2 python examples/integrations/trainer_train.py rueda

The Trainer uses the process group that it finds, so the program makes one before the
TrainingArguments.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import lm
import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

import rueda.distributed  # noqa: F401


class StepTimes(TrainerCallback):
    def __init__(self) -> None:
        self.watch = lm.Stopwatch()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.watch.start()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.watch.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("backend", choices=["rueda", "gloo"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=2, help="of one rank")
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    set_seed(1)
    times = StepTimes()
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(
            model=lm.make_model(),
            args=TrainingArguments(
                output_dir=directory,
                use_cpu=True,
                max_steps=arguments.steps,
                per_device_train_batch_size=arguments.batch_size,
                learning_rate=1e-3,
                logging_steps=5,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                ddp_find_unused_parameters=False,
            ),
            train_dataset=lm.make_dataset(
                arguments.steps * arguments.batch_size * dist.get_world_size()
            ),
            callbacks=[times],
        )
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    result = lm.check(trainer.model, arguments.backend, losses, times.watch.steps)
    if trainer.is_world_process_zero():
        print(result)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
