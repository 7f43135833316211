"""Cases that share a job: processes that import torch take seconds to start."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import rueda

Case = Callable[[], Any]


class SharedJob:
    """One job for cases that leave nothing behind but process groups of torch, which are destroyed.
    It runs once the first of them is asked for: all, in the order in which they were added."""

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
                self._ended = rueda.run(_run, (self._cases,), np=self._size)
            except BaseException as failure:
                self._failure = failure
                raise
        ended = [of_rank[case.__name__] for of_rank in self._ended]
        told = [f"rank {rank}:\n{error}" for rank, (_, error) in enumerate(ended) if error]
        assert not told, "\n".join(told)
        return [result for result, _ in ended]


def _run(cases: list[Case]) -> dict[str, tuple[Any, str]]:
    ended: dict[str, tuple[Any, str]] = {}
    for case in cases:
        try:
            ended[case.__name__] = case(), ""
        except Exception:
            ended[case.__name__] = None, traceback.format_exc()
        _destroy_groups()
    return ended


def _destroy_groups() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
