"""What compiled_test.py runs on two ranks."""

from __future__ import annotations

import traceback

import torch

import rueda
import rueda.torch as hvd
from rueda.core import _library

LIBRARY = _library.folder() / "lib" / "librueda_torch.so"


def compiled(function, **options):
    return torch.compile(function, **{"backend": "aot_eager", "fullgraph": True, **options})


def outcome(function, tensor):
    """The result of a function, and the gradient of the sum of its squares."""
    leaf = tensor.clone().requires_grad_()
    result = function(leaf)
    result.square().sum().backward()
    return result.detach(), leaf.grad


def assert_same(function, tensor=None, **options):
    """As eager, twice, and without gradients."""
    if tensor is None:
        tensor = torch.arange(15.0).reshape(5, 3) / 8 + hvd.rank()
    expected = outcome(function, tensor)
    in_graph = compiled(function, **options)
    for _ in range(2):
        torch.testing.assert_close(outcome(in_graph, tensor), expected)
    torch.testing.assert_close(in_graph(tensor), expected[0])


def in_place(function):
    """A function of a tensor, of one that changes tensors."""

    def changed(x):
        y = x.sin()
        z = y * 2
        function(z)
        return x * z

    return changed


# What there is to compile, of a tensor that depends on the rank.
KNOWN = {
    "allreduce": lambda x: hvd.allreduce(x.sin(), op=hvd.Sum, prescale_factor=0.5) * x,
    "allreduce, named": lambda x: hvd.allreduce(x.sin(), name="a") * x,
    "maximum": lambda x: hvd.allreduce(x.detach(), op=hvd.Max) * x,
    "compression": lambda x: hvd.allreduce(x.sin(), compression=hvd.Compression.bf16) * x,
    "grouped_allreduce": lambda x: sum(hvd.grouped_allreduce([x.sin(), x * 2], name="g")),
    "broadcast": lambda x: hvd.broadcast(x * 2, 1).sin(),
    "reducescatter": lambda x: hvd.reducescatter(x * 2, op=hvd.Sum).sin(),
    "grouped_reducescatter": lambda x: sum(hvd.grouped_reducescatter([x.sin(), x])),
    "allreduce_": in_place(lambda x: hvd.allreduce_(x, op=hvd.Sum)),
    "grouped_allreduce_": in_place(lambda x: hvd.grouped_allreduce_([x], op=hvd.Sum)),
    "broadcast_": in_place(lambda x: hvd.broadcast_(x, 1)),
}
UNKNOWN = {
    "allgather": lambda x: hvd.allgather(x[: hvd_rank() + 2] * 2).sin(),
    "grouped_allgather": lambda x: sum(hvd.grouped_allgather([x * 2, x.sin()])),
    "alltoall": lambda x: hvd.alltoall(x[:4] * 2).sin(),
    "alltoall with splits": lambda x: hvd.alltoall(x * 2, [2, 3])[0].sin(),
}
OF_CPP = {
    "allreduce": lambda x: torch.ops.rueda.allreduce(x.sin(), "c", "sum") * x,
    "grouped_allreduce": lambda x: sum(torch.ops.rueda.grouped_allreduce([x.sin(), x], "g")),
    "broadcast": lambda x: torch.ops.rueda.broadcast(x * 2, 1).sin(),
    "reducescatter": lambda x: torch.ops.rueda.reducescatter(x * 2, "r", "sum").sin(),
    "grouped_reducescatter": lambda x: sum(torch.ops.rueda.grouped_reducescatter([x.sin(), x])),
    "allreduce_": in_place(lambda x: torch.ops.rueda.allreduce_(x, "i")),
    "broadcast_": in_place(lambda x: torch.ops.rueda.broadcast_(x, 1)),
    "send and recv_": in_place(
        lambda x: (
            torch.ops.rueda.send(x, 1, "s") if hvd_rank() == 0 else torch.ops.rueda.recv_(x, 0, "s")
        )
    ),
}
OF_CPP_UNKNOWN = {
    "allgather": lambda x: torch.ops.rueda.allgather(x * 2).sin(),
    "alltoall": lambda x: torch.ops.rueda.alltoall(x * 2, [2, 3])[0].sin(),
    "barrier": lambda x: (x * 2, torch.ops.rueda.barrier())[0].sin(),
}


_rank = 0


def hvd_rank():
    """As a number that a graph may be made for."""
    return _rank


def known(name):
    assert_same(KNOWN[name])


def unknown(name):
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert_same(UNKNOWN[name])


def of_cpp(name):
    assert_same(OF_CPP[name])


def of_cpp_unknown(name):
    assert_same(OF_CPP_UNKNOWN[name], fullgraph=False)


def an_allgather_ends_the_graph():
    assert_same(UNKNOWN["allgather"], fullgraph=False)


def a_handle_ends_the_graph():
    assert_same(
        in_place(lambda x: hvd.allreduce_async_(x, op=hvd.Sum, name="h").wait()), fullgraph=False
    )


def inductor():
    assert_same(KNOWN["allreduce"], backend="inductor")


def conventions():
    """The switch counts for a function that was compiled before."""
    functions = [KNOWN["broadcast"], KNOWN["reducescatter"]]
    gradients = []
    for function in [f for eager in functions for f in (eager, compiled(eager))]:
        for convention in ("sum", "horovod"):
            hvd.gradients(convention)
            gradients.append(outcome(function, torch.ones(4) * (2 + hvd.rank()))[1])
    half = len(gradients) // 2
    for part in (gradients[:half], gradients[half:]):
        torch.testing.assert_close(part[2:], part[:2])
    assert not torch.equal(gradients[0], gradients[1]) or hvd.rank() == 0
    assert not torch.equal(gradients[half], gradients[half + 1])


def in_order(allreduce, broadcast):
    """One rank compiles what the other runs as it is: operations have no names, some are equal,
    and some results are not used."""

    def function(x):
        allreduce(x * 2)
        once, again = allreduce(x), allreduce(x)
        broadcast(x)
        return once + again * x

    tensor = torch.ones(3) * (1 + hvd.rank())
    expected = outcome(function, tensor)
    chosen = compiled(function) if hvd.rank() == 0 else function
    torch.testing.assert_close(outcome(chosen, tensor), expected)


def order():
    in_order(hvd.allreduce, lambda x: hvd.broadcast(x, 0))


def order_of_cpp():
    in_order(torch.ops.rueda.allreduce, lambda x: torch.ops.rueda.broadcast(x, 0))


def mismatch():
    function = compiled(lambda x: hvd.allreduce(x, name="mismatch") * 2)
    try:
        function(torch.ones(3 + hvd.rank()))
    except rueda.MismatchError as error:
        assert "mismatch" in str(error)
    else:
        raise AssertionError("no error")


def batch_norm():
    layer = hvd.SyncBatchNorm(3)
    assert_same(lambda x: layer(x.sin()), fullgraph=False)


def a_compiled_step():
    """Of an optimizer, against one process."""
    torch.manual_seed(0)
    model, alone = (torch.nn.Linear(4, 2) for _ in range(2))
    alone.load_state_dict(hvd.broadcast_object(model.state_dict()))
    model.load_state_dict(alone.state_dict())
    batches = torch.randn(3, hvd.size(), 5, 4)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model.named_parameters()
    )
    reference = torch.optim.SGD(alone.parameters(), 0.1)

    def step(net, optimizer, batch):
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()

    in_graph = compiled(step, fullgraph=False)
    for batch in batches:
        in_graph(model, optimizer, batch[hvd.rank()])
        step(alone, reference, batch.flatten(0, 1))
    torch.testing.assert_close(list(model.parameters()), list(alone.parameters()))


ALONE = [
    an_allgather_ends_the_graph,
    a_handle_ends_the_graph,
    inductor,
    conventions,
    order,
    mismatch,
    batch_norm,
    a_compiled_step,
]
NAMES = [
    *(f"known: {name}" for name in KNOWN),
    *(f"unknown: {name}" for name in UNKNOWN),
    *(case.__name__ for case in ALONE),
]
NAMES_OF_CPP = [
    *(f"of_cpp: {name}" for name in OF_CPP),
    *(f"of_cpp_unknown: {name}" for name in OF_CPP_UNKNOWN),
    "order_of_cpp",
]


def run(names):
    """By name how each ended: "" if it was well."""
    global _rank
    hvd.init()
    _rank = hvd.rank()
    torch.set_num_threads(1)
    if LIBRARY.exists():
        torch.ops.load_library(str(LIBRARY))
    ends = {}
    for name in names:
        torch.compiler.reset()
        case, _, argument = name.partition(": ")
        ends[name] = ""
        try:
            globals()[case](*([argument] if argument else []))
        except Exception:
            ends[name] = traceback.format_exc()
            break  # the ranks may not be at one any more
    return ends
