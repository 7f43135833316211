"""State that all ranks shall have alike, and Python objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from rueda import core
from rueda.core import allgather_object, broadcast_object
from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.torch import _operations

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_object_fn(
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function that broadcasts an object from the root, as `broadcast_object` does."""
    return lambda obj: broadcast_object(obj, root_rank, name, process_set)


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]] | Iterable[torch.Tensor],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites all tensors with the root's, in place.

    Args:
        params: `model.state_dict()`, `model.named_parameters()`, or pairs of names and tensors, the
            same names and shapes on all ranks, or `model.parameters()`, or tensors in the same
            order on all ranks. What is no tensor in a state_dict or a pair is left alone.
        root_rank: the world rank that has them right.
    """
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    else:
        pairs = [_named(number, item) for number, item in enumerate(params)]
    handles = []
    with torch.no_grad():
        for name, tensor in pairs:
            if torch.is_tensor(tensor):
                handles.append(
                    _operations.broadcast_async_(
                        tensor, root_rank, f"broadcast_parameters.{name}", process_set
                    )
                )
    for handle in handles:
        handle.wait()


def _named(number: int, item: Any) -> tuple[str, Any]:
    if isinstance(item, tuple) and len(item) == 2:
        return item
    if torch.is_tensor(item):
        return str(number), item
    raise TypeError(
        "broadcast_parameters: a state_dict, pairs of names and tensors, or tensors are wanted, "
        f"not a {type(item).__name__}"
    )


class _TensorForm(NamedTuple):
    """Stands for a tensor in what is pickled; the tensor itself goes by itself."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    on_cuda: bool


def _taken_out(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A copy with places for tensors, which are appended in their order."""
    if torch.is_tensor(value):
        tensors.append(value)
        return _TensorForm(value.dtype, tuple(value.shape), value.is_cuda)
    if isinstance(value, dict):
        return {key: _taken_out(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_taken_out(item, tensors) for item in value)
    return value


def _put_in(value: Any, tensors: list[torch.Tensor], device: torch.device) -> Any:
    """The opposite, with new tensors."""
    if isinstance(value, _TensorForm):
        on = device if value.on_cuda else torch.device("cpu")
        tensors.append(torch.empty(value.shape, dtype=value.dtype, device=on))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _put_in(item, tensors, device) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put_in(item, tensors, device) for item in value)
    return value


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives all ranks the root's optimizer state: moments, step counts, learning rates and other
    settings, also where the others have none yet.

    Args:
        optimizer: of any kind but LBFGS, over the same parameters on all ranks.
        model: not needed, and not looked at.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"broadcast_optimizer_state: a {type(optimizer).__name__} is no optimizer of torch's"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "broadcast_optimizer_state: the state of an LBFGS is that of its own line search"
        )
    is_root = core.rank() == root_rank
    tensors: list[torch.Tensor] = []
    state = _taken_out(optimizer.state_dict(), tensors) if is_root else None
    state = broadcast_object(state, root_rank, "broadcast_optimizer_state", process_set)
    if not is_root:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        device = parameters[0].device if parameters else torch.device("cpu")
        tensors = []
        state = _put_in(state, tensors, device)
    handles = [
        _operations.broadcast_async_(
            tensor, root_rank, f"broadcast_optimizer_state.{i}", process_set
        )
        for i, tensor in enumerate(tensors)
    ]
    for handle in handles:
        handle.wait()
    if not is_root:
        optimizer.load_state_dict(state)
