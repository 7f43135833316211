"""broadcast_optimizer_state: all ranks have the root's state, bits and types, and step alike."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import rueda.torch as hvd  # noqa: E402


def net(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return model.to(dtype)


def train(model, optimizer, steps):
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        optimizer.zero_grad()
        batch = torch.randn(8, 3, generator=generator).to(next(model.parameters()).dtype)
        model(batch).float().tanh().mean().backward()
        optimizer.step()
    optimizer.zero_grad()


def same(a, b):
    """Whether two nests have the same types and bits."""
    if type(a) is not type(b):
        return False
    if torch.is_tensor(a):
        return (a.dtype, a.requires_grad) == (b.dtype, b.requires_grad) and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def states(optimizer):
    """By parameter, in their order."""
    return [optimizer.state.get(p) for g in optimizer.param_groups for p in g["params"]]


class Wide(torch.optim.SGD):
    """SGD whose momentum has a type of its own, and whose state has all sorts of things."""

    def __init__(self, parameters, wide):
        super().__init__(parameters, lr=0.05)
        self.wide = wide

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["buffer"] = torch.zeros_like(p, dtype=self.wide)
                    state["step"] = torch.tensor(0.0)
                    state["nested"] = {"seen": torch.zeros(2, dtype=torch.int64), "text": "a"}
                    state["list"] = [torch.full((), 1 / 3, dtype=torch.float64), None, 2]
                    state["rate"] = torch.ones((), requires_grad=True)
                    state["text"] = "SGD"
                state["step"] += 1
                state["nested"]["seen"] += 2**60 + 1
                state["buffer"].mul_(0.9).add_(p.grad.to(self.wide))
                p.add_(state["buffer"].to(p.dtype), alpha=-group["lr"])
        self.state["steps"] = {"all": torch.tensor(3, dtype=torch.int8)}


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "Adam, foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "Adam, tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)),
    "Adam, fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "float64": lambda p: Wide(p, torch.float64),
    "float32": lambda p: Wide(p, torch.float32),
    "bfloat16": lambda p: Wide(p, torch.bfloat16),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_all_ranks_have_the_roots_state_and_step_alike(on_threads, kind, dtype):
    """Rank 0 alone has stepped; rank 2 has a state that goes."""

    def body():
        model = net(0, dtype)
        optimizer = OPTIMIZERS[kind](model.parameters())
        if hvd.rank() != 1:
            train(model, optimizer, 3 - hvd.rank())
        if hvd.rank() == 0:
            optimizer.param_groups[0]["lr"] *= 0.5
        hvd.broadcast_parameters(model.state_dict(), 0)
        hvd.broadcast_optimizer_state(optimizer, 0)
        at_root = copy.deepcopy(states(optimizer))
        others = optimizer.state.get("steps")
        rate = float(optimizer.param_groups[0]["lr"])
        train(model, optimizer, 2)
        return at_root, others, rate, [p.detach() for p in model.parameters()]

    results = on_threads(3, body)
    assert all(results[0][0])
    assert same(results[0], results[1])
    assert same(results[0], results[2])


@pytest.mark.parametrize("first", [True, False])
def test_wrapped_before_or_after(on_threads, first):
    def body():
        model = net(0, torch.bfloat16)
        optimizer = Wide(model.parameters(), torch.float32)
        if hvd.rank() == 1:
            train(model, optimizer, 2)
        hvd.broadcast_parameters(model.state_dict(), 1)
        if not first:
            hvd.broadcast_optimizer_state(optimizer, 1)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        if first:
            hvd.broadcast_optimizer_state(optimizer, 1)
        at_root = copy.deepcopy(states(optimizer))
        train(model, optimizer, 2)
        return at_root, [p.detach() for p in model.parameters()]

    results = on_threads(2, body)
    assert results[1][0][0]["buffer"].dtype == torch.float32
    assert same(*results)


def test_what_the_optimizer_loads_itself_is_its_own(on_threads):
    """A state_dict that hooks made smaller is loaded by the hooks alone."""

    def shrink(optimizer, state):
        numbers = state["state"].items()
        return {**state, "state": {i: {"half": s["momentum_buffer"].half()} for i, s in numbers}}

    def grow(optimizer, state):
        numbers = state["state"].items()
        return {**state, "state": {i: {"momentum_buffer": s["half"].float()} for i, s in numbers}}

    def body():
        model = net(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.register_state_dict_post_hook(shrink)
        optimizer.register_load_state_dict_pre_hook(grow)
        if hvd.rank() == 0:
            train(model, optimizer, 2)
        hvd.broadcast_optimizer_state(optimizer, 0)
        return states(optimizer)

    root, other = on_threads(2, body)
    rounded = [{"momentum_buffer": s["momentum_buffer"].half().float()} for s in root]
    assert same(rounded, other)


def test_tensors_that_the_optimizer_has_kept_stay_where_they_are(on_threads):
    """Of an optimizer that loads into its own memory."""

    class Flat(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})
            for p in self.param_groups[0]["params"]:
                self.state[p]["wide"] = torch.full(p.shape, float(hvd.rank()), dtype=torch.float64)

        def load_state_dict(self, state_dict):
            mine = states(self)
            for i, state in state_dict["state"].items():
                mine[i]["wide"].copy_(state["wide"].float())

    def body():
        optimizer = Flat(net(0).parameters())
        with torch.no_grad():
            for state in states(optimizer):
                state["wide"] += 1 / 3
        kept = [state["wide"] for state in states(optimizer)]
        hvd.broadcast_optimizer_state(optimizer, 1)
        assert all(state["wide"] is each for state, each in zip(states(optimizer), kept))
        return states(optimizer)

    results = on_threads(2, body)
    assert float(results[0][0]["wide"][0, 0]) == 1 + 1 / 3
    assert same(*results)


def test_optimizers_over_other_parameters_are_an_error_on_all_ranks(on_threads):
    def body():
        parameters = list(net(0).parameters())
        if hvd.rank() == 1:
            parameters = parameters[:3]
        optimizer = torch.optim.SGD(parameters, lr=0.1 + hvd.rank())
        text = r"rank 2 has groups of \[4\] parameters, that of rank 1 of \[3\]"
        with pytest.raises(ValueError, match=text):
            hvd.broadcast_optimizer_state(optimizer, 2)
        return optimizer.param_groups[0]["lr"]

    assert on_threads(3, body) == [0.1, 1.1, 2.1]


def test_lbfgs_has_no_state_to_broadcast(on_threads):
    def body():
        optimizer = torch.optim.LBFGS(net(0).parameters())
        with pytest.raises(ValueError, match="LBFGS"):
            hvd.broadcast_optimizer_state(optimizer, 0)

    on_threads(1, body)
