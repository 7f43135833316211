"""Elastic jobs: not yet. Whatever is asked for here raises an error that says so."""

from __future__ import annotations

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotImplementedError(
        f"hvd.elastic.{name}: there are no elastic jobs yet. A job whose rank is lost ends with an "
        "AbortedError on all ranks; save checkpoints, and start it again from the last one."
    )
