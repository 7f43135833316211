"""DistributedOptimizer: copies step with all ranks' gradients, and what is pickled is an optimizer
of the wrapped class."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch.optim import lr_scheduler  # noqa: E402

import rueda.torch as hvd  # noqa: E402


def net():
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return model


def train(model, optimizer, steps=2, passes=1):
    for _ in range(steps):
        optimizer.zero_grad()
        for i in range(passes):
            model(torch.full((2, 3), 0.3 * (i + 1) + hvd.rank())).pow(2).sum().backward()
        optimizer.step()


def adam(model, **options):
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


OPTIONS = [
    {},
    dict(op=hvd.Adasum),
    dict(groups=2),
    dict(compression="int8"),
    dict(backward_passes_per_step=2),
]


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("option", OPTIONS)
def test_a_copy_trains_as_the_original(on_threads, option, used):
    passes = option.get("backward_passes_per_step", 1)

    def body():
        model = net()
        optimizer = adam(model, **option)
        if used:
            train(model, optimizer, passes=passes)
        pair = copy.deepcopy((model, optimizer))
        train(*pair, passes=passes)
        train(model, optimizer, passes=passes)
        return weights(model), weights(pair[0]), weights(net())

    for original, copied, start in (results := on_threads(2, body)):
        assert torch.equal(original, results[0][0])
        assert not torch.equal(original, start)
        if "compression" not in option:  # whose error feedback is the original's
            torch.testing.assert_close(copied, original)
        assert torch.equal(copied, results[0][1])


def test_a_copy_combines_gradients_that_came_before_its_first_use(on_threads):
    def body():
        model, optimizer = copy.deepcopy((net(), adam(net())))
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            p.grad = torch.full_like(p, 2.0 * hvd.rank())
        optimizer.synchronize()
        return [p.grad for group in optimizer.param_groups for p in group["params"]]

    for gradients in on_threads(2, body):
        assert all(torch.equal(g, torch.ones_like(g)) for g in gradients)


def test_copies_on_one_rank_alone_do_no_harm(on_threads):
    """As they are made for a checkpoint, before all ranks make one that they train by."""

    def body():
        model = net()
        optimizer = adam(model)
        kept = [copy.deepcopy(optimizer) for _ in range(2 * hvd.rank())]
        pair = copy.deepcopy((model, optimizer))
        again = copy.deepcopy(pair)
        train(*pair)
        train(*again)
        train(model, optimizer)
        second = net()
        train(second, adam(second))
        return len(kept), [weights(m) for m in (model, pair[0], again[0], second)]

    results = on_threads(2, body)
    assert [kept for kept, _ in results] == [0, 2]
    for _, trained in results:
        assert all(torch.equal(each, results[0][1][0]) for each in trained)


def test_copies_know_passes_and_parameters_that_were_added(on_threads):
    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model[0].parameters(), 0.1), model[0].named_parameters()
        )
        optimizer.add_param_group({"params": list(model[2].parameters())})
        optimizer.set_backward_passes_per_step(2)
        pair = copy.deepcopy((model, optimizer))
        train(*pair, passes=2)
        train(model, optimizer, passes=2)
        return weights(model), weights(pair[0]), list(pair[1]._parameter_names.values())

    for original, copied, names in (results := on_threads(2, body)):
        assert torch.equal(original, copied) and torch.equal(original, results[0][0])
        assert names == ["weight", "bias", "group1.0", "group1.1"]


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_a_copy_has_no_part_in_what_hooks_were_removed_from(on_threads, op):
    def body():
        model = net()
        optimizer = adam(model, op=op)
        optimizer.remove_hooks()
        pair = copy.deepcopy((model, optimizer))
        train(*pair)
        train(model, optimizer)
        return weights(model), weights(pair[0])

    results = on_threads(2, body)
    for original, copied in results:
        assert torch.equal(original, copied)
    assert not torch.equal(results[0][0], results[1][0])  # each rank by its own gradients


def test_a_copy_follows_a_grad_scaler(on_threads):
    def body():
        model = net()
        pair = copy.deepcopy((model, adam(model)))
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(pair[0](torch.full((2, 3), 1.0 + hvd.rank())).sum()).backward()
        if hvd.rank() == 1:
            pair[0][0].weight.grad.fill_(float("inf"))
        scaler.step(pair[1])
        scaler.update()
        return scaler.get_scale(), weights(pair[0])

    results = on_threads(2, body)
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


def test_a_shallow_copy_is_refused(on_threads):
    def body():
        with pytest.raises(TypeError, match=r"copy.deepcopy\(\(model, optimizer\)\)"):
            copy.copy(adam(net()))

    on_threads(2, body)


def loaded_by_pickle(value):
    return pickle.loads(pickle.dumps(value))


def loaded_by_torch(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
@pytest.mark.parametrize("through", [loaded_by_pickle, loaded_by_torch])
def test_a_pickle_is_an_optimizer_of_the_wrapped_class(on_threads, through, op):
    def body():
        model = net()
        optimizer = adam(model, op=op)
        train(model, optimizer)
        loaded_model, loaded = through((model, optimizer))
        assert type(loaded) is torch.optim.Adam
        optimizer = hvd.DistributedOptimizer(loaded, loaded_model.named_parameters(), op=op)
        train(loaded_model, optimizer)
        train_on = net()
        train(train_on, adam(train_on, op=op), steps=4)
        return weights(loaded_model), weights(train_on)

    for resumed, whole in (results := on_threads(2, body)):
        assert torch.equal(resumed, whole) and torch.equal(resumed, results[0][0])


def test_a_pickle_loads_without_rueda(on_threads, tmp_path):
    def body():
        optimizer = adam(net())
        if hvd.rank() == 0:
            torch.save(optimizer, tmp_path / "optimizer.pt")

    on_threads(2, body)
    program = (
        "import sys, torch\n"
        f"optimizer = torch.load({str(tmp_path / 'optimizer.pt')!r}, weights_only=False)\n"
        "optimizer.step()\n"
        "assert type(optimizer) is torch.optim.Adam and 'rueda' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


class KeepsAll(torch.optim.SGD):
    """An optimizer that is pickled with all of its attributes."""

    def __getstate__(self):
        return self.__dict__.copy()


@pytest.mark.parametrize("cls", [torch.optim.SGD, KeepsAll])
def test_schedulers_whose_state_holds_the_optimizer(on_threads, cls):
    def body():
        model = net()
        optimizer = hvd.DistributedOptimizer(cls(model.parameters(), 0.1))
        scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
        train(model, optimizer, steps=1)
        scheduler.step()
        state = loaded_by_torch({**scheduler.state_dict(), "optimizer": scheduler.optimizer})
        whole = loaded_by_pickle(scheduler) if cls is torch.optim.SGD else scheduler
        copied = copy.deepcopy(scheduler)
        for group in copied.optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.ones_like(p)
        copied.optimizer.step()
        copied.step()
        rates = [o.param_groups[0]["lr"] for o in (state["optimizer"], whole.optimizer)]
        return type(state["optimizer"]), rates, copied.get_last_lr(), scheduler.get_last_lr()

    for result in on_threads(2, body):
        assert result == (cls, [0.05, 0.05], [0.025], [0.05])


def test_a_scheduler_from_before_the_wrapping_does_not_warn(on_threads):
    def body():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        train(model, optimizer, steps=1)
        scheduler.step()
        return optimizer.param_groups[0]["lr"]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert on_threads(2, body) == [0.05, 0.05]


def test_names_of_parameters(on_threads):
    def body():
        model = net()
        optimizer = adam(model)
        assert all(optimizer._parameter_names[p] == name for name, p in model.named_parameters())
        return len(optimizer._parameter_names)

    assert on_threads(2, body) == [4, 4]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_weight_that_two_checkpoints_share(on_threads, reentrant):
    def body():
        results = []
        for passes in (1, 2):
            model = torch.nn.Linear(3, 3)
            optimizer = adam(model, backward_passes_per_step=passes)
            x = torch.full((2, 3), 1.0 + hvd.rank(), requires_grad=True)
            for _ in range(2):
                x = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant)
            try:
                x.sum().backward()
                optimizer.step()
                results.append("")
            except AssertionError as error:
                results.append(str(error))
        return results

    for advice, after in on_threads(2, body):
        assert after == ""  # as it advises
        if reentrant:
            assert "'weight'" in advice or "'bias'" in advice
            assert "use_reentrant=False" in advice
        else:
            assert advice == ""
