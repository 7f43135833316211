"""How torch.distributed comes to know the backend."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rueda.distributed._process_group import RuedaProcessGroup

NAME = "rueda"


def register() -> None:
    """Once."""
    if hasattr(dist.Backend, NAME.upper()):
        return
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    _let_monitored_barrier_through()
    _let_bf16_hooks_through()


def _create(options: Any, _: Any) -> RuedaProcessGroup:
    return RuedaProcessGroup(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        str(options.group_id),
        list(options.global_ranks_in_group),
    )


def _let_monitored_barrier_through() -> None:
    """torch.distributed.monitored_barrier asks for Gloo by name; here it works, too."""
    original = dist.monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> None:
        own = dist.distributed_c10d._get_default_group() if group is None else group
        if not isinstance(own, RuedaProcessGroup):
            original(group, timeout, wait_all_ranks)
            return
        if isinstance(timeout, (int, float)):
            timeout = timedelta(seconds=timeout)
        own.monitored_barrier(timeout, wait_all_ranks)

    dist.monitored_barrier = monitored_barrier
    dist.distributed_c10d.monitored_barrier = monitored_barrier


def _let_bf16_hooks_through() -> None:
    """DistributedDataParallel knows torch's hooks for bfloat16 by their names, and asks for CUDA
    and NCCL; here they work on the CPU, too."""
    ddp: Any = DistributedDataParallel
    original = ddp._check_comm_hook

    def check_comm_hook(self: Any, hook: Any) -> None:
        is_ours = isinstance(self.process_group, RuedaProcessGroup)
        if is_ours and getattr(hook, "__name__", "").startswith("bf16_compress"):
            by_another_name = functools.wraps(hook)(functools.partial(hook))
            by_another_name.__name__ = "hook"
            hook = by_another_name
        original(self, hook)

    ddp._check_comm_hook = check_comm_hook
