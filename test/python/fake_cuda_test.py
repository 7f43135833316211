"""Tensors on CUDA, on a FAKE device (test/support/fake_cuda/README.md). The library and the order
of its work on streams are the real ones; the frameworks are FAKES: classes with as much of torch's
tensor, and of an array by DLPack, as the package asks for. What torch and CuPy themselves do on a
device this can't show."""

from __future__ import annotations

import ctypes
import gc
import os
import pathlib
import re
import threading
import types

import numpy as np
import pytest

import rueda
from rueda.core import _library as c
from rueda.core import _operations, _tensors

torch = pytest.importorskip("torch")

SOURCE = pathlib.Path(os.environ.get("SOURCE_OF_RUEDA", pathlib.Path(__file__).parents[2]))
MODULE = pathlib.Path(rueda.core._library.folder(), "lib", "rueda", "librueda_nccl.so")

if not MODULE.exists() or not hasattr(ctypes.CDLL(str(MODULE)), "fake_cuda_controls"):
    pytest.skip("the library has no fake device beside it", allow_module_level=True)


class Table:
    """C functions, by the names that a header gives to the pointers to them."""

    def __init__(self, entry, header, struct, words):
        text = (SOURCE / header).read_text()
        text = text[text.index(f"typedef struct {struct} {{") : text.index(f"}} {struct};")]
        names = re.findall(r"^ +\w[\w ]*\**? ?\(\*(\w+)\)\(", text, re.MULTILINE)
        get = ctypes.CDLL(str(MODULE))[entry]
        get.restype = ctypes.c_void_p
        pointers = (ctypes.c_void_p * (words + len(names))).from_address(get())
        self._at = dict(zip(names, list(pointers)[words:], strict=True))

    def __call__(self, name, *arguments, returns=ctypes.c_int32):
        return ctypes.CFUNCTYPE(returns)(self._at[name])(*arguments)


CUDA = Table("rueda_module_table", "ops/nccl/cuda_abi.h", "rueda_cuda", 2)
CONTROL = Table(
    "fake_cuda_controls", "test/support/fake_cuda/control_abi.h", "fake_cuda_control", 1
)
WORDS = ctypes.create_string_buffer(1024)
DTYPES = {torch.float32: np.float32, torch.int64: np.int64}


class Memory:
    """Of a device. The fake's is the host's, too."""

    def __init__(self, device, nbytes):
        self.device, self.address = device, ctypes.c_void_p()
        size, out = ctypes.c_size_t(max(nbytes, 1)), ctypes.byref(self.address)
        assert CUDA("allocate", device, size, out, WORDS) == 0, WORDS.value

    def __del__(self):
        CUDA("release", self.device, self.address, returns=None)


class Stream:
    def __init__(self, device):
        self.device, handle = device, ctypes.c_void_p()
        assert CUDA("open_stream", device, 0, ctypes.byref(handle), WORDS) == 0, WORDS.value
        self.cuda_stream = handle.value

    def __getattr__(self, name):
        handle = ctypes.c_void_p(self.cuda_stream)
        return lambda: CONTROL(name, self.device, handle)


current = threading.local()  # the current stream of a thread


class FakeTensor:
    """FAKE: a dense tensor of torch's on CUDA."""

    layout, is_cpu, is_cuda = torch.strided, False, True

    def __init__(self, device, shape, dtype):
        self.device = types.SimpleNamespace(index=device)
        self.shape, self.dtype, self._version = torch.Size(shape), dtype, 0
        self.memory = Memory(device, int(np.prod(shape)) * dtype.itemsize)

    def data_ptr(self):
        return self.memory.address.value

    def is_contiguous(self):
        return True

    def is_neg(self):
        return False

    is_conj = is_neg

    def increment_version(self):
        self._version += 1

    def host(self):
        """Its elements, where they lie."""
        count, dtype = int(np.prod(self.shape)), np.dtype(DTYPES[self.dtype])
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(self.data_ptr())
        return np.frombuffer(memory, dtype).reshape(self.shape)


class Taken:
    """FAKE: what torch.from_dlpack makes of a result."""

    def __init__(self, exporter):
        assert exporter.__dlpack_device__()[0] == c.CUDA
        self.capsule = exporter.__dlpack__()
        self.described = c.Tensor.from_address(_tensors._capsule_pointer(self.capsule, b"dltensor"))

    def host(self):
        shape = _tensors.shape_of(self.described)
        memory = (ctypes.c_float * int(np.prod(shape))).from_address(self.described.data)
        return np.frombuffer(memory, np.float32).reshape(shape)


fake_torch = types.SimpleNamespace(
    **{dtype: getattr(torch, dtype) for dtype in ("strided", "float32", "int64")},
    empty=lambda shape, dtype, device: FakeTensor(device.index, shape, dtype),
    empty_like=lambda like: FakeTensor(like.device.index, like.shape, like.dtype),
    from_dlpack=Taken,
    autograd=types.SimpleNamespace(
        graph=types.SimpleNamespace(increment_version=FakeTensor.increment_version)
    ),
    cuda=types.SimpleNamespace(current_stream=lambda index: current.stream),
)


class FakeArray:
    """FAKE: an array with DLPack on CUDA, and the array API's standard, such as CuPy's."""

    def __init__(self, shape, dtype=torch.float32):
        self.tensor = FakeTensor(rueda.local_device("cuda"), shape, dtype)
        self.dtype, self.asked = dtype, []

    def __array_namespace__(self):
        return types.SimpleNamespace(
            empty=lambda shape, dtype: FakeArray(shape, dtype), from_dlpack=Taken
        )

    def __dlpack_device__(self):
        return c.CUDA, self.tensor.device.index

    def __dlpack__(self, stream=None):
        self.asked.append(stream)
        address, keep, _ = kind.borrow(self.tensor, True)
        return _tensors.DLPackTensor(c.Tensor.from_address(address), keep).__dlpack__()


kind = _tensors._TorchKind(fake_torch)
_tensors._kinds[FakeTensor] = kind


def filled(value, *shape):
    tensor = FakeTensor(rueda.local_device("cuda"), shape, torch.float32)
    tensor.host()[...] = value
    return tensor


@pytest.fixture
def on_devices(on_threads):
    """As on_threads, each with a stream of its own, and nothing left at the end."""

    def run(body):
        def with_stream():
            current.stream = Stream(rueda.local_device("cuda"))
            return body()

        before = CONTROL("live_bytes", returns=ctypes.c_int64)
        results = on_threads(2, with_stream)
        _operations._left_behind.clear()  # as the end of rueda's own contexts does
        gc.collect()
        assert CONTROL("live_bytes", returns=ctypes.c_int64) == before
        return results

    return run


def test_operations_come_behind_the_current_stream(on_devices):
    def body():
        rank, stream = rueda.rank(), current.stream
        tensor = filled(rank + 1, 2, 3)
        stream.hold()  # what comes before the operation on the stream is not done
        filling = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: tensor.host().fill(rank + 10))
        handle = ctypes.c_void_p(stream.cuda_stream)
        CONTROL("enqueue", stream.device, handle, filling, None, returns=None)
        work = rueda.allreduce_async_(tensor, "in place", rueda.Sum)
        result = work.wait()  # enqueued, on all ranks
        assert result is tensor and tensor.host()[0, 0] == rank + 1
        assert tensor._version == 1
        stream.release()
        stream.drain()  # what comes behind it finds the result
        assert (tensor.host() == 21).all()
        return True

    assert on_devices(body) == [True, True]


def test_results_are_on_the_device(on_devices):
    def body():
        rank = rueda.rank()
        tensor = filled(rank + 1, 4)
        total = rueda.allreduce(tensor, "new", rueda.Sum)
        group = rueda.grouped_allreduce([tensor, filled(2, 2)], "group", rueda.Max)
        sent = rueda.broadcast_(filled(rank, 3), 1, "sent")
        whole = rueda.allgather(tensor, "gathered")
        mine = rueda.reducescatter(tensor, "scattered", rueda.Sum)
        current.stream.drain()
        assert total.device.index == tensor.device.index == rank
        assert total.host().tolist() == [3] * 4 and tensor.host().tolist() == [rank + 1] * 4
        assert [t.host().tolist() for t in group] == [[2] * 4, [2] * 2]
        assert sent.host().tolist() == [1] * 3
        assert whole.host().tolist() == [1] * 4 + [2] * 4
        assert mine.host().tolist() == [3] * 2
        return True

    assert on_devices(body) == [True, True]


def test_arrays_by_dlpack(on_devices):
    def body():
        array = FakeArray((3,))
        array.tensor.host()[...] = rueda.rank() + 1
        made = rueda.allreduce(array, "new", rueda.Sum)
        assert rueda.allreduce_(array, "in place", rueda.Max) is array
        assert array.asked == [1, 1]  # the legacy default stream: rueda comes behind that
        legacy = None
        CONTROL("drain", array.tensor.device.index, legacy)
        assert made.tensor.host().tolist() == [3] * 3 and array.tensor.host().tolist() == [2] * 3
        return True

    assert on_devices(body) == [True, True]


def test_what_the_device_still_uses_is_kept(on_devices):
    def body():
        stream = current.stream
        stream.hold()
        tensor = filled(1, 1000)
        rueda.allreduce_(tensor, "kept", rueda.Sum)
        rank = rueda.rank()
        assert any(context == _context() for context, _, _ in _operations._left_behind)
        del tensor
        rueda.barrier()
        stream.release()
        stream.drain()
        while any(context == _context() for context, _, _ in list(_operations._left_behind)):
            rueda.allreduce(np.ones(1), f"sweeps on {rank}", process_set=own[rank])
        return True

    def _context():
        return c.lib.rueda_current_context()

    own = {}

    def with_sets():
        for rank in range(2):
            own[rank] = rueda.add_process_set([rank])
        return body()

    assert on_devices(with_sets) == [True, True]


def test_mistakes_are_told(on_devices):
    def body():
        tensor = filled(1, 3)
        with pytest.raises(ValueError, match="device"):
            rueda.grouped_allreduce([tensor, np.ones(3, np.float32)], "mixed")
        tensor.is_cuda = False
        tensor.device = "xla:0"
        with pytest.raises(TypeError, match="xla:0"):
            rueda.allreduce(tensor, "elsewhere")
        return True

    assert on_devices(body) == [True, True]
