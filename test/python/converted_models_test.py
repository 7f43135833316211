"""Models that the program converts when DistributedOptimizer has been made: training goes on as in
one process, or all ranks hear which parameter differs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import rueda.torch as hvd  # noqa: E402
from rueda import MismatchError  # noqa: E402


class Net(torch.nn.Module):
    """Parameters that share a bucket, and one of 256 KB that does not."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.wide = torch.nn.Linear(16, 4096)
        self.last = torch.nn.Linear(4096, 2)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(0.1 * torch.randn(p.shape, generator=generator))

    def forward(self, x):
        x = self.conv(x.to(self.conv.weight.dtype)).flatten(1)
        x = self.wide(x.to(self.wide.weight.dtype))
        return self.last(x.to(self.last.weight.dtype)).float()


def loss_of(model, step, rank):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return model(torch.randn(4, 3, 4, 4, generator=generator)).square().mean()


def cloned_data(model):
    for p in model.parameters():
        p.data = p.data.clone()


def transposed(model):
    model.wide.weight.data = model.wide.weight.data.t().contiguous().t()


def to_empty(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.to_empty(device="cpu")
    model.load_state_dict(before)


def swapped(model):
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


CHANGES = {
    "double": lambda model: model.double(),
    "bfloat16": lambda model: model.bfloat16(),
    "half": lambda model: model.half(),
    "one layer": lambda model: model.wide.double(),
    "one parameter of a bucket": lambda model: model.conv.double(),
    "channels_last": lambda model: model.to(memory_format=torch.channels_last),
    "data": cloned_data,
    "transposed": transposed,
    "to_empty": to_empty,
    "share_memory": lambda model: model.share_memory(),
}


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.005)


def weights(model):
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def alone(change, steps_before):
    model = Net()
    optimizer = sgd(model)
    for step in range(4):
        if step == steps_before:
            change(model)
        optimizer.zero_grad()
        (sum(loss_of(model, step, rank) for rank in range(2)) / 2).backward()
        optimizer.step()
    return weights(model)


def train(change, steps_before, set_to_none=True):
    model = Net()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    for step in range(4):
        if step == steps_before:
            change(model)
        # A gradient of another type can't stay: torch refuses to add to it.
        optimizer.zero_grad(set_to_none=set_to_none or step == steps_before)
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
    assert all(p.grad.dtype == p.dtype for p in model.parameters())
    return weights(model)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_training_goes_on(on_threads, change, steps_before, set_to_none):
    results = on_threads(2, lambda: train(CHANGES[change], steps_before, set_to_none))
    assert torch.equal(results[0], results[1])
    rough = change in ("bfloat16", "half")
    torch.testing.assert_close(
        results[0],
        alone(CHANGES[change], steps_before),
        rtol=0,
        atol=2e-2 if rough else 1e-5,
    )


def test_training_goes_on_when_tensors_are_swapped(on_threads):
    """One rank after the other, as the switch is the process's."""

    def body():
        model = Net()
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
        for rank in range(2):
            if rank == hvd.rank():
                swapped(model)
            hvd.barrier()
        optimizer.zero_grad()
        loss_of(model, 0, hvd.rank()).backward()
        optimizer.step()
        return weights(model)

    results = on_threads(2, body)
    assert torch.equal(results[0], results[1])
    model = Net().double()
    optimizer = sgd(model)
    (sum(loss_of(model, 0, rank) for rank in range(2)) / 2).backward()
    optimizer.step()
    torch.testing.assert_close(results[0], weights(model), rtol=0, atol=1e-6)


@pytest.mark.parametrize("change", ["double", "one layer", "one parameter of a bucket"])
def test_ranks_that_differ_hear_which_parameter(on_threads, change):
    def body():
        model = Net()
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
        if hvd.rank() == 1:
            CHANGES[change](model)
        loss_of(model, 0, hvd.rank()).backward()
        name = "wide.weight" if change == "one layer" else "conv.weight"
        with pytest.raises(MismatchError, match=f"(?s)'{name}', 'torch.float.*torch.float"):
            optimizer.step()

    on_threads(2, body)


def test_a_gradient_of_another_shape(on_threads):
    """Which would fit by broadcasting."""

    def body():
        p = torch.nn.Parameter(torch.zeros(3, 4))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0))
        for shape in ((3, 4), (4,), (2, 2)):
            optimizer.zero_grad()
            p.data = torch.zeros(shape)
            (p * (1.0 + hvd.rank())).sum().backward()
            optimizer.step()
            assert torch.equal(p.detach(), torch.full(shape, -1.5))

    on_threads(2, body)
