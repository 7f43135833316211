"""Batch normalization over the batches of all ranks (arXiv 1502.03167)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch._compile import _disable_dynamo
from torch.nn.modules.batchnorm import _BatchNorm

from rueda.core import _context, _gradients
from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.torch._operations import Sum, allreduce, gathered


class SyncBatchNorm(_BatchNorm):
    """As torch.nn.SyncBatchNorm, over the ranks of a process set, on the CPU and on CUDA: in
    training mean and variance are those of all ranks' samples, which may differ in number.

    All ranks run their layers in the same order.
    """

    _named_in = -1  # after how many regroups

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self._process_set = process_set
        self._name = ""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.dim()}")

    @_disable_dynamo  # whether there are samples is for all ranks to say
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Shape (N, C, ...) to the same shape; N may be 0 on some ranks."""
        self._check_input_dim(input)
        use_batch = self.training or (self.running_mean is None and self.running_var is None)
        if not use_batch or self._process_set.size() == 1:
            return self._alone(input)
        tracks = self.training and self.track_running_stats
        momentum = self._count()
        # By the order in which layers are first run, which all ranks share: of an elastic job in
        # each membership anew, so that newcomers share it.
        regroups = _context.regroups()
        if not self._name or self._named_in != regroups:
            self._named_in = regroups
            number = _context.number(f"sync_batch_norm after {regroups} regroups")
            self._name = f"sync_batch_norm.{number}"
        normalize: Any = _Normalize
        output, mean, variance, count = normalize.apply(
            input, self.weight, self.bias, self.eps, self._name, self._process_set
        )
        if tracks and self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                unbiased = variance * (count / (count - 1).clamp(min=1))
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)
        return output  # type: ignore[no-any-return]

    def _count(self) -> float:
        """One more batch. The share that it has in the running statistics."""
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        return momentum

    def _alone(self, input: torch.Tensor) -> torch.Tensor:
        momentum = self._count()
        tracked = not self.training or self.track_running_stats
        return F.batch_norm(
            input,
            self.running_mean if tracked else None,
            self.running_var if tracked else None,
            self.weight,
            self.bias,
            self.training or (self.running_mean is None and self.running_var is None),
            momentum,
            self.eps,
        )

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """A module with its batch normalization layers replaced by these, with their weights and
        statistics."""
        return replaced(
            module,
            lambda layer: isinstance(layer, _BatchNorm) and not isinstance(layer, cls),
            partial(cls, process_set=process_set),
        )


def replaced(
    module: torch.nn.Module,
    is_old: Callable[[torch.nn.Module], bool],
    make: Callable[..., _BatchNorm],
) -> torch.nn.Module:
    """The module with the batch normalization layers that `is_old` knows replaced by what `make`
    makes of their settings, with their weights and statistics."""
    result = module
    if is_old(module):
        old: Any = module
        layer: Any = make(
            old.num_features, old.eps, old.momentum, old.affine, old.track_running_stats
        )
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            setattr(layer, name, getattr(old, name))
        result = layer.train(old.training)
    for name, child in module.named_children():
        result.add_module(name, replaced(child, is_old, make))
    return result


def _per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.view(1, -1, *([1] * (like.dim() - 2)))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _axes(x: torch.Tensor) -> list[int]:
    """All but the channels'."""
    return [axis for axis in range(x.dim()) if axis != 1]


def _statistics(
    x: torch.Tensor, name: str, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean, variance and count of all ranks' samples, by channel. Differentiable."""
    own_count = x.numel() // x.shape[1]
    # Without samples these are zeros that depend on x: all ranks take part in gradients.
    own_mean = x.sum(_axes(x)) / max(own_count, 1)
    deviations = (x - _per_channel(own_mean, x)).square().sum(_axes(x))
    # Each rank's mean, sum of squared deviations and count; then all of them by the formula of
    # Chan, Golub and LeVeque (1979), which does not cancel as sums of squares do.
    own = torch.stack([own_mean, deviations, torch.full_like(own_mean, own_count)])
    [rows] = gathered([own[None]], False, name, process_set, _gradients.SUM)
    means, squares, counts = rows.double().unbind(1)
    count = counts.sum(0)
    if float(count[0].detach()) == 0:
        raise ValueError("SyncBatchNorm: no rank has a sample")
    mean = (means * counts).sum(0) / count
    variance = (squares + counts * (means - mean).square()).sum(0) / count
    return mean.to(x.dtype), variance.to(x.dtype), count.to(x.dtype)


def _normal(x: torch.Tensor, mean: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    return (x - _per_channel(mean, x)) * _per_channel(inverse, x)


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        name: str,
        process_set: ProcessSet,
    ) -> Any:
        x = _wide(input)
        mean, variance, count = _statistics(x, name, process_set)
        inverse = torch.rsqrt(variance + eps)
        output = _normal(x, mean, inverse)
        if weight is not None:
            output = output * _per_channel(weight.to(x.dtype), x)
        if bias is not None:
            output = output + _per_channel(bias.to(x.dtype), x)
        ctx.save_for_backward(input, weight, mean, inverse, count)
        ctx.arguments = (eps, name, process_set, bias is not None)
        ctx.mark_non_differentiable(mean, variance, count)
        return output.to(input.dtype), mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        input, weight, mean, inverse, count = ctx.saved_tensors
        eps, name, process_set, has_bias = ctx.arguments
        x = _wide(input)
        if torch.is_grad_enabled():  # for second derivatives they need a history
            mean, variance, count = _statistics(x, name + ".again", process_set)
            inverse = torch.rsqrt(variance + eps)
        normal = _normal(x, mean, inverse)
        gradient = gradients[0].to(x.dtype)
        # Local sums: the optimizer adds up the ranks' parameter gradients.
        sum_gradient = gradient.sum(_axes(x))
        sum_product = (gradient * normal).sum(_axes(x))
        of_weight = sum_product.to(weight.dtype) if weight is not None else None
        of_bias = sum_gradient.to(weight.dtype if weight is not None else x.dtype)
        both = allreduce(
            torch.stack([sum_gradient, sum_product]),
            name=name + ".gradient",
            op=Sum,
            process_set=process_set,
        )
        mean_gradient, mean_product = both[0] / count, both[1] / count
        of_input = gradient - _per_channel(mean_gradient, x)
        of_input = of_input - normal * _per_channel(mean_product, x)
        scale = inverse if weight is None else inverse * weight.to(inverse.dtype)
        of_input = of_input * _per_channel(scale, x)
        return (
            of_input.to(gradients[0].dtype),
            of_weight,
            of_bias if has_bias else None,
            None,
            None,
            None,
        )
