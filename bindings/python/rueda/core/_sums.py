"""Sums of what is kept of a state: by them damage is noticed, and replicas that differ."""

from __future__ import annotations

import sys
from typing import Any


def sums_of(value: Any) -> list[int]:
    """One of each array (NumPy, JAX) and tensor (torch) in the value and the dicts, lists and
    tuples within it, in their order. Of 8-byte words modulo 2^64: any change of one word changes
    it. What is something else has none, such as sparse or quantized tensors and keys of JAX."""
    found: list[Any] = []
    _collect(value, found, set())
    places: dict[Any, list[int]] = {}
    for place, each in enumerate(found):
        if not isinstance(each, int):
            places.setdefault(each.device, []).append(place)
    for of_device in places.values():  # one transfer from each
        stacked = sys.modules["torch"].stack([found[place] for place in of_device])
        for place, each in zip(of_device, stacked.tolist(), strict=True):
            found[place] = each
    return [each % 2**64 for each in found]


_PLAIN = (int, float, str, bytes, type(None))


def _collect(value: Any, found: list[Any], seen: set[int]) -> None:
    if isinstance(value, _PLAIN):
        return
    if isinstance(value, (dict, list, tuple)):
        if id(value) not in seen:  # it may contain itself
            seen.add(id(value))
            for each in value.values() if isinstance(value, dict) else value:
                _collect(each, found, seen)
        return
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if _is_plain_tensor(value, torch):
            found.append(_of_tensor(value, torch))
        return
    numpy, jax = sys.modules.get("numpy"), sys.modules.get("jax")
    if numpy is None:
        return
    is_jaxs = jax is not None and isinstance(value, jax.Array)
    if is_jaxs and isinstance(value.dtype, numpy.dtype) and value.is_fully_addressable:
        value = numpy.asarray(value)
    if isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        found.append(_of_array(value, numpy))


def _is_plain_tensor(tensor: Any, torch: Any) -> bool:
    """Subclasses may have their bytes elsewhere."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
    )


def _of_array(array: Any, numpy: Any) -> int:
    data = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
    whole = data.size // 8 * 8
    words = data[:whole].view(numpy.uint64).sum(dtype=numpy.uint64)
    return int(words) + int.from_bytes(data[whole:].tobytes(), "little")


def _of_tensor(tensor: Any, torch: Any) -> Any:
    """On a device a tensor without dimensions there."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    data = tensor.reshape(-1).view(torch.uint8)
    if data.device.type == "cpu":
        return _of_array(data.numpy(), sys.modules["numpy"])
    whole = data.numel() // 8 * 8
    if data.storage_offset() % 8 != 0:
        data = data.clone()
    tail = sum(
        (data[whole + i].to(torch.int64) << (8 * i) for i in range(data.numel() - whole)),
        torch.zeros((), dtype=torch.int64, device=data.device),
    )
    return data[:whole].view(torch.int64).sum() + tail
