"""Trains a classifier of handwritten digits by Lightning's Trainer, under one of Rueda's strategies or of Lightning's.

    ruedarun -np 2 python examples/python/mnist_lightning.py --strategy horovod
    python examples/python/mnist_lightning.py --devices 2 --strategy dp
"""

from __future__ import annotations

import argparse

import digits
import lightning
import torch
import torch.nn.functional as F
from net import Net
from torch.utils.data import DataLoader, TensorDataset

import rueda.lightning  # makes the strategies known
from rueda.torch.algorithms import ALGORITHMS


class Digits(lightning.LightningModule):
    def __init__(self, batch_size: int, lr: float) -> None:
        super().__init__()
        self.net = Net()
        self.batch_size, self.lr = batch_size, lr
        images, labels, *self.test_data = map(torch.from_numpy, digits.load())
        self.data = TensorDataset(images, labels)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.data, self.batch_size, shuffle=True, drop_last=True)  # Lightning deals them out

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)

    def on_fit_start(self) -> None:
        strategy = self.trainer.strategy
        print(
            f"global rank {self.global_rank}, member {self.global_rank + 1} of {self.trainer.world_size}, backend "
            f"{torch.distributed.get_backend()}, local rank {self.local_rank}, device {strategy.root_device}",
            flush=True,
        )

    def on_train_epoch_end(self) -> None:
        if self.trainer.is_global_zero:
            print(f"epoch={self.current_epoch + 1} loss={self.trainer.callback_metrics['loss']:.4f}", flush=True)

    def on_fit_end(self) -> None:  # on each rank, when the model is the same on all
        self.eval()
        strategy = self.trainer.strategy
        images, labels = (part.to(self.device) for part in self.test_data)
        part = slice(self.global_rank, None, self.trainer.world_size)  # each rank tests its own part
        with torch.no_grad():
            right = (self.net(images[part]).argmax(1) == labels[part]).sum()
            right = strategy.reduce(right, reduce_op="sum")
            weights = torch.cat([p.flatten() for p in self.net.parameters()])
            equal = all(torch.equal(other, weights) for other in strategy.all_gather(weights))
        if self.trainer.is_global_zero:
            print(f"test_accuracy={right / len(labels):.4f} replicas_equal={str(equal).lower()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--strategy",
        default="rueda",
        help=f"a name that the Trainer knows, or an algorithm of Bagua's: {', '.join(ALGORITHMS)}",
    )
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", type=int, default=1, help="of a host; under a launcher 1 means what it started")
    parser.add_argument("--nodes", type=int, default=1, help="likewise")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank; with dp and ddp2 of one host")
    parser.add_argument("--lr", type=float, default=0.002, help="horovod multiplies it with the number of ranks")
    arguments = parser.parse_args()

    strategy = arguments.strategy
    if strategy in ALGORITHMS:
        strategy = rueda.lightning.BaguaStrategy(algorithm=strategy)
    trainer = lightning.Trainer(
        strategy=strategy,
        accelerator=arguments.accelerator,
        devices=arguments.devices,
        num_nodes=arguments.nodes,
        max_epochs=arguments.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Digits(arguments.batch_size, arguments.lr))


if __name__ == "__main__":
    main()
