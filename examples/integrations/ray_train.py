"""Trains a small language model by Ray Train on two workers of a local Ray, over Rueda or Gloo.

    python examples/integrations/ray_train.py rueda

Ray makes the process group in its workers, before it calls the training function. The setup hook
lets each worker know the backend by then.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import lm
import ray
import ray.train.torch
import torch
from ray.train import RunConfig, ScalingConfig


def train(config: dict[str, Any]) -> str:
    """In each worker."""
    torch.manual_seed(1)
    model = ray.train.torch.prepare_model(lm.make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    workers = ray.train.get_context().get_world_size()
    dataset = lm.make_dataset(config["steps"] * config["batch_size"] * workers)
    loader = torch.utils.data.DataLoader(dataset, config["batch_size"], shuffle=True)
    loader = ray.train.torch.prepare_data_loader(loader)

    losses, watch = [], lm.Stopwatch()
    for batch in loader:
        watch.start()
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.distributed.all_reduce(mean := loss.detach() / workers)
        losses.append(mean.item())
        watch.stop()
    return lm.check(model, config["backend"], losses, watch.steps)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("backend", choices=["rueda", "gloo"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=2, help="of one worker")
    arguments = parser.parse_args()

    ray.init(
        num_cpus=2,
        log_to_driver=False,
        runtime_env={"worker_process_setup_hook": "rueda.distributed.register"},
    )
    with tempfile.TemporaryDirectory() as directory:
        trainer = ray.train.torch.TorchTrainer(
            train,
            train_loop_config=vars(arguments),
            torch_config=ray.train.torch.TorchConfig(backend=arguments.backend),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=directory),
        )
        print(trainer.fit().return_value)
    ray.shutdown()


if __name__ == "__main__":
    main()
