"""How torch.distributed comes to know the backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rueda import errors
from rueda.core import _context
from rueda.distributed import _meeting, _native

NAME = "rueda"


def register() -> None:
    """Makes the backend known. The import of rueda.distributed has done so; more calls do nothing.

    It has a public name for programs that must name a function, such as a setup hook of Ray's.
    """
    if hasattr(dist.Backend, NAME.upper()):
        return
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=devices)
    _let_monitored_barrier_through()
    _let_bf16_hooks_through()
    _let_sequence_numbers_through()
    _let_timeouts_through()
    _let_splits_through()
    _context.at_exit.append(_leave)


def _create(options: Any, _: Any) -> Any:
    """torch's Backend of a group. Collective over its ranks."""
    rank, size, name = options.group_rank, options.group_size, str(options.group_id)
    met = _meeting.meet(options.store, rank, size, name, prepare=_native.module)
    ranks = list(options.global_ranks_in_group) or list(range(size))
    return _native.module().GroupBackend(
        met.context, met.store, rank, size, options.timeout, name, ranks
    )


def _replace(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Puts what `make` makes of torch's own function in its place. Not every torch has each."""
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, functools.wraps(original)(make(original)))


def _is_ours(group: Any) -> bool:
    try:
        return NAME in str(dist.get_backend(group))
    except ValueError:  # torch has not made it: torchft's, for example
        return False


def _leave(error: BaseException | None) -> Callable[[], None]:
    """A program that does not destroy its process groups leaves them; one that ends for an
    exception ends them for the others, too."""
    if _native.module.cache_info().currsize == 0:
        return lambda: None
    end: Callable[[], None] = _native.module().begin_to_leave(
        None if error is None else _context.reason_of(error)
    )
    return end


def _let_monitored_barrier_through() -> None:
    """torch.distributed.monitored_barrier asks for Gloo by name; here it works, too."""
    original = dist.monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> None:
        if not _is_ours(group):
            original(group, timeout, wait_all_ranks)
            return
        own: Any = dist.distributed_c10d._get_default_group() if group is None else group
        if timeout is None:
            timeout = timedelta(milliseconds=-1)  # the group's
        elif isinstance(timeout, (int, float)):
            timeout = timedelta(seconds=timeout)
        own.monitored_barrier(timeout, wait_all_ranks)

    dist.monitored_barrier = monitored_barrier
    dist.distributed_c10d.monitored_barrier = monitored_barrier


def _let_bf16_hooks_through() -> None:
    """DistributedDataParallel knows torch's hooks for bfloat16 by their names, and asks for CUDA
    and NCCL; here they work on the CPU, too."""

    def make(original: Any) -> Callable[..., None]:
        def check_comm_hook(self: Any, hook: Any) -> None:
            is_ours = _is_ours(self.process_group)
            if is_ours and getattr(hook, "__name__", "").startswith("bf16_compress"):
                by_another_name = functools.wraps(hook)(functools.partial(hook))
                by_another_name.__name__ = "hook"
                hook = by_another_name
            original(self, hook)

        return check_comm_hook

    _replace(DistributedDataParallel, "_check_comm_hook", make)


def _let_sequence_numbers_through() -> None:
    """ProcessGroup asks only the backends that it knows for them."""

    def make_getter(original: Any) -> Callable[..., int]:
        def get_sequence_number(self: Any) -> int:
            backend: Any = self._get_backend(self._device_types[0]) if _is_ours(self) else None
            backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
            return int(original(self) if backend is None else backend.sequence_number())

        return get_sequence_number

    def make_setter(original: Any) -> Callable[..., None]:
        def set_sequence_number(self: Any) -> None:
            if not _is_ours(self):
                original(self)

        return set_sequence_number

    _replace(dist.ProcessGroup, "_get_sequence_number_for_group", make_getter)
    _replace(dist.ProcessGroup, "_set_sequence_number_for_group", make_setter)


def _let_timeouts_through() -> None:
    """torch knows only its own backends as such whose limit of time can be set."""
    c10d: Any = dist.distributed_c10d

    def make(original: Any) -> Callable[..., None]:
        def set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
            own = c10d._get_default_group() if group is None else group
            if _is_ours(own):
                own.set_timeout(timeout)
            else:
                original(timeout, group)

        return set_pg_timeout

    _replace(c10d, "_set_pg_timeout", make)


def _let_splits_through() -> None:
    """torch splits groups of accelerators only; without one, the parts are new groups."""
    original = dist.split_group

    @functools.wraps(original)
    def split_group(
        parent_pg: Any = None,
        split_ranks: Any = None,
        timeout: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        parent: Any = dist.distributed_c10d._get_default_group() if parent_pg is None else parent_pg
        if not _is_ours(parent) or torch.accelerator.is_available():
            return original(parent_pg, split_ranks, timeout, *args, **kwargs)
        return _split(parent, split_ranks, timeout, *args, **kwargs)

    dist.split_group = split_group
    dist.distributed_c10d.split_group = split_group


def _split(
    parent: Any,
    split_ranks: list[list[int]] | None,
    timeout: timedelta | None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> Any:
    if not split_ranks or not all(split_ranks):
        raise ValueError("split_ranks must not be empty, nor hold an empty list")
    every = [rank for ranks in split_ranks for rank in ranks]
    if len(set(every)) < len(every) or not set(every) <= set(range(parent.size())):
        raise ValueError(
            f"split_ranks is {split_ranks}: it must name ranks of the parent group, which has "
            f"{parent.size()}, each once"
        )
    splits = [[dist.get_global_rank(parent, rank) for rank in ranks] for ranks in split_ranks]
    # Of the whole world a new group is all ranks' call; of a part it is its members', who then need
    # to have been in equally many groups, by which torch names it.
    by_members = parent is not dist.distributed_c10d._get_default_group()
    if by_members:
        _check_group_counts(parent)
    own = None
    for ranks in splits:
        if by_members and dist.get_rank() not in ranks:
            continue
        group = dist.new_group(
            sorted(ranks),
            timeout=timeout,
            backend=backend or NAME,
            pg_options=pg_options,
            use_local_synchronization=by_members,
            group_desc=group_desc,
        )
        if dist.get_rank() in ranks:
            own = group
    return own


def _check_group_counts(parent: Any) -> None:
    count = len(dist.distributed_c10d._world.pg_names)
    highest = torch.tensor([count, -count])
    dist.all_reduce(highest, dist.ReduceOp.MAX, group=parent)
    if highest.sum() != 0:
        raise errors.RuedaError(
            f"split_group: the ranks of {parent.group_name} are in {-highest[1]} to {highest[0]} "
            "groups, and torch can't name a part of them. Split the default group instead, or make "
            "groups on all ranks with new_group",
            errors.Status.FAILED_PRECONDITION,
        )
