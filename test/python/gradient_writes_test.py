"""Gradients that the program writes to between backward() and step(): all ranks step by the same,
by that of all ranks' backward passes, or by what was written after synchronize()."""

from __future__ import annotations

import contextlib
import warnings

import pytest

torch = pytest.importorskip("torch")

import rueda.torch as hvd  # noqa: E402
from rueda.torch import algorithms  # noqa: E402

STEPS = 4


def net(rows=200):
    """Parameters that share a bucket, and one of 160 KB that does not."""
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(rows, 200), torch.nn.Tanh(), torch.nn.Linear(200, 3)
    )
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.1 * torch.randn(p.shape, generator=generator))
    return model


def loss_of(model, step, rank):
    generator = torch.Generator().manual_seed(10 * step + rank)
    x = torch.randn(8, model[0].in_features, generator=generator)
    y = torch.randint(0, 3, (8,), generator=generator)
    return torch.nn.functional.cross_entropy(model(x), y)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def alone(passes=1, change=lambda model: None, make=sgd):
    """Both ranks' batches in one process. `change` is made to gradients before each step."""
    model = net()
    optimizer = make(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for p in range(passes):
            for rank in range(2):
                (loss_of(model, step * passes + p, rank) / 2).backward()
        change(model)
        optimizer.step()
    return weights(model)


def recorded(function, *args):
    """What it returned, and the texts of the warnings of all threads."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*args)
    return result, [str(each.message) for each in caught if "synchronize" in str(each.message)]


def same_everywhere(results, expected):
    assert torch.equal(results[0], results[1])  # to the bit
    torch.testing.assert_close(results[0], expected, rtol=1e-4, atol=1e-5)


def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def noise(model):
    for p in model.parameters():
        p.grad.add_(torch.rand(p.shape) + hvd.rank())


def others(model):
    for p in model.parameters():
        p.grad = torch.full_like(p, hvd.rank())


def none(model):
    for p in model.parameters():
        p.grad = None


def data(model):
    for p in model.parameters():
        p.grad.data.mul_(100 + hvd.rank())


def numpy(model):
    for p in model.parameters():
        p.grad.numpy()[...] = hvd.rank()


def view(model):
    for p in model.parameters():
        p.grad.detach().view(-1)[:1] = 100 * hvd.rank()


WRITES = [clip, noise, others, none, data, numpy, view]
SILENT = [data, numpy]  # that torch counts no write for


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_before_synchronize_is_lost(on_threads, write, set_to_none, passes):
    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(
            sgd(model.parameters()),
            model.named_parameters(),
            backward_passes_per_step=passes,
        )
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=set_to_none)
            for p in range(passes):
                loss_of(model, step * passes + p, hvd.rank()).backward()
            write(model)
            optimizer.step()
        return weights(model)

    results, warned = recorded(on_threads, 2, body)
    same_everywhere(results, alone(passes))
    if write in SILENT:
        assert warned == []
    else:  # once on each rank
        assert len(warned) == 2
        assert "'0.weight'" in warned[0] and "optimizer.synchronize() first" in warned[0]


def halve_data(model):
    for p in model.parameters():
        p.grad.data.mul_(0.5)


def halve_numpy(model):
    for p in model.parameters():
        values = p.grad.numpy()
        values *= 0.5


@pytest.mark.parametrize("skip", [False, True], ids=["step", "skip_synchronize"])
@pytest.mark.parametrize("change", [clip, halve_data, halve_numpy])
def test_what_is_written_after_synchronize_counts(on_threads, change, skip):
    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.synchronize()
            change(model)
            with optimizer.skip_synchronize() if skip else contextlib.nullcontext():
                optimizer.step()
        return weights(model)

    results, warned = recorded(on_threads, 2, body)
    same_everywhere(results, alone(change=change))
    assert warned == []


def test_tensors_of_earlier_gradients(on_threads):
    """Who has kept them may write to them at any time: they are not what is under way."""

    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
        kept = []
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss_of(model, step, hvd.rank()).backward()
            for each in kept:
                each[...] = 1000 + hvd.rank()
            optimizer.step()
            kept += [p.grad.view(-1).numpy() for p in model.parameters()]
        return weights(model)

    same_everywhere(on_threads(2, body), alone())


def test_memory_is_used_again(on_threads):
    """Two buckets' worth at most, when gradients are kept as they are between steps; else one."""

    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
        places = []
        for set_to_none in [True] * 5 + [False] * 5:
            optimizer.zero_grad(set_to_none=set_to_none)
            loss_of(model, 0, hvd.rank()).backward()
            optimizer.step()
            places.append(next(model.parameters()).grad.data_ptr())
        return len(set(places[:5])), len(set(places[5:]))

    assert on_threads(2, body) == [(1, 2)] * 2


def test_a_hook_that_comes_after(on_threads):
    """Whose write is lost; that of one which was there before is not."""

    def body(before):
        def halve(p):
            p.grad.mul_(0.5)

        model = net()
        if before:
            for p in model.parameters():
                p.register_post_accumulate_grad_hook(halve)
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
        if not before:
            for p in model.parameters():
                p.register_post_accumulate_grad_hook(halve)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
        return weights(model)

    results, warned = recorded(on_threads, 2, body, False)
    same_everywhere(results, alone())
    assert len(warned) == 2

    def halved(model):
        for p in model.parameters():
            p.grad.mul_(0.5)

    results, warned = recorded(on_threads, 2, body, True)
    same_everywhere(results, alone(change=halved))
    assert warned == []


@pytest.mark.parametrize("coalesced", [True, False])
def test_a_sparse_gradient(on_threads, coalesced):
    rows = 2000

    def body():
        table = torch.nn.Embedding(2 * rows, 64, sparse=True)
        torch.nn.init.ones_(table.weight)
        if coalesced:
            table.weight.register_post_accumulate_grad_hook(
                lambda p: setattr(p, "grad", p.grad.coalesce())
            )
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
        for _ in range(STEPS):
            optimizer.zero_grad()
            first = hvd.rank() * rows // 2
            table(torch.arange(first, first + rows)).sum().backward()
            assert table.weight.grad.is_coalesced() == coalesced
            table.weight.grad._values().fill_(100 + hvd.rank())
            optimizer.step()
        return table.weight.detach()

    expected = torch.ones(2 * rows, 64)
    expected[: rows // 2] -= STEPS / 2
    expected[rows // 2 : rows] -= STEPS
    expected[rows : rows + rows // 2] -= STEPS / 2
    results, _ = recorded(on_threads, 2, body)
    same_everywhere(results, expected)


# ---- no false alarm ----


def quiet(on_threads, body, expected=None):
    results, warned = recorded(on_threads, 2, body)
    assert warned == []
    same_everywhere(results, expected)


def test_gradients_may_be_changed_between_passes(on_threads):
    """Before they are taken."""

    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), backward_passes_per_step=2)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, 2 * step, hvd.rank()).backward()
            for p in model.parameters():
                p.grad.mul_(1.0)
            loss_of(model, 2 * step + 1, hvd.rank()).backward()
            optimizer.step()
        return weights(model)

    quiet(on_threads, body, alone(passes=2))


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
        lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
        lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    ],
)
def test_optimizers_that_step_all_parameters_at_once(on_threads, make, set_to_none):
    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(make(model.parameters()))
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=set_to_none)
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
        return weights(model)

    quiet(on_threads, body, alone(make=make))


def test_a_step_that_is_left_out(on_threads):
    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
        for step in range(STEPS):
            optimizer.zero_grad()
            (loss_of(model, step, hvd.rank()) * float("nan")).backward()
            optimizer.synchronize()
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
        return weights(model)

    quiet(on_threads, body, alone())


def test_gradients_that_autograd_has_cut_from_one_tensor(on_threads):
    """Their counts of writes are one."""

    def body():
        a, b = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([a, b], lr=1.0), backward_passes_per_step=2
        )
        for _ in range(STEPS):
            optimizer.zero_grad()
            for _ in range(2):
                (torch.cat([a, b]) * (1.0 + hvd.rank())).sum().backward()
            optimizer.step()
        return torch.cat([a, b]).detach()

    quiet(on_threads, body, torch.full((6,), -3.0 * STEPS))


# ---- torch.amp.GradScaler ----


def scaled(model, optimizer, scaler, recipe, rank, bad=lambda step: False):
    """Trains by one of the recipes that are around. Which steps were left out."""
    left_out = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = scaler.scale(loss_of(model, step, rank))
        if bad(step):
            loss = loss * float("inf")
        loss.backward()
        if recipe == "unscale, clip":
            scaler.unscale_(optimizer)
            clip(model)
            scaler.step(optimizer)
        elif recipe == "synchronize, unscale, clip":
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            clip(model)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() < before:
            left_out.append(step)
    return weights(model), scaler.get_scale(), left_out


def a_scaler(enabled=True):
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2, enabled=enabled)


@pytest.mark.parametrize("recipe", ["step", "unscale, clip", "synchronize, unscale, clip"])
@pytest.mark.parametrize(
    "make",
    [sgd, lambda p: torch.optim.Adam(p, lr=0.01, fused=True)],
    ids=["sgd", "fused"],
)
def test_a_grad_scaler_is_as_in_one_process(on_threads, recipe, make):
    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(make(model.parameters()))
        return scaled(model, optimizer, a_scaler(), recipe, hvd.rank())

    results, warned = recorded(on_threads, 2, body)
    change = clip if "clip" in recipe else lambda model: None
    same_everywhere([result[0] for result in results], alone(change=change, make=make))
    assert [result[1:] for result in results] == [(4096.0, [])] * 2
    assert warned == []


def test_a_grad_scaler_that_is_off(on_threads):
    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
        return scaled(model, optimizer, a_scaler(enabled=False), "step", hvd.rank())[0]

    quiet(on_threads, body, alone())


def an_optimizer(kind, model):
    if kind == "qadam":
        own = torch.optim.Adam(model.parameters(), lr=0.01)
        return algorithms.make("qadam", own, list(model.named_parameters()), warmup_steps=3)
    if kind == "decentralized":
        return algorithms.make("decentralized", sgd(model.parameters()))
    options = {"adasum": dict(op=hvd.Adasum), "int8": dict(compression="int8")}.get(kind, {})
    if kind == "fused":  # which torch lets unscale by itself
        fused = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
        return hvd.DistributedOptimizer(fused, **options)
    return hvd.DistributedOptimizer(sgd(model.parameters()), **options)


@pytest.mark.parametrize("recipe", ["step", "unscale, clip"])
@pytest.mark.parametrize("kind", ["average", "fused", "int8", "adasum", "qadam", "decentralized"])
def test_all_skip_when_one_has_infinite_gradients(on_threads, kind, recipe):
    def body():
        model = net()
        made = an_optimizer(kind, model)
        optimizer = getattr(made, "optimizer", made)
        after, scale, left_out = scaled(
            model,
            optimizer,
            a_scaler(),
            recipe,
            hvd.rank(),
            lambda step: step == 2 * hvd.rank(),
        )
        if kind == "decentralized":
            made.finish()
            after = weights(model)
        return after, scale, left_out

    results = on_threads(2, body)
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][0].isfinite().all()
    assert not torch.equal(results[0][0], weights(net()))
    assert [result[1:] for result in results] == [(256.0, [0, 2])] * 2


def test_a_rank_without_a_batch_after_a_step_that_was_left_out(on_threads):
    def body():
        p = torch.nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0))
        scaler = a_scaler()
        for step in range(2):
            optimizer.zero_grad()
            if step == 0 or hvd.rank() == 0:
                scaler.scale(p.sum() * (float("inf") if step == 0 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        return p.detach(), scaler.get_scale()

    assert [(p.tolist(), scale) for p, scale in on_threads(2, body)] == [([-0.5, -0.5], 512.0)] * 2
