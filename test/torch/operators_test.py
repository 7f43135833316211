"""The operators of torch.ops.rueda, and that librueda_torch.so loads into a process that has torch.

    python3 operators_test.py LIBRARY      a world of one rank
"""

import ctypes
import sys

import torch

torch.ops.load_library(sys.argv[1])
rueda = torch.ops.rueda
# Loaded along with it: the same library, and so the same contexts.
c = ctypes.CDLL("librueda.so.0")


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


def error_of(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except RuntimeError as error:
        return str(error)
    return ""


x = torch.arange(6.0).reshape(2, 3)
assert "not initialised" in error_of(rueda.allreduce, x)

options = InitOptions(size=ctypes.sizeof(InitOptions), group_rank=-1)
context = ctypes.c_void_p()
c.rueda_version.restype = ctypes.c_uint32
assert c.rueda_init(c.rueda_version(), ctypes.byref(options), ctypes.byref(context)) == 0
c.rueda_set_default_context(context)

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

assert "expected average, sum" in error_of(rueda.allreduce, x, op="mean")
assert "'x' is of type ComplexFloat" in error_of(rueda.allreduce, x.to(torch.complex64), "x")
assert "process set" in error_of(rueda.barrier, 5)
assert "root" in error_of(rueda.broadcast, x, 1), error_of(rueda.broadcast, x, 1)


@torch.jit.script
def scripted(tensor: torch.Tensor) -> torch.Tensor:
    return torch.ops.rueda.allreduce(tensor, "scripted", "sum", 2.0)


assert torch.equal(scripted(x), 2 * x)

assert c.rueda_shutdown(context) == 0
c.rueda_context_destroy(context)
print("the operators work")
