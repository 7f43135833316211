"""Gradients of rueda.torch's operations and of their gradients: Horovod's, or the derivative of the
sum of all ranks' losses."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import rueda  # noqa: E402
import rueda.torch as hvd  # noqa: E402
from rueda.core import _gradients  # noqa: E402

SPLITS = [[1, 3], [2, 2]]


def _joined(xs):
    return [torch.cat(xs)] * len(xs)


def _exchanged(xs):
    parts = [x.split(splits) for x, splits in zip(xs, SPLITS, strict=True)]
    return [torch.cat([part[r] for part in parts]) for r in range(2)]


# Operations on 2 ranks: what they do, the same in one process that has all inputs, and by what
# Horovod's gradient differs from the derivative. The backward pass of a reducescatter is an
# allgather, the others' are allreduces and alltoalls, which have no factor.
CASES = {
    "average": (lambda x: hvd.allreduce(x, name="a"), lambda xs: [sum(xs) / 2] * 2, 1),
    "sum": (
        lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0),
        lambda xs: [6 * sum(xs)] * 2,
        1,
    ),
    "group": (
        lambda x: sum(hvd.grouped_allreduce([x, 2 * x], name="g", op=hvd.Sum)),
        lambda xs: [3 * sum(xs)] * 2,
        1,
    ),
    "allgather": (lambda x: hvd.allgather(x, name="c"), _joined, 1 / 2),
    "allgather group": (
        lambda x: torch.cat(hvd.grouped_allgather([x, 3 * x])),
        lambda xs: [torch.cat(xs + [3 * x for x in xs])] * 2,
        1 / 2,
    ),
    "broadcast": (lambda x: hvd.broadcast(x, 1), lambda xs: [xs[1]] * 2, 1 / 2),
    "alltoall": (
        lambda x: hvd.alltoall(x, name="t"),
        lambda xs: [torch.cat([x[2 * r : 2 * r + 2] for x in xs]) for r in range(2)],
        1,
    ),
    "alltoall with splits": (lambda x: hvd.alltoall(x, SPLITS[hvd.rank()])[0], _exchanged, 1),
    "reducescatter": (
        lambda x: hvd.reducescatter(x, op=hvd.Sum, prescale_factor=2.0),
        lambda xs: list((2 * sum(xs)).split(2)),
        2,
    ),
    "reducescatter average": (
        lambda x: hvd.reducescatter(x, name="r"),
        lambda xs: list((sum(xs) / 2).split(2)),
        2,
    ),
    "reducescatter group": (
        lambda x: sum(hvd.grouped_reducescatter([x, 3 * x], op=hvd.Sum)),
        lambda xs: list((4 * sum(xs)).split(2)),
        2,
    ),
    "twice": (
        lambda x: hvd.allreduce(hvd.allgather(x), op=hvd.Sum),
        lambda xs: [2 * torch.cat(xs)] * 2,
        1 / 2,
    ),
}


@pytest.fixture(params=["horovod", "sum"])
def convention(request, monkeypatch):
    monkeypatch.setattr(_gradients, "_chosen", request.param)
    return request.param


def _numbers(seed, count=2, rows=4):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, 3, generator=generator, dtype=torch.float64) for _ in range(count)]


def _loss(y, rank):
    weights = torch.arange(1.0, y.numel() + 1, dtype=y.dtype).view_as(y)
    return (y.pow(3) * weights * (rank + 1)).sum()


def _derivatives(model, inputs):
    """Of the sum of all ranks' losses, in one process, by all ranks' inputs."""
    xs = [x.clone().requires_grad_() for x in inputs]
    total = sum(_loss(y, rank) for rank, y in enumerate(model(xs)))
    found = torch.autograd.grad(total, xs, allow_unused=True)
    return [0 * x if g is None else g for x, g in zip(inputs, found, strict=True)]


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_the_derivative_times_horovods_factor(on_threads, convention, case):
    ours, model, factor = CASES[case]
    inputs = _numbers(1)

    def body():
        x = inputs[hvd.rank()].clone().requires_grad_()
        y = ours(x)
        torch.testing.assert_close(y.detach(), model(inputs)[hvd.rank()])
        _loss(y, hvd.rank()).backward()
        return x.grad

    scale = 1 if convention == "sum" else factor
    for got, derivative in zip(on_threads(2, body), _derivatives(model, inputs), strict=True):
        torch.testing.assert_close(got, scale * derivative)


def test_factors_count_the_ranks_of_the_process_set(on_threads, convention):
    inputs = _numbers(2, rows=2)

    def body():
        pair = hvd.add_process_set([1, 2])
        if not pair.included():
            return None
        x = inputs[pair.rank()].clone().requires_grad_()
        gradients = []
        for operation in (hvd.allgather, hvd.reducescatter):
            (gradient,) = torch.autograd.grad(_loss(operation(x, process_set=pair), pair.rank()), x)
            gradients.append(gradient)
        y = hvd.broadcast(x, 2, process_set=pair)
        return *gradients, *torch.autograd.grad(_loss(y, pair.rank()), x)

    models = [_joined, lambda xs: list((sum(xs) / 2).split(1)), lambda xs: [xs[1]] * 2]
    factors = [1, 1, 1] if convention == "sum" else [1 / 2, 2, 1 / 2]
    expected = [_derivatives(model, inputs) for model in models]
    for rank, got in enumerate(on_threads(3, body)[1:]):
        for gradient, derivative, factor in zip(got, expected, factors, strict=True):
            torch.testing.assert_close(gradient, factor * derivative[rank])


def test_the_convention_is_that_of_the_call(on_threads, monkeypatch):
    def body():
        x = torch.ones(2, requires_grad=True)
        y = hvd.allgather(x)
        hvd.barrier()
        hvd.gradients("sum")
        y.sum().backward()
        return x.grad.tolist()

    monkeypatch.setattr(_gradients, "_chosen", "horovod")
    assert on_threads(2, body) == [[1.0, 1.0]] * 2
    assert hvd.gradients() == "sum"


def test_a_convention_that_does_not_exist_is_a_value_error():
    before = hvd.gradients()
    with pytest.raises(ValueError, match="'mean'; expected 'horovod' or 'sum'"):
        hvd.gradients("mean")
    assert hvd.gradients() == before


def test_ranks_whose_conventions_differ_get_a_mismatch():
    def fn():
        import torch

        import rueda
        import rueda.torch as hvd

        hvd.init()
        hvd.gradients("sum" if hvd.rank() == 1 else "horovod")
        operations = [
            hvd.allgather,
            lambda x: hvd.allgather(x, name="named"),
            lambda x: hvd.grouped_allgather([x, x])[0],
            lambda x: hvd.broadcast(x, 0),
            hvd.reducescatter,
            lambda x: hvd.reducescatter(x[:, 0], name="named", op=hvd.Sum),
            lambda x: hvd.grouped_reducescatter([x, x], op=hvd.Sum)[0],
        ]
        texts = []
        for operation in operations:
            x = torch.ones(4, 3, requires_grad=True)
            y = operation(x)
            try:
                y.sum().backward()
                texts.append(None)
            except rueda.MismatchError as error:
                texts.append(str(error))
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == 2  # the job goes on
        return texts

    first, second = rueda.run(fn, np=2)
    assert first == second
    for text in first:
        assert "disagree" in text and "hvd.gradients() must be the same" in text


def test_rank_0_says_once_that_gradients_have_changed():
    def fn(chosen):
        import io
        import sys

        import torch

        import rueda.torch as hvd

        hvd.init()
        if chosen:
            hvd.gradients(chosen)
        sys.stderr = io.StringIO()
        alone = [hvd.add_process_set([r]) for r in range(2)][hvd.rank()]
        x = torch.ones(4, 3, requires_grad=True)
        hvd.allreduce(x).sum().backward()
        hvd.allgather(x, process_set=alone).sum().backward()
        unchanged = sys.stderr.getvalue()
        for _ in range(2):
            hvd.reducescatter(x).sum().backward()
            hvd.broadcast(x, 1).sum().backward()
        text, sys.stderr = sys.stderr.getvalue(), sys.__stderr__
        return unchanged, text

    [(unchanged, text), others] = rueda.run(fn, (None,), np=2)
    assert unchanged == ""
    assert text.count("\n") == 1
    assert "reducescatter is Horovod's now: N times" in text and 'hvd.gradients("sum")' in text
    assert others == ("", "")
    for chosen in ("horovod", "sum"):
        assert rueda.run(fn, (chosen,), np=2) == [("", "")] * 2


def test_the_knob_is_the_convention_of_a_program_that_sets_none():
    def fn(knobs):
        import rueda
        import rueda.torch as hvd

        rueda.init(knobs)
        return hvd.gradients(), hvd.gradients("horovod")

    assert rueda.run(fn, ({},), np=1, knobs={"gradients": "sum"}) == [("sum", "horovod")]
    assert rueda.run(fn, ({"gradients": "sum"},), np=1) == [("sum", "horovod")]
    assert rueda.run(fn, ({},), np=1) == [("horovod", "horovod")]


def test_ranks_whose_knobs_differ_do_not_start():
    def fn():
        import os

        import rueda

        os.environ["RUEDA_GRADIENTS"] = "sum" if os.environ["RUEDA_RANK"] == "1" else "horovod"
        try:
            rueda.init()
        except rueda.RuedaError as error:
            return str(error)

    for text in rueda.run(fn, np=2):
        assert text == "RUEDA_GRADIENTS differs between the ranks: horovod on rank 0; sum on rank 1"


class _Scaled(torch.autograd.Function):
    """In one process: its input, with its gradient times `factor`, and that one's times `again`."""

    @staticmethod
    def forward(ctx, x, factor, again):
        ctx.factors = factor, again
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        factor, again = ctx.factors
        return factor * _Scaled.apply(gradient, again, 1), None, None


def _penalty(loss, inputs):
    """The sum of the squares of the loss's gradient, which a second backward pass can follow."""
    gradients = torch.autograd.grad(
        loss, inputs, create_graph=True, allow_unused=True, materialize_grads=True
    )
    return sum(g.square().sum() for g in gradients)


@pytest.mark.parametrize("case", CASES)
def test_second_derivatives(on_threads, convention, case):
    ours, model, factor = CASES[case]
    again = 1 / 2 if "reducescatter" in case else 1
    if convention == "sum":
        factor = again = 1
    inputs = _numbers(3)
    xs = [x.clone().requires_grad_() for x in inputs]
    outputs = model([_Scaled.apply(x.sin(), factor, again) for x in xs])
    total = sum(_loss(y, rank) for rank, y in enumerate(outputs))
    _penalty(total, xs).backward()

    def body():
        x = inputs[hvd.rank()].clone().requires_grad_()
        _penalty(_loss(ours(x.sin()), hvd.rank()), [x]).backward()
        return x.grad

    # A rank that waits alone for the others is told within a second.
    for got, x in zip(on_threads(2, body, deadlock_timeout_s=1), xs, strict=True):
        torch.testing.assert_close(got, torch.zeros_like(x) if x.grad is None else x.grad)


def test_what_is_not_finite_on_a_root_stays_there(on_threads, convention):
    def body():
        x = torch.ones(2, requires_grad=True)
        (hvd.broadcast(x, 1) * torch.tensor([torch.nan, torch.inf])).sum().backward()
        return x.grad.tolist()

    zeros, [first, second] = on_threads(2, body)
    assert zeros == [0, 0] and first != first and second == float("inf")


@pytest.mark.parametrize("parts", [[3, 4], [7, 0], [0, 7]])
@pytest.mark.parametrize("shape", [(3,), (3, 2, 2)])
@pytest.mark.parametrize("affine", [True, False])
def test_sync_batch_norm_twice(on_threads, convention, parts, shape, affine):
    generator = torch.Generator().manual_seed(4)
    whole = torch.randn(7, *shape, generator=generator, dtype=torch.float64)
    weight = 1 + torch.randn(3, generator=generator, dtype=torch.float64)

    def train(layer, x, rows):
        if affine:
            with torch.no_grad():
                layer.weight.copy_(weight)
        x = x.clone().requires_grad_()
        scale = torch.arange(1.0, whole.numel() + 1).view_as(whole)[rows]
        loss = (layer(x.sin()).pow(3) * scale).sum()
        _penalty(loss, [x]).backward()
        return [x.grad, *(p.grad for p in layer.parameters())]

    kind = torch.nn.BatchNorm1d if len(shape) == 1 else torch.nn.BatchNorm2d
    alone = train(kind(3, affine=affine).double(), whole, slice(0, 7))
    slices = [slice(0, parts[0]), slice(parts[0], 7)]

    def body():
        rows = slices[hvd.rank()]
        return train(hvd.SyncBatchNorm(3, affine=affine).double(), whole[rows], rows)

    results = on_threads(2, body, deadlock_timeout_s=1)
    joined = torch.cat([own[0] for own in results])
    sums = [sum(own) for own in zip(*(own[1:] for own in results), strict=True)]
    for got, expected in zip([joined, *sums], alone, strict=True):
        torch.testing.assert_close(got, expected)
