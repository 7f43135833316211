"""rueda.torch.algorithms: each against what it is defined to do, computed in one process."""

from __future__ import annotations

import copy
import time

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import rueda.torch as hvd  # noqa: E402
from rueda.torch import algorithms  # noqa: E402

STEPS = 6


def net():
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 300), torch.nn.Tanh(), torch.nn.Linear(300, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.1 * torch.randn(p.shape, generator=generator))
    return model


def loss_of(model, step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, 6, generator=generator)
    return F.cross_entropy(model(x), x[:, :3].argmax(1))


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01, weight_decay=0.1)


def train(name, make=sgd, steps=STEPS, closure=False, **options):
    """The weights after each step, and those at the end."""
    model = net()
    if hvd.rank() > 0:
        with torch.no_grad():
            model[0].weight.zero_()  # all get the first rank's
    algorithm = algorithms.make(name, make(model.parameters()), model.named_parameters(), **options)
    optimizer = algorithm.optimizer
    seen = []

    def backward():
        optimizer.zero_grad()
        loss = loss_of(model, len(seen), hvd.rank())
        loss.backward()
        return loss

    for _ in range(steps):
        if closure:
            optimizer.step(backward)
        else:
            backward()
            optimizer.step()
        seen.append(weights(model))
    algorithm.finish()
    return [*seen, weights(model)]


def alone(make=sgd, steps=STEPS):
    """Both ranks' batches in one process."""
    model = net()
    optimizer = make(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(2):
            (loss_of(model, step, rank) / 2).backward()
        optimizer.step()
    return weights(model)


def agree(results):
    assert all(torch.equal(result[-1], results[0][-1]) for result in results)
    return results[0][-1]


def test_gradient_allreduce_is_one_process(on_threads):
    end = agree(on_threads(2, train, "gradient_allreduce"))
    torch.testing.assert_close(end, alone(), rtol=1e-4, atol=1e-5)


def test_bytegrad_is_near_one_process_and_not_equal_to_it(on_threads):
    end, exact = agree(on_threads(2, train, "bytegrad")), alone()
    moved = (exact - weights(net())).norm()
    assert 0 < (end - exact).norm() < 0.05 * moved


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("mode", ["all", "shift_one"])
def test_decentralized_steps_from_the_average_by_the_own_gradient(on_threads, mode, closure):
    ranks = 6
    models = [net() for _ in range(ranks)]
    optimizers = [sgd(model.parameters()) for model in models]
    expected = []
    for step in range(STEPS):
        before = [weights(model) for model in models]
        for rank, (model, optimizer) in enumerate(zip(models, optimizers)):
            optimizer.zero_grad()
            loss_of(model, step, rank).backward()
            shift = step % 3
            peer = 3 + (rank + shift) % 3 if rank < 3 else (rank - 3 - shift) % 3
            start = sum(before) / ranks if mode == "all" else (before[rank] + before[peer]) / 2
            torch.nn.utils.vector_to_parameters(start, model.parameters())
            optimizer.step()
        expected.append([weights(model) for model in models])

    def body():
        return train("decentralized", closure=closure, peer_selection_mode=mode)

    results = on_threads(ranks, body)
    for step in range(STEPS):
        for rank in range(ranks):
            torch.testing.assert_close(
                results[rank][step], expected[step][rank], rtol=1e-4, atol=1e-5
            )
    assert not torch.equal(results[0][-2], results[1][-2])  # they differ until finish()
    torch.testing.assert_close(agree(results), sum(expected[-1]) / ranks, rtol=1e-4, atol=1e-5)


def test_decentralized_every_so_many_steps(on_threads):
    results = on_threads(2, lambda: train("decentralized", sgd, 3, communication_interval=2))
    first, second = results
    apart = [(a - b).norm().item() for a, b in zip(first, second)]
    assert apart[1] > apart[0] > 0 and apart[-1] == 0


@pytest.mark.parametrize("ranks", [2, 3])
def test_low_precision_tells_neighbours_by_how_much_it_moved(on_threads, ranks):
    """Quantised or not, a step is the ring's average of the neighbours and of this one."""
    results = on_threads(ranks, train, "low_precision_decentralized")
    models = [net() for _ in range(ranks)]
    optimizers = [sgd(model.parameters()) for model in models]
    for step in range(STEPS):
        before = [weights(model) for model in models]
        for rank in range(ranks):
            optimizers[rank].zero_grad()
            loss_of(models[rank], step, rank).backward()
            optimizers[rank].step()
            left, right = before[rank - 1], before[(rank + 1) % ranks]
            mixed = weights(models[rank]) + (left + right - 2 * before[rank]) / 3
            torch.nn.utils.vector_to_parameters(mixed, models[rank].parameters())
    apart = (weights(models[0]) - weights(models[1])).norm()
    for rank in range(ranks):
        error = (results[rank][-2] - weights(models[rank])).norm()
        assert error < 0.05 * apart
    agree(results)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_qadam_is_adam_until_the_warm_up_is_over(on_threads, kind):
    def make(parameters):
        return kind(parameters, lr=0.01, weight_decay=0.1)

    results = on_threads(2, lambda: train("qadam", make, 10, warmup_steps=4))
    torch.testing.assert_close(results[0][3], alone(make, 4), rtol=1e-4, atol=1e-5)
    for step in range(10):
        assert torch.equal(results[0][step], results[1][step])
    assert (results[0][9] - results[0][3]).norm() > 0


def test_qadam_averages_momenta_over_their_scales(on_threads):
    """Two steps after the warm-up, computed by the paper's formula; the difference is what 8 bits
    lose."""
    warmup, steps = 3, 5
    model = net()
    optimizer = adam(model.parameters())
    parameters = list(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        if step < warmup:
            for rank in range(2):
                (loss_of(model, step, rank) / 2).backward()
            optimizer.step()
            continue
        gradients = [torch.autograd.grad(loss_of(model, step, r), parameters) for r in range(2)]
        with torch.no_grad():
            for p, *of_ranks in zip(parameters, *gradients):
                state = optimizer.state[p]
                scale = (state["exp_avg_sq"] / (1 - 0.999**warmup)).sqrt() + 1e-8
                mean = sum(of_ranks) / 2 + 0.1 * p
                state["exp_avg"].lerp_(mean, 0.1)
                p.sub_(state["exp_avg"] / scale * 0.01 / (1 - 0.9 ** (step + 1)))
    results = on_threads(2, lambda: train("qadam", adam, steps, warmup_steps=warmup))
    moved = (weights(model) - results[0][warmup - 1]).norm()
    assert (agree(results) - weights(model)).norm() < 0.05 * moved


def test_async_waits_for_nobody_and_ends_equal(on_threads):
    def body():
        model = net()
        algorithm = algorithms.make("async", sgd(model.parameters()), stale_steps_max=1000)
        begin, first = time.monotonic(), loss_of(model, 0, hvd.rank()).item()
        for step in range(30):
            algorithm.optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            algorithm.optimizer.step()
            time.sleep(0.03 * hvd.rank())
        spent = time.monotonic() - begin
        algorithm.finish()
        return spent, loss_of(model, 0, hvd.rank()).item() < first, weights(model)

    results = on_threads(2, body)
    assert results[0][0] < 0.8 < results[1][0]
    assert results[0][1] and results[1][1]
    agree(results)


def test_async_averages_gradients_in_its_warm_up(on_threads):
    end = agree(on_threads(2, lambda: train("async", warmup_steps=STEPS)))
    torch.testing.assert_close(end, alone(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_each_learns_and_goes_on_from_its_state(on_threads, name):
    options = {"qadam": {"warmup_steps": 3}}.get(name, {})
    make = adam if name == "qadam" else sgd

    def body():
        def part(model, algorithm, begin):
            for step in range(begin, begin + 5):
                algorithm.optimizer.zero_grad()
                loss_of(model, step, hvd.rank()).backward()
                algorithm.optimizer.step()
            algorithm.finish()

        model = net()
        algorithm = algorithms.make(name, make(model.parameters()), **options)
        part(model, algorithm, 0)
        saved = copy.deepcopy(
            (model.state_dict(), algorithm.optimizer.state_dict(), algorithm.state_dict())
        )
        part(model, algorithm, 5)
        algorithm.close()
        other = net()
        other.load_state_dict(saved[0])
        again = algorithms.make(name, make(other.parameters()), **options)
        again.optimizer.load_state_dict(saved[1])
        again.load_state_dict(saved[2])
        part(other, again, 5)
        if not algorithm.differs:  # one rank's state is everybody's
            states = hvd.allgather_object(saved[1]["state"])
            for mine, others in zip(states[0].values(), states[1].values(), strict=True):
                assert all(
                    torch.equal(torch.as_tensor(v), torch.as_tensor(others[k]))
                    for k, v in mine.items()
                )
        start = loss_of(net(), 0, hvd.rank())
        return loss_of(model, 0, hvd.rank()) < start, weights(model), weights(other)

    for learned, end, other_end in on_threads(2, body):
        assert learned
        if name == "qadam":  # what the momentum has lost in 8 bits is not in its state
            assert (other_end - end).norm() < 0.05 * (end - weights(net())).norm()
        elif name != "async":  # its averages come when they come
            torch.testing.assert_close(other_end, end, rtol=1e-4, atol=1e-5)


def test_close_makes_a_plain_optimizer_of_it(on_threads):
    def body():
        model = net()
        for name in algorithms.ALGORITHMS:
            make = adam if name == "qadam" else sgd
            algorithm = algorithms.make(name, make(model.parameters()))
            algorithm.close()
            if hvd.rank() == 0:  # nobody else takes part
                loss_of(model, 0, 0).backward()
                algorithm.optimizer.step()
                algorithm.optimizer.zero_grad()

    on_threads(2, body)


def test_synchronize_then_clip_then_step(on_threads):
    def body():
        model = net()
        algorithm = algorithms.make("gradient_allreduce", sgd(model.parameters()))
        before = weights(model)

        def closure():
            algorithm.optimizer.zero_grad()
            loss_of(model, 0, hvd.rank()).backward()
            algorithm.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

        algorithm.optimizer.step(closure)
        return (weights(model) - before).norm().item(), weights(model)

    results = on_threads(2, body)
    assert results[0][0] == pytest.approx(0.02e-3, rel=1e-2)
    agree(results)


def test_mistakes_are_told(on_threads):
    def body():
        model = net()
        named = list(model.named_parameters())
        for message, kind, name, optimizer, options in (
            ("no algorithm 'gossip'", ValueError, "gossip", sgd, {}),
            ("needs an Adam", TypeError, "qadam", sgd, {}),
            ("warmup_steps", ValueError, "qadam", adam, {"warmup_steps": 0}),
            ("shift_one", ValueError, "decentralized", sgd, {"peer_selection_mode": "one"}),
            ("even number", ValueError, "decentralized", sgd, {"peer_selection_mode": "shift_one"}),
            ("interval", ValueError, "decentralized", sgd, {"communication_interval": 0}),
            ("LBFGS", ValueError, "async", lambda p: torch.optim.LBFGS(list(p)), {}),
        ):
            with pytest.raises(kind, match=message):
                algorithms.make(name, optimizer(model.parameters()), named, **options)
        model.double()
        with pytest.raises(ValueError, match="float32"):
            algorithms.make("low_precision_decentralized", sgd(model.parameters()))

    on_threads(3, body)
