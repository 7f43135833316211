"""State that all ranks shall have alike, and Python objects."""

from __future__ import annotations

import itertools
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
            order on all ranks. None, and values of a state_dict or pair that are not tensors, are
            skipped.
        root_rank: the world rank that has them right.
    """
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    else:
        pairs = [_named(i, item) for i, item in enumerate(params) if item is not None]
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
    requires_grad: bool


def _taken_out(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A copy with places for tensors, which are appended in their order."""
    if torch.is_tensor(value):
        tensors.append(value.detach())
        requires_grad = value.requires_grad and value.is_leaf
        return _TensorForm(value.dtype, tuple(value.shape), value.is_cuda, requires_grad)
    if isinstance(value, dict):
        return {key: _taken_out(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_taken_out(item, tensors) for item in value)
    return value


def _put_in(value: Any, tensors: list[torch.Tensor], device: torch.device) -> Any:
    """The opposite, with new tensors."""
    if isinstance(value, _TensorForm):
        on = device if value.on_cuda else torch.device("cpu")
        tensor = torch.empty(value.shape, dtype=value.dtype, device=on)
        tensors.append(tensor)
        return tensor.detach().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: _put_in(item, tensors, device) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put_in(item, tensors, device) for item in value)
    return value


@torch.no_grad()
def _alike(current: Any, wanted: Any) -> Any:
    """What is wanted, in the memory of current tensors that have its type and shape."""
    if torch.is_tensor(wanted) and torch.is_tensor(current):
        if (current.dtype, current.shape) == (wanted.dtype, wanted.shape):
            return current.copy_(wanted)
        return wanted.to(current.device)
    if isinstance(wanted, dict) and isinstance(current, dict):
        return {key: _alike(current.get(key), item) for key, item in wanted.items()}
    if type(wanted) in (list, tuple) and type(current) is type(wanted):
        pairs = itertools.zip_longest(current[: len(wanted)], wanted)
        return type(wanted)(itertools.starmap(_alike, pairs))
    return wanted


def _check_groups(
    optimizer: torch.optim.Optimizer, root_rank: int, process_set: ProcessSet
) -> None:
    """ValueError on all ranks, unless all have as many parameters in as many groups."""
    own = core.rank(), [len(group["params"]) for group in optimizer.param_groups]
    sizes = dict(allgather_object(own, "broadcast_optimizer_state.groups", process_set))
    for rank, groups in sizes.items():
        if groups != sizes.get(root_rank, groups):
            raise ValueError(
                f"broadcast_optimizer_state: the optimizer of rank {root_rank} has groups of "
                f"{sizes[root_rank]} parameters, that of rank {rank} of {groups}; make it over the "
                "same parameters on all ranks"
            )


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def state_of(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], list[int]]:
    """Its state_dict; and the parameters whose state no hook and no subclass has changed for
    that."""
    state = optimizer.state_dict()
    states = state.get("state", {})
    plain = [
        i
        for i, p in enumerate(_parameters(optimizer))
        if i in states and states[i] is optimizer.state.get(p)
    ]
    return state, plain


def load_state(optimizer: torch.optim.Optimizer, state: dict[str, Any], plain: list[int]) -> None:
    """The opposite. The optimizer may keep tensors of `state`."""
    optimizer.load_state_dict(state)
    parameters = _parameters(optimizer)
    for i in plain:  # as load_state_dict casts a parameter's state to the parameter's type
        p = parameters[i]
        optimizer.state[p] = _alike(optimizer.state.get(p), state["state"][i])


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives all ranks the root's optimizer state: moments, step counts, learning rates and other
    settings, also where the others have none yet. The state's tensors have the root's bits and
    types: a float32 moment of a bfloat16 parameter stays float32.

    Args:
        optimizer: of any kind but LBFGS, over the same parameters on all ranks: else ValueError on
            all of them.
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
    _check_groups(optimizer, root_rank, process_set)
    is_root = core.rank() == root_rank
    parameters = _parameters(optimizer)
    tensors: list[torch.Tensor] = []
    sent = None
    if is_root:
        state, plain = state_of(optimizer)
        sent = _taken_out(state, tensors), plain
    sent = broadcast_object(sent, root_rank, "broadcast_optimizer_state", process_set)
    if not is_root:
        device = parameters[0].device if parameters else torch.device("cpu")
        tensors = []
        state, plain = _put_in(sent, tensors, device)
    handles = [
        _operations.broadcast_async_(
            tensor, root_rank, f"broadcast_optimizer_state.{i}", process_set
        )
        for i, tensor in enumerate(tensors)
    ]
    for handle in handles:
        handle.wait()
    if not is_root:
        load_state(optimizer, state, plain)
