"""Cases that share a job: processes that import torch take seconds to start."""

from __future__ import annotations

import itertools
import os
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import rueda

Case = Callable[[], Any]


class SharedJob:
    """One job for cases that leave nothing behind but process groups of torch, which are destroyed.
    It runs once the first of them is asked for: all, in the order in which they were added. Groups
    meet in files: a TCPStore at one port may still be the last case's."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._cases: list[Case] = []
        self._ended: list[dict[str, tuple[Any, str]]] = []
        self._failure: BaseException | None = None  # the job's

    def add(self, case: Case) -> Case:
        """A decorator."""
        self._cases.append(case)
        return case

    def results(self, case: Case) -> list[Any]:
        """What it has returned, by rank; fails if it has raised anything."""
        if self._failure is not None:
            raise self._failure
        if not self._ended:
            try:
                with tempfile.TemporaryDirectory() as folder:
                    self._ended = rueda.run(_run, (self._cases, folder), np=self._size)
            except BaseException as failure:
                self._failure = failure
                raise
        ended = [of_rank[case.__name__] for of_rank in self._ended]
        told = [f"rank {rank}:\n{error}" for rank, (_, error) in enumerate(ended) if error]
        assert not told, "\n".join(told)
        return [result for result, _ in ended]


def _run(cases: list[Case], folder: str) -> dict[str, tuple[Any, str]]:
    import torch.distributed as dist

    original = dist.init_process_group
    ended: dict[str, tuple[Any, str]] = {}
    for case in cases:
        dist.init_process_group = _meeting_at(f"{folder}/{case.__name__}", original)
        try:
            ended[case.__name__] = case(), ""
        except Exception:
            ended[case.__name__] = None, traceback.format_exc()
        if dist.is_initialized():
            dist.destroy_process_group()
    return ended


def _meeting_at(place: str, original: Any) -> Any:
    """torch's init_process_group, with a file for each call."""
    count = itertools.count()

    def init_process_group(backend: str, **options: Any) -> None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        file = f"file://{place}-{next(count)}"
        original(backend, init_method=file, rank=rank, world_size=size, **options)

    return init_process_group
