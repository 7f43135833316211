"""A small language model with random weights, text for it, and what each example checks."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

LENGTH = 64  # tokens of a sequence; a token is a byte

_SUBJECTS = ["the cat", "a small dog", "my neighbor", "the old sailor", "nobody", "every child"]
_VERBS = ["sees", "follows", "remembers", "paints", "hides from", "sings to"]
_OBJECTS = ["the moon", "a red boat", "the quiet river", "two birds", "the last train", "a garden"]


def make_model() -> LlamaForCausalLM:
    """A transformer of 8 million parameters."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=320,
            intermediate_size=960,
            num_hidden_layers=6,
            num_attention_heads=5,
            max_position_embeddings=LENGTH,
        )
    )


def make_dataset(sequences: int) -> list[dict[str, torch.Tensor]]:
    """Sequences of made-up sentences, the same on all ranks."""
    choice = random.Random(1).choice
    text = ""
    while len(text) < sequences * LENGTH:
        text += f"{choice(_SUBJECTS)} {choice(_VERBS)} {choice(_OBJECTS)}. "
    tokens = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()
    return [{"input_ids": part, "labels": part} for part in tokens.split(LENGTH)[:sequences]]


class Stopwatch:
    """Times the steps of a loop."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.start()

    def start(self) -> None:
        self._began = time.perf_counter()

    def stop(self) -> None:
        self.steps.append(time.perf_counter() - self._began)


def check(
    model: torch.nn.Module, backend: str, losses: Sequence[float], steps: Sequence[float]
) -> str:
    """Describes the run in one line. Collective over the ranks.

    Raises:
        RuntimeError: the default process group has another backend or one rank only, the replicas
            differ, or the loss did not fall.
    """
    size = dist.get_world_size()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    replicas = [torch.empty_like(weights) for _ in range(size)]
    dist.all_gather(replicas, weights)
    if dist.get_backend() != backend:
        raise RuntimeError(f"the backend is {dist.get_backend()}, not {backend}")
    if size < 2:
        raise RuntimeError("there is one rank only: start two")
    if not all(torch.equal(replica, weights) for replica in replicas):
        raise RuntimeError("the replicas differ")
    if not losses[-1] < losses[0]:
        raise RuntimeError(f"the loss did not fall: {losses[0]:.3f} to {losses[-1]:.3f}")
    step_ms = 1000 * statistics.median(steps[3:])  # the first ones warm up
    return (
        f"backend={backend} ranks={size} parameters={len(weights)} "
        f"loss={losses[0]:.2f} to {losses[-1]:.2f} replicas_equal=true step_ms={step_ms:.1f}"
    )
