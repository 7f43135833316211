"""The operators of torch.ops.rueda, and that librueda_torch.so loads into a process that has torch.

python3 operators_test.py LIBRARY      a world of one rank, then two ranks that are threads
"""

import ctypes
import sys
import threading
import warnings

import torch

torch.ops.load_library(sys.argv[1])
rueda = torch.ops.rueda


def error_of(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except RuntimeError as error:
        return str(error)
    return ""


x = torch.arange(6.0).reshape(2, 3)
assert "not initialized" in error_of(rueda.allreduce, x)
assert "not initialized" in error_of(rueda.rank)

rueda.init()
assert (rueda.rank(), rueda.size(), rueda.local_rank(), rueda.local_size()) == (0, 1, 0, 1)

assert torch.equal(rueda.allreduce(x), x)
assert torch.equal(rueda.allreduce(x, "x", "sum", 2.0, 3.0), 6 * x)
assert torch.equal(rueda.allreduce(x, op="max", postscale_factor=2.0), 2 * x)
assert torch.equal(x, torch.arange(6.0).reshape(2, 3))
y = x.clone()
assert rueda.allreduce_(y, op="sum", prescale_factor=2.0).data_ptr() == y.data_ptr()
assert torch.equal(y, 2 * x)
z = x.t().clone().t()  # not contiguous
rueda.allreduce_(z, "z", "sum", 2.0)
assert torch.equal(z, 2 * x)
assert torch.equal(rueda.broadcast(x, 0, "x"), x)
assert rueda.broadcast_(y, 0).data_ptr() == y.data_ptr()
assert torch.equal(rueda.allgather(x.to(torch.int64)), x.to(torch.int64))
rueda.barrier()

assert all(torch.equal(got, x) for got in rueda.grouped_allreduce([x, x], "g"))
assert all(torch.equal(got, x) for got in rueda.grouped_allgather([x, x], "g"))
twice = rueda.grouped_reducescatter([x], "g", "sum", prescale_factor=2.0)
assert all(torch.equal(got, 2 * x) for got in twice)
received, splits = rueda.alltoall(x, [2], "x")
assert torch.equal(received, x) and torch.equal(splits, torch.tensor([2]))
assert torch.equal(rueda.reducescatter(x, "x"), x)
assert torch.equal(rueda.reduce(x, 0, "x", "max"), x)
assert torch.equal(rueda.gather(x, 0), x)
assert torch.equal(rueda.scatter(x, 0, [2]), x)
assert torch.equal(rueda.allreduce(x.to(torch.int64), op="bor"), x.to(torch.int64))
assert rueda.join() == 0

assert "expected average, sum" in error_of(rueda.allreduce, x, op="mean")
assert "'x' is of type ComplexHalf" in error_of(rueda.allreduce, x.to(torch.complex32), "x")
assert "process set" in error_of(rueda.barrier, 5)
assert "root" in error_of(rueda.broadcast, x, 1), error_of(rueda.broadcast, x, 1)


# Parameters take values, and no history.
parameter = torch.nn.Parameter(x.clone())
with torch.no_grad():
    rueda.broadcast_(parameter, 0, "parameter")
assert parameter.requires_grad and parameter.grad_fn is None
with warnings.catch_warnings():
    warnings.simplefilter("error")
    for call, factor in [
        (lambda y: rueda.allreduce(y, op="sum", prescale_factor=3.0), 3),
        (lambda y: rueda.broadcast(y, 0), 1),
        (lambda y: rueda.allgather(y), 1),
        (lambda y: rueda.alltoall(y)[0], 1),
        (lambda y: rueda.reducescatter(y, op="sum", postscale_factor=2.0), 2),
        (lambda y: rueda.grouped_allreduce([y, y])[1], 1),
        (lambda y: rueda.grouped_allgather([y])[0], 1),
        (lambda y: rueda.grouped_reducescatter([y])[0], 1),
    ]:
        parameter.grad = None
        call(parameter * 2).sum().backward()
        assert torch.equal(parameter.grad, torch.full_like(x, 2.0 * factor)), parameter.grad
assert "requires a gradient" in error_of(rueda.allreduce, parameter, op="max")


@torch.jit.script
def scripted(tensor: torch.Tensor) -> torch.Tensor:
    return torch.ops.rueda.allreduce(tensor, "scripted", "sum", 2.0)


# An operator without a result, and one whose result is not used.
@torch.jit.script
def barrier(process_set: int) -> int:
    torch.ops.rueda.barrier(process_set)
    return 7


@torch.jit.script
def unused(tensor: torch.Tensor) -> int:
    torch.ops.rueda.allgather(tensor, "unused", 5)
    return 7


for _ in range(3):  # the later ones are optimised
    assert torch.equal(scripted(x), 2 * x)
    assert barrier(0) == 7
    assert "process set" in error_of(barrier, 5)
    assert "process set" in error_of(unused, x)

rueda.shutdown()
assert "not initialized" in error_of(rueda.rank)


# Ranks that are threads: one that waits must not keep the other from running Python.
class InitOptions(ctypes.Structure):
    """rueda_init_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("flags", ctypes.c_uint32),
        ("group_rank", ctypes.c_int32),
        ("group", ctypes.c_void_p),
        ("knobs", ctypes.c_void_p),
        ("knob_count", ctypes.c_size_t),
    ]


# Loaded along with it: the same library, and so the same contexts.
c = ctypes.CDLL("librueda.so.0.1")
c.rueda_version.restype = ctypes.c_uint32
c.rueda_set_thread_context.argtypes = c.rueda_context_destroy.argtypes = [ctypes.c_void_p]
group = ctypes.c_void_p()
assert c.rueda_group_create(2, ctypes.byref(group)) == 0
results = []


def be(rank):
    options = InitOptions(size=ctypes.sizeof(InitOptions), group_rank=rank, group=group)
    context = ctypes.c_void_p()
    assert c.rueda_init(c.rueda_version(), ctypes.byref(options), ctypes.byref(context)) == 0
    c.rueda_set_thread_context(context)
    for step in range(100):
        total = rueda.allreduce(torch.tensor([rank + 1.0]), "step", "sum")
        assert total.item() == 3, total
    results.append(rueda.allgather(torch.full((rank + 1, 1), float(rank))).flatten().tolist())
    assert (rueda.reduce(torch.ones(2), 1) is None) == (rank == 0)
    assert (rueda.gather(torch.ones(2), 1) is None) == (rank == 0)
    if rank == 0:
        rueda.send(torch.ones(2), 1, "sent")
    else:
        assert torch.equal(rueda.recv_(torch.zeros(2), 0, "sent"), torch.ones(2))
    rueda.shutdown()


ranks = [threading.Thread(target=be, args=[rank]) for rank in range(2)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
c.rueda_group_destroy(group)
assert results == [[0.0, 1.0, 1.0]] * 2, results
print("the operators work")
