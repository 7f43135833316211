"""rueda.torch.DistributedOptimizer: against one process that has all ranks' batches."""

from __future__ import annotations

import copy
import multiprocessing as mp
import os
import re
import signal
import threading

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import rueda  # noqa: E402
import rueda.torch as hvd  # noqa: E402

STEPS = 4


def net(seed=0, wide=40):
    """One with gradients that share buckets, and one of 160 KB that does not."""
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, wide),
        torch.nn.Tanh(),
        torch.nn.Linear(wide, 1000),
        torch.nn.Tanh(),
        torch.nn.Linear(1000, 3),
    )
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.1 * torch.randn(p.shape, generator=generator))
    return model


def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, 6, generator=generator)
    return x, torch.randint(0, 3, (8,), generator=generator)


def loss_of(model, step, rank):
    x, y = batch(step, rank)
    return F.cross_entropy(model(x), y)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def alone(make, ranks=2, passes=1, model=None, scale=1.0):
    """All ranks' batches in one process."""
    model = model or net()
    optimizer = make(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(ranks):
            for p in range(passes):
                (loss_of(model, step * passes + p, rank) * scale / ranks).backward()
        optimizer.step()
    return weights(model)


def train(model, optimizer, passes=1, **zero):
    for step in range(STEPS):
        optimizer.zero_grad(**zero)
        for p in range(passes):
            loss_of(model, step * passes + p, hvd.rank()).backward()
        optimizer.step()
    return weights(model)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def same_everywhere(results, expected):
    for result in results:
        assert torch.equal(result, results[0])  # to the bit
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


KINDS = {
    "SGD": sgd,
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_that_of_one_process(on_threads, kind):
    def body():
        model = net()
        own = KINDS[kind](model.parameters())
        optimizer = hvd.DistributedOptimizer(own, model.named_parameters())
        assert isinstance(optimizer, type(own))
        return train(model, optimizer)

    same_everywhere(on_threads(2, body), alone(KINDS[kind]))


OPTIONS = {
    "no names": dict(named_parameters=None),
    "no arena": dict(gradients_in_arena=False),
    "predivide": dict(gradient_predivide_factor=2.0),
    "two groups": dict(groups=2),
    "many groups": dict(groups=100),
    "predivide with groups": dict(gradient_predivide_factor=2.0, groups=3),
}


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("option", OPTIONS)
def test_options(on_threads, option, set_to_none):
    def body():
        model = net()
        options = dict(named_parameters=model.named_parameters()) | OPTIONS[option]
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), **options)
        return train(model, optimizer, set_to_none=set_to_none)

    same_everywhere(on_threads(2, body), alone(sgd))


def test_num_groups_is_deprecated(on_threads):
    def body():
        model = net()
        with pytest.warns(DeprecationWarning):
            optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), num_groups=2)
        return train(model, optimizer)

    same_everywhere(on_threads(2, body), alone(sgd))


def test_groups_by_parameters(on_threads):
    def body():
        model = net().double()
        model[0].float()
        p = list(model.parameters())
        optimizer = hvd.DistributedOptimizer(sgd(p), groups=[[p[0], p[5]], [p[2]]])
        for _ in range(2):
            optimizer.zero_grad()
            (p[0].sum() * hvd.rank() + p[5].sum()).backward()
            optimizer.step()
        return p[0].grad.flatten()[0].item(), p[5].grad[0].item(), p[2].grad

    assert on_threads(2, body) == [(0.5, 1.0, None)] * 2


def test_sums(on_threads):
    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), op=hvd.Sum)
        return train(model, optimizer)

    same_everywhere(on_threads(2, body), alone(sgd, scale=2.0))


@pytest.mark.parametrize("later", [False, True])
def test_several_backward_passes(on_threads, later):
    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(
            sgd(model.parameters()),
            model.named_parameters(),
            backward_passes_per_step=1 if later else 3,
        )
        optimizer.set_backward_passes_per_step(3)
        return train(model, optimizer, passes=3)

    same_everywhere(on_threads(2, body), alone(sgd, passes=3))


def test_one_backward_pass_too_many(on_threads):
    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
        loss_of(model, 0, 0).backward()
        with pytest.raises(AssertionError, match="backward_passes_per_step"):
            loss_of(model, 0, 0).backward()
        optimizer.step()

    on_threads(2, body)


def test_zero_grad_while_gradients_are_reduced(on_threads):
    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
        loss_of(model, 0, 0).backward()
        with pytest.raises(AssertionError, match="zero_grad"):
            optimizer.zero_grad()
        optimizer.synchronize()
        optimizer.zero_grad()
        assert all(p.grad is None for p in model.parameters())

    on_threads(2, body)


def test_zero_grad_between_two_passes_of_a_step(on_threads):
    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), backward_passes_per_step=2)
        optimizer.zero_grad()
        loss_of(model, 0, 0).backward()
        with pytest.raises(AssertionError, match="zero_grad"):
            optimizer.zero_grad()
        loss_of(model, 1, 0).backward()
        optimizer.step()
        optimizer.zero_grad()

    on_threads(2, body)


def test_passes_may_be_set_when_gradients_are_on_their_way(on_threads):
    """For the next step."""

    def body():
        embedding = torch.nn.Embedding(4, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(sgd(embedding.parameters()))
        for passes in (1, 3, 2):
            optimizer.zero_grad()
            optimizer.set_backward_passes_per_step(passes)
            for _ in range(passes):
                embedding(torch.tensor([hvd.rank()])).sum().backward()
            optimizer.set_backward_passes_per_step(passes + 1)
            optimizer.step()
        return embedding.weight.grad.to_dense()[:, 0].tolist()

    assert on_threads(2, body) == [[1, 1, 0, 0]] * 2


@pytest.mark.parametrize("passes", [1, 2])
def test_loading_a_state_ends_the_step_that_is_under_way(on_threads, passes):
    """In the next one gradients come as if nothing had been."""

    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(
            sgd(model.parameters()), backward_passes_per_step=passes
        )
        state = copy.deepcopy(optimizer.state_dict())
        loss_of(model, 7, hvd.rank()).backward()
        optimizer.load_state_dict(state)
        return train(model, optimizer, passes=passes)

    same_everywhere(on_threads(2, body), alone(sgd, passes=passes))


class Failing(hvd.Compressor):
    """Once, on each rank, in its first call."""

    calls = None

    @classmethod
    def count(cls, what):
        key = what, hvd.rank()
        cls.calls[key] = cls.calls.get(key, 0) + 1
        if what == cls.at and cls.calls[key] == 1:
            raise KeyError("a mistake of the user's")

    @classmethod
    def compress(cls, tensor):
        cls.count("compress")
        return tensor, None

    @classmethod
    def decompress(cls, tensor, ctx):
        cls.count("decompress")
        return tensor


@pytest.mark.parametrize("at", ["compress", "decompress"])
def test_after_an_error_in_a_compression_training_goes_on(on_threads, at):
    Failing.at, Failing.calls = at, {}

    def body():
        model = net()
        own = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer = hvd.DistributedOptimizer(own, compression=Failing)
        with pytest.raises(KeyError, match="mistake"):
            loss_of(model, 0, hvd.rank()).backward()
            optimizer.step()
        for p in model.parameters():  # some had not been computed
            p.grad = None
        if at == "compress":  # what has been is under way
            optimizer.step()
        optimizer.zero_grad()
        loss_of(model, 0, hvd.rank()).backward()
        optimizer.step()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    model = net()
    for rank in range(2):
        (loss_of(model, 0, rank) / 2).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    same_everywhere(on_threads(2, body), expected)


def test_closures(on_threads):
    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
        for step in range(STEPS):

            def closure(step=step):
                optimizer.zero_grad()
                loss = loss_of(model, step, hvd.rank())
                loss.backward()
                return loss

            assert optimizer.step(closure).requires_grad
        return weights(model)

    same_everywhere(on_threads(2, body), alone(sgd))


def test_lbfgs_stays_the_same_on_all_ranks(on_threads):
    def body():
        model = net(wide=5)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
        )

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, 0, hvd.rank())
            loss.backward()
            return loss

        before = loss_of(model, 0, 0) + loss_of(model, 0, 1)
        optimizer.step(closure)
        after = loss_of(model, 0, 0) + loss_of(model, 0, 1)
        assert after < before
        return weights(model)

    first, second = on_threads(2, body)
    assert torch.equal(first, second)


def test_unused_parameters(on_threads):
    """One that a rank did not use counts as zeros; one that none used has no gradient."""

    def body():
        a, b, c = (torch.nn.Parameter(torch.ones(3)) for _ in range(3))
        own = torch.optim.SGD([a, b, c], lr=1.0, weight_decay=0.5)
        optimizer = hvd.DistributedOptimizer(own, [("a", a), ("b", b), ("c", c)])
        for _ in range(2):
            optimizer.zero_grad()
            (a.sum() + (b.sum() if hvd.rank() == 1 else 0)).backward()
            optimizer.step()
        assert a.grad.tolist() == [1, 1, 1]
        assert b.grad.tolist() == [0.5, 0.5, 0.5]
        assert c.grad is None
        return a[0].item(), b[0].item(), c[0].item()

    assert on_threads(2, body) == [(-1.25, -0.5, 1.0)] * 2


def test_a_rank_without_a_batch_counts_as_zeros(on_threads):
    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
        optimizer.zero_grad()
        if hvd.rank() == 0:
            loss_of(model, 0, 0).backward()
        optimizer.step()
        return weights(model)

    model = net()
    optimizer = sgd(model.parameters())
    (loss_of(model, 0, 0) / 2).backward()
    optimizer.step()
    same_everywhere(on_threads(2, body), weights(model))


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(on_threads, as_dense):
    def table():
        generator = torch.Generator().manual_seed(0)
        embedding = torch.nn.Embedding(10, 3, sparse=True)
        with torch.no_grad():
            embedding.weight.copy_(torch.randn(10, 3, generator=generator))
        return embedding

    def body():
        embedding = table()
        own = torch.optim.SGD(embedding.parameters(), lr=0.5)
        optimizer = hvd.DistributedOptimizer(own, sparse_as_dense=as_dense)
        for step in range(3):
            optimizer.zero_grad()
            if step < 2 or hvd.rank() == 0:
                embedding(torch.tensor([hvd.rank(), 2 + step])).square().sum().backward()
            optimizer.step()
        assert embedding.weight.grad.is_sparse
        return embedding.weight.detach().flatten()

    embedding = table()
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.5)
    for step in range(3):
        optimizer.zero_grad()
        for rank in range(2 if step < 2 else 1):
            (embedding(torch.tensor([rank, 2 + step])).square().sum() / 2).backward()
        optimizer.step()
    same_everywhere(on_threads(2, body), embedding.weight.detach().flatten())


@pytest.mark.parametrize("as_dense", [False, True])
def test_optimizers_that_want_sparse_gradients(on_threads, as_dense):
    """Also where a rank has none."""

    def trained(ranks, wrap=lambda optimizer: optimizer):
        embedding = torch.nn.Embedding(4, 2, sparse=True)
        torch.nn.init.zeros_(embedding.weight)
        optimizer = wrap(torch.optim.SparseAdam(embedding.parameters(), lr=0.5))
        for step in range(2):
            optimizer.zero_grad()
            for rank in ranks:
                if rank <= step:
                    (embedding(torch.tensor([rank])).sum() / len(ranks)).backward()
            optimizer.step()
        return embedding.weight.detach()

    def body():
        return trained(
            [hvd.rank()], lambda own: hvd.DistributedOptimizer(own, sparse_as_dense=as_dense)
        )

    same_everywhere(on_threads(2, body), trained([0, 1]))


def test_a_sparse_gradient_that_not_all_ranks_have(on_threads):
    """Also when a rank has not had any yet; and together with a dense one of another rank's."""

    def body():
        table = torch.nn.Parameter(torch.zeros(4, 2))
        other = torch.nn.Parameter(torch.zeros(1))
        own = torch.optim.SGD([table, other], lr=1.0)
        optimizer = hvd.DistributedOptimizer(own, [("table", table), ("other", other)])
        found = []
        for step, mine in enumerate(("sparse none", "none sparse", "none none", "dense sparse")):
            optimizer.zero_grad()
            loss = other.sum()
            kind = mine.split()[hvd.rank()]
            if kind == "sparse":
                row = torch.tensor([step, step])
                loss = loss + torch.nn.functional.embedding(row, table, sparse=True).sum()
            elif kind == "dense":
                loss = loss + table.sum()
            loss.backward()
            optimizer.step()
            gradient = table.grad
            found.append(None if gradient is None else gradient.to_dense()[:, 0].tolist())
        return found, table[:, 0].tolist()

    found = [[1, 0, 0, 0], [0, 1, 0, 0], None, [0.5, 0.5, 0.5, 1.5]]
    assert on_threads(2, body) == [(found, [-1.5, -1.5, -0.5, -1.5])] * 2


def test_a_rank_that_joins_without_a_batch(on_threads):
    """And takes part later, when the others have done so for a while."""

    def body():
        p = torch.nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0))
        for batches in ((2, 0), (1, 1), (0, 2)):
            for _ in range(batches[hvd.rank()]):
                optimizer.zero_grad()
                p.sum().backward()
                optimizer.step()
            hvd.join()
        return p[0].item()

    assert on_threads(2, body) == [-2.0, -2.0]


def test_different_parameters_of_ranks_where_one_has_joined(on_threads):
    def body():
        if hvd.rank() == 0:
            hvd.join()
            return
        p = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
        names = ["", "ab", "ba"][hvd.rank()]
        own = torch.optim.SGD(p, lr=1.0)
        optimizer = hvd.DistributedOptimizer(own, list(zip(names, p, strict=True)))
        sum(p).sum().backward()
        with pytest.raises(rueda.MismatchError, match="different parameters.*rank 1.*rank 2"):
            optimizer.step()
        hvd.join()

    on_threads(3, body)


class Doubling(hvd.Compression.none):
    """Of a user's own."""

    compressor = None

    @staticmethod
    def compress(tensor):
        return tensor.double(), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        assert tensor.dtype == torch.float64
        return tensor.to(ctx)


class Sevens(hvd.Compression.fp16):
    """Derived from one of the library's, without a word about that."""

    @classmethod
    def compress(cls, tensor):
        return torch.full_like(tensor, 7, dtype=torch.float16), tensor.dtype


class Renamed(hvd.Compression.fp16):
    """Nothing of a user's own."""


def half(compression, groups, reverse=False):
    """Gradients of 1 + 2**-12, which float16 does not have, by type."""

    def body():
        kinds = [torch.float32, torch.float64][:: -1 if reverse else 1]
        p = [torch.nn.Parameter(torch.ones(2, dtype=kind)) for kind in kinds]
        own = torch.optim.SGD(p, lr=1.0)
        optimizer = hvd.DistributedOptimizer(own, compression=compression, groups=groups)
        for _ in range(2):
            optimizer.zero_grad()
            sum(each.sum() * (1 + 2**-12) for each in p).backward()
            optimizer.step()
        return {each.dtype: each.grad[0].item() for each in p}

    return body


@pytest.mark.parametrize("groups", [None, 1])
def test_compressions_derived_from_the_librarys(on_threads, groups):
    sevens = {torch.float32: 7.0, torch.float64: 7.0}
    assert on_threads(2, half(Sevens, groups)) == [sevens] * 2
    ones = {torch.float32: 1.0, torch.float64: 1 + 2**-12}
    assert on_threads(2, half(Renamed, groups)) == [ones] * 2
    reduced = on_threads(2, lambda: hvd.allreduce(torch.ones(1), name="a", compression=Sevens))
    assert [each.item() for each in reduced] == [7.0] * 2


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["fp16", "own"])
def test_compression_of_groups_of_several_types(on_threads, kind, reverse):
    compression = {"fp16": hvd.Compression.fp16, "own": Own}[kind]
    expected = {torch.float32: 1.0, torch.float64: 1.0 if kind == "own" else 1 + 2**-12}
    assert on_threads(2, half(compression, 1, reverse)) == [expected] * 2


class Own(hvd.Compressor):
    """Of any type, and with collectives within."""

    @staticmethod
    def compress(tensor):
        return tensor.half(), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        name = f"{tensor.shape} {ctx}"
        return tensor.to(ctx) * hvd.allreduce(torch.ones(1, dtype=ctx), name=name)


def test_compression_of_rows_that_lie_apart(on_threads):
    def body():
        conv = torch.nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)
        optimizer = hvd.DistributedOptimizer(sgd(conv.parameters()), compression=Own)
        conv(torch.ones(1, 2, 4, 4)).sum().backward()
        optimizer.step()
        return conv.weight.grad.flatten().tolist(), conv.bias.grad.tolist()

    assert on_threads(2, body) == [([4.0] * 36, [4.0] * 2)] * 2


@pytest.mark.parametrize("name", ["1bit,no_feedback", "auto,no_feedback"])
def test_compression_by_shape_with_options(on_threads, name):
    """Each gradient goes by itself."""

    def body():
        model = net(0, 5)
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), compression=name)
        assert {len(bucket.slots) for bucket in optimizer._reducer._buckets} == {1}

    on_threads(2, body)


@pytest.mark.parametrize("compression", ["fp16", "bf16", "int8", "own"])
def test_compression(on_threads, compression):
    kinds = {
        "fp16": hvd.Compression.fp16,
        "bf16": hvd.Compression.bf16,
        "int8": "int8",
        "own": Doubling,
    }

    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(
            sgd(model.parameters()), model.named_parameters(), compression=kinds[compression]
        )
        return train(model, optimizer)

    results = on_threads(2, body)
    expected = alone(sgd)
    assert torch.equal(results[0], results[1])
    assert (results[0] - expected).abs().max() < 0.05
    assert torch.equal(results[0], expected) <= (compression == "own")


def test_compression_by_shape(on_threads):
    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(
            sgd(model.parameters()), compression=hvd.Compression.powersgd(2)
        )
        return train(model, optimizer)

    first, second = on_threads(2, body)
    assert torch.equal(first, second)


def test_adasum_combines_steps(on_threads):
    def adasum(x, y):
        xx, yy, xy = x @ x, y @ y, x @ y
        return (1 - xy / (2 * xx)) * x + (1 - xy / (2 * yy)) * y

    def body():
        p = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=0.5), op=hvd.Adasum)
        (p * torch.tensor([[1.0, 0.5], [0.5, 2.0]])[hvd.rank()]).sum().backward()
        optimizer.synchronize()
        optimizer.step()
        optimizer.synchronize()
        with pytest.raises(AssertionError, match="Adasum"):
            optimizer.skip_synchronize()
        optimizer.zero_grad()
        return p.detach()

    combined = adasum(-0.5 * torch.tensor([1.0, 0.5]), -0.5 * torch.tensor([0.5, 2.0]))
    same_everywhere(on_threads(2, body), torch.tensor([1.0, 2.0]) + combined)


def test_schedulers_and_state_dicts(on_threads):
    def body():
        model = net()
        own = torch.optim.Adam(model.parameters(), lr=0.1)
        before = torch.optim.lr_scheduler.StepLR(own, 1, 0.5)
        optimizer = hvd.DistributedOptimizer(own, model.named_parameters())
        after = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
        train(model, optimizer)
        before.step()
        after.step()
        state = copy.deepcopy(optimizer.state_dict())
        hvd.broadcast_optimizer_state(optimizer, 1)
        optimizer.load_state_dict(state)
        assert optimizer.state_dict()["state"][0]["step"] == STEPS
        return optimizer.param_groups[0]["lr"]

    assert set(on_threads(2, body)) <= {0.1, 0.05}


def test_more_parameters_later(on_threads):
    def body():
        model, more = net(0, 5), net(1, 5)
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        train(model, optimizer)
        optimizer.add_param_group({"params": list(more.parameters()), "lr": 0.1})
        for step in range(2):
            optimizer.zero_grad()
            (loss_of(model, step, hvd.rank()) + loss_of(more, step, hvd.rank())).backward()
            optimizer.step()
        return torch.cat([weights(model), weights(more)])

    first, second = on_threads(2, body)
    assert torch.equal(first, second)


def test_two_optimizers_at_once(on_threads):
    def body():
        models = [net(0, 5), net(1, 5)]
        optimizers = [hvd.DistributedOptimizer(sgd(m.parameters())) for m in models]
        for step in range(STEPS):
            for o in optimizers:
                o.zero_grad()
            # In an order of this rank's own.
            order = models if hvd.rank() == 0 else models[::-1]
            for m in order:
                loss_of(m, step, hvd.rank()).backward()
            for o in optimizers if hvd.rank() == 1 else optimizers[::-1]:
                o.step()
        return torch.cat([weights(m) for m in models])

    expected = torch.cat([alone(sgd, model=net(0, 5)), alone(sgd, model=net(1, 5))])
    same_everywhere(on_threads(2, body), expected)


def test_optimizers_from_before_another_init():
    """Under ruedarun: both it and a new one are at work."""

    def work():
        import torch

        import rueda.torch as hvd

        def make():
            p = torch.nn.Parameter(torch.zeros(2))
            return p, hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0))

        hvd.init()
        pairs = [make()]
        hvd.shutdown()
        hvd.init()
        pairs.append(make())
        for p, _ in pairs:
            (p.sum() * hvd.rank()).backward()
        for _, optimizer in pairs:
            optimizer.step()
        hvd.shutdown()
        return [p.tolist() for p, _ in pairs]

    assert rueda.run(work, np=2) == [[[-0.5, -0.5]] * 2] * 2


def test_process_sets(on_threads):
    def body():
        pair = hvd.add_process_set([0, 2])
        model = net()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), process_set=pair)
        return train(model, optimizer)

    first, second, third = on_threads(3, body)
    assert torch.equal(first, third) and not torch.equal(first, second)


def test_channels_last_and_odd_layouts(on_threads):
    def body():
        conv = torch.nn.Conv2d(4, 8, 3)
        with torch.no_grad():
            conv.weight.fill_(0.1)
            conv.bias.fill_(0.1)
        conv = conv.to(memory_format=torch.channels_last)
        optimizer = hvd.DistributedOptimizer(sgd(conv.parameters()))
        x = torch.arange(4 * 36.0).reshape(1, 4, 6, 6) * (hvd.rank() + 1) / 100
        for _ in range(2):
            optimizer.zero_grad()
            conv(x.to(memory_format=torch.channels_last)).square().sum().backward()
            optimizer.synchronize()
        return conv.weight.grad.contiguous()

    first, second = on_threads(2, body)
    assert torch.equal(first, second)


@pytest.mark.parametrize("options", [{}, dict(groups=2), dict(compression="1bit")])
def test_parameters_without_elements(on_threads, options):
    """The last one is the first to be given a place."""

    def body():
        p = [torch.nn.Parameter(torch.ones(n, 3)) for n in (0, 2, 0)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(p, lr=1.0), **options)
        for _ in range(2):
            optimizer.zero_grad()
            sum((hvd.rank() + 1) * each.sum() for each in p).backward()
            optimizer.step()
        return [each.grad.flatten().tolist() for each in p]

    assert on_threads(2, body) == [[[], [1.5] * 6, []]] * 2


DIFFERENT = {
    "shapes": (lambda r: [("a", 2 + r), ("b", 3)], r"rank 0 has \('a', .*\(2,\).* rank 1 .*\(3,\)"),
    "order": (lambda r: [("ab"[r], 2), ("ba"[r], 2)], r"rank 0 has \('a', .* rank 1 has \('b', "),
    "number": (lambda r: [("a", 2), ("b", 2)][: 1 + r], r"rank 0 has 1 and rank 1 2"),
    "large ones": (lambda r: [("ab"[r], 99999)], r"rank 0 has \('a', .* rank 1 has \('b', "),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_ranks_with_different_parameters_are_told(on_threads, what):
    describe, text = DIFFERENT[what]

    def body():
        named = [(n, torch.nn.Parameter(torch.zeros(size))) for n, size in describe(hvd.rank())]
        optimizer = hvd.DistributedOptimizer(sgd([p for _, p in named]), named)
        sum(p.sum() for _, p in named).backward()
        with pytest.raises(rueda.MismatchError, match=text):
            optimizer.step()

    on_threads(2, body)


def test_bad_arguments(on_threads):
    def body():
        model = net(0, 5)
        names = list(model.named_parameters())
        optimizer = sgd(model.parameters())
        cases = [
            (dict(named_parameters=names[:2]), "not among"),
            (dict(named_parameters=[*names, names[0]]), "one name"),
            (dict(named_parameters=model.parameters()), "pairs"),
            (dict(backward_passes_per_step=0), "backward_passes_per_step"),
            (dict(gradient_predivide_factor=0.0), "above 0"),
            (dict(gradient_predivide_factor=2.0, op=hvd.Sum), "Average"),
            (dict(op=hvd.Max, compression=hvd.Compression.fp16), "compression"),
            (dict(groups=-1), "groups"),
            (dict(groups=[[torch.ones(1)]]), "not a parameter"),
            (dict(groups=[[names[0][1], names[0][1]]]), "twice"),
            (dict(groups="all"), "groups"),
            (dict(op=99), "op is 99"),
            (dict(compression="nope"), "there are none, fp16"),
        ]
        for options, text in cases:
            with pytest.raises(ValueError, match=text):
                hvd.DistributedOptimizer(optimizer, **options)
        with pytest.raises(TypeError):
            hvd.DistributedOptimizer(model)
        for options in (dict(op="sum"), dict(process_set=7), dict(compression=object)):
            with pytest.raises(TypeError):
                hvd.DistributedOptimizer(optimizer, **options)
        with pytest.raises(ValueError, match="already"):
            hvd.DistributedOptimizer(hvd.DistributedOptimizer(optimizer))

    on_threads(2, body)


def test_an_error_of_one_rank_reaches_the_step_of_the_others(on_threads):
    stepped = threading.Event()

    def body():
        model = net(0, 5)
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
        train(model, optimizer)
        if hvd.rank() == 1:
            stepped.wait()
            rueda.abort("no more data")
            return
        stepped.set()
        optimizer.zero_grad()
        with pytest.raises(rueda.AbortedError, match="no more data"):
            loss_of(model, 0, 0).backward()
            optimizer.step()

    on_threads(2, body)


def test_a_step_that_stalls_ends(on_threads):
    gone = threading.Event()

    def body():
        model = net(0, 5)
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))

        def step():
            optimizer.zero_grad()
            loss_of(model, 0, 0).backward()
            optimizer.step()

        if hvd.rank() == 0:
            with pytest.raises(rueda.StalledError, match="missing: rank 1"):
                step()
            gone.set()
        gone.wait()
        while True:  # the job goes on, however late one of them is
            try:
                return step()
            except rueda.StalledError:
                continue

    on_threads(2, body, stall_timeout_s=0.3, stall_warn_s=0.2, log_level="error")


@pytest.mark.parametrize("hosts", ["0", "2"])
def test_a_rank_is_lost_whose_data_loader_has_workers(hosts, tmp_path):
    """They are forked, so that what they hold open tells nobody of the loss, and live on: from the
    second batch on they wait for what does not come."""

    class Data(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield torch.ones(6)
            signal.pause()

    def work():
        hvd.init()
        model = net(0, 5)
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
        batches = iter(torch.utils.data.DataLoader(Data(), num_workers=2, batch_size=1))
        x = next(batches)
        try:
            for step in range(1_000_000):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
                if step == 5 and hvd.rank() == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
        except rueda.LostRankError as error:
            (tmp_path / "told").write_text(f"{len(mp.active_children())} workers; {error}")
        os._exit(1)  # without a wait for the workers

    with pytest.raises(rueda.RemoteError) as raised:
        rueda.run(work, np=2, env={"RUEDA_HOSTS_FAKE": hosts})
    assert raised.value.rank == 1
    told = (tmp_path / "told").read_text()
    assert re.match(r"2 workers; rank 1 \(.*SIGKILL", told), told


def test_what_is_unfrozen_later_is_combined_from_zero_grad_on(on_threads):
    def body():
        rank = hvd.rank()
        model = torch.nn.Linear(2, 1)
        hvd.broadcast_parameters(model.state_dict(), 0)
        model.weight.requires_grad_(False)
        optimizer = hvd.DistributedOptimizer(
            sgd(model.parameters()), named_parameters=model.named_parameters()
        )

        def step():
            model(torch.full((1, 2), rank + 1.0)).sum().backward()
            optimizer.step()

        step()
        model.weight.requires_grad_(True)
        with pytest.raises(ValueError, match="'weight' has been unfrozen"):
            step()
        for _ in range(2):
            optimizer.zero_grad()
            step()
        assert torch.equal(model.weight.grad, torch.full((1, 2), 1.5))
        return model.weight.detach()

    first, second = on_threads(2, body)
    assert torch.equal(first, second)


def test_one_rank_is_plain_torch(on_threads):
    def body():
        model = net()
        return train(model, hvd.DistributedOptimizer(sgd(model.parameters())))

    assert torch.equal(on_threads(1, body)[0], alone(sgd, ranks=1))
