"""Tensors of any framework as the C API's, and back.

A *kind* of tensor knows how objects of one framework are borrowed and made. There is one for
Python's numbers, one for NumPy's arrays, one for torch's tensors, one for TensorFlow's, one for
JAX's arrays, one for whatever exports DLPack, and one for whatever exports the buffer protocol;
frameworks are not imported here, they come with their tensors.

What is borrowed is (address of a rueda_tensor, what keeps its memory alive). Tensors that are not
contiguous are copied where they are only read, and refused where they are written.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rueda.core import _library as c

lib = c.lib

# DLPack's type codes and bits, by the names that NumPy, ml_dtypes and torch give them.
DTYPES: dict[str, tuple[int, int]] = {
    "bool": (6, 8),
    "uint8": (1, 8),
    "int8": (0, 8),
    "uint16": (1, 16),
    "int16": (0, 16),
    "uint32": (1, 32),
    "int32": (0, 32),
    "uint64": (1, 64),
    "int64": (0, 64),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "complex64": (5, 64),
    "complex128": (5, 128),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
}

# A tensor as the C API wants it: the address of a rueda_tensor, what has its memory, and where its
# operation runs (None: on the CPU).
Borrowed = tuple[int, Any, "c.Exec | None"]


# A new tensor: to be written, and the framework's when it has been written.
Made = tuple[Borrowed, Callable[[], Any]]

_copy = c.Tensor.from_buffer_copy


class Kind:
    """A framework's tensors."""

    def borrow(self, tensor: Any, write: bool) -> Borrowed:
        """Raises TypeError if it is not a dense tensor of a supported dtype, and ValueError if it
        can't be written in place."""
        raise NotImplementedError

    def borrow_rows(self, tensor: Any) -> Borrowed:
        """The same, to be read and joined with others' rows: a number is a row."""
        return self.borrow(tensor, False)

    def make_like(self, tensor: Any, borrowed: Borrowed) -> Made:
        """A new one of the same type, shape and device. `borrowed`: the tensor's."""
        raise NotImplementedError

    def own(self, result: Owned, like: Any) -> Any:
        """What the library made, without a copy, as `like`'s framework has it."""
        raise NotImplementedError

    def count_write(self, tensor: Any) -> None:
        """Tells the framework that an operation has begun to write to a tensor of the program's."""

    def stream(self, tensor: Any) -> int | None:
        """Of a tensor on CUDA: the stream that shall come behind its operation. None: the legacy
        default stream."""
        return None


# ---- memory that the library made ----


class Owned:
    """The result of an operation whose size was not known (rueda_result): contiguous."""

    def __init__(self, result: c.Result) -> None:
        self._result = result
        self.tensor: c.Tensor = result.tensor
        self.shape = shape_of(self.tensor)

    def __del__(self) -> None:
        lib.rueda_result_free(ctypes.byref(self._result))

    @property
    def nbytes(self) -> int:
        return int(self.tensor.bits // 8 * math.prod(self.shape))

    def memory(self) -> ctypes.Array[ctypes.c_char]:
        """Its bytes, which keep it alive. On the CPU."""
        return memory_at(self.tensor.data, self.nbytes, self)


def memory_at(address: int, nbytes: int, owner: object) -> ctypes.Array[ctypes.c_char]:
    """Bytes that keep their owner alive: what the buffer protocol takes."""
    memory = (ctypes.c_char * nbytes).from_address(address)
    memory._owner = owner  # type: ignore[attr-defined]
    return memory


def shape_of(tensor: c.Tensor) -> tuple[int, ...]:
    if tensor.ndim == 0:
        return ()
    return tuple((ctypes.c_int64 * tensor.ndim).from_address(tensor.shape))


class Forms(dict[tuple[Sequence[int], Any], c.Tensor]):
    """Contiguous tensors on the CPU by (shape, dtype), to copy and to give memory. A copy is good
    while its form is there. `types`: of a framework's dtype, or None."""

    _MAX = 4096

    def __init__(self, types: Callable[[Any], tuple[int, int] | None]) -> None:
        self._types = types

    def __missing__(self, key: tuple[Sequence[int], Any]) -> c.Tensor:
        shape, dtype = key
        types = self._types(dtype)
        if types is None:
            raise TypeError(f"there are no tensors of {dtype} here")
        dims = (ctypes.c_int64 * len(shape))(*shape)
        form = c.Tensor(0, c.CPU, 0, len(shape), *types, 1, ctypes.addressof(dims))
        form._dims = dims
        if len(self) >= self._MAX:
            self.clear()
        self[key] = form
        return form


# ---- DLPack ----


class ManagedTensor(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [
        ("tensor", c.Tensor),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


# Where a DLManagedTensorVersioned has its DLTensor: behind version, manager, deleter, flags.
_VERSIONED_OFFSET = 32
_READ_ONLY = 1  # a flag of it
_FLAGS_OFFSET = 24

# By index these are objects of our own: as attributes all of the process would share them, and the
# types that others give them.
_capsule_pointer = ctypes.pythonapi["PyCapsule_GetPointer"]
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_is = ctypes.pythonapi["PyCapsule_IsValid"]
_capsule_is.restype = ctypes.c_int
_capsule_is.argtypes = [ctypes.py_object, ctypes.c_char_p]


def is_contiguous(tensor: c.Tensor) -> bool:
    """Row-major, without gaps. Dimensions of 1 may have any stride."""
    if not tensor.strides or tensor.ndim == 0:
        return True
    shape = shape_of(tensor)
    strides = (ctypes.c_int64 * tensor.ndim).from_address(tensor.strides)
    if 0 in shape:
        return True
    expected = 1
    for dim, stride in zip(reversed(shape), reversed(strides), strict=True):
        if dim != 1:
            if stride != expected:
                return False
            expected *= dim
    return True


class _DLPackKind(Kind):
    """Anything with __dlpack__: JAX, CuPy, and what is to come."""

    def borrow(self, tensor: Any, write: bool) -> Borrowed:
        try:
            # The legacy default stream, where there are streams: operations begin behind that.
            on_device = tensor.__dlpack_device__()[0] in (c.CUDA, c.CUDA_MANAGED)
            capsule = tensor.__dlpack__(stream=1) if on_device else _capsule(tensor)
        except (BufferError, RuntimeError, ValueError) as error:
            raise TypeError(f"a {type(tensor).__name__} that can't be exported: {error}") from error
        if _capsule_is(capsule, b"dltensor"):
            address = _capsule_pointer(capsule, b"dltensor")
            read_only = False
        else:
            managed = _capsule_pointer(capsule, b"dltensor_versioned")
            address = managed + _VERSIONED_OFFSET
            read_only = bool(
                ctypes.c_uint64.from_address(managed + _FLAGS_OFFSET).value & _READ_ONLY
            )
        described = c.Tensor.from_address(address)
        if write and read_only:
            raise ValueError(f"a read-only {type(tensor).__name__} can't be written in place")
        if not is_contiguous(described):
            raise ValueError(
                f"a {type(tensor).__name__} of shape {shape_of(described)} is not contiguous: make "
                "a contiguous copy of it first"
            )
        if not on_device:
            return address, capsule, None
        exec_ = c.Exec(
            size=ctypes.sizeof(c.Exec),
            device_type=c.CUDA,
            device_id=described.device_id,
        )
        return address, capsule, exec_

    def make_like(self, tensor: Any, borrowed: Borrowed) -> Made:
        like = tensor
        described = c.Tensor.from_address(borrowed[0])
        if borrowed[2] is not None:
            made = namespace_of(like).empty(shape_of(described), dtype=like.dtype)
            return self.borrow(made, True), lambda: made
        # Not all frameworks let others write into tensors of theirs: into memory of ours, then.
        own = _Memory(shape_of(described), described.code, described.bits)
        return own.borrowed, lambda: namespace_of(like).from_dlpack(DLPackTensor(own.tensor, own))

    def own(self, result: Owned, like: Any) -> Any:
        return namespace_of(like).from_dlpack(DLPackTensor(result.tensor, result))


class _JaxKind(_DLPackKind):
    """JAX's arrays. On one CPU device they are read where they lie, and small results are copied
    into new ones: JAX's own DLPack takes 2 µs to give and 20 µs to take."""

    # Up to where a copy is cheaper, in bytes.
    _SMALL = 65536

    def __init__(self, jax: Any) -> None:
        self._asarray = jax.numpy.asarray
        self._empty = sys.modules["numpy"].empty  # JAX has it
        self._forms = Forms(lambda dtype: DTYPES.get(dtype.name))

    def borrow(self, tensor: Any, write: bool) -> Borrowed:
        if tensor.is_deleted():  # which JAX itself does not see everywhere
            raise ValueError("an array of JAX's that was deleted, or donated to a function")
        if write:  # DLPack does not say so
            raise ValueError("an array of JAX's can't be written in place: it is immutable")
        if not self._is_plain(tensor):
            return super().borrow(tensor, False)
        form = self._forms[tensor.shape, tensor.dtype]
        described = _copy(form)
        try:
            described.data = tensor.block_until_ready().unsafe_buffer_pointer()
        except (RuntimeError, ValueError):  # on several devices
            return super().borrow(tensor, False)
        return ctypes.addressof(described), (described, form, tensor), None

    def _is_plain(self, tensor: Any) -> bool:
        """On the CPU, and row-major."""
        try:
            if tensor.platform() != "cpu":
                return False
            ndim = tensor.ndim
            return bool(ndim < 2 or tensor.format.layout.major_to_minor == tuple(range(ndim)))
        except AttributeError:  # of another version of JAX
            return False

    def make_like(self, tensor: Any, borrowed: Borrowed) -> Made:
        # What has 8 bytes JAX would make 4 of, outside of a part of the program that allows them.
        shape, dtype = tensor.shape, tensor.dtype
        if tensor.nbytes > self._SMALL or dtype.itemsize == 8 or borrowed[2] is not None:
            return super().make_like(tensor, borrowed)
        array, asarray = self._empty(shape, dtype), self._asarray
        return _NUMPY.borrow(array, True), lambda: asarray(array)


class _TensorFlowKind(_DLPackKind):
    """Eager tensors. They are immutable, and DLPack can't say so."""

    # Whatever TensorFlow computes with begins at a multiple of it.
    _ALIGNMENT = 64

    def __init__(self, tensorflow: Any) -> None:
        self._tensorflow = tensorflow
        self._from_dlpack = tensorflow.experimental.dlpack.from_dlpack

    def borrow(self, tensor: Any, write: bool) -> Borrowed:
        if write:
            raise ValueError(
                "a tensor of TensorFlow's can't be written in place: it is immutable; assign the "
                "result to a variable"
            )
        if tensor.dtype.name not in DTYPES:  # TensorFlow would end the process
            raise TypeError(f"there are no tensors of {tensor.dtype.name} here")
        return super().borrow(tensor, write)

    def make_like(self, tensor: Any, borrowed: Borrowed) -> Made:
        described = c.Tensor.from_address(borrowed[0])
        if borrowed[2] is not None:
            raise ValueError(
                "a tensor of TensorFlow's on CUDA can't be written: move it to the CPU, or to torch"
            )
        own = _Memory(shape_of(described), described.code, described.bits)
        return own.borrowed, lambda: self._take(own.tensor, own)

    def own(self, result: Owned, like: Any) -> Any:
        if result.nbytes > 0 and result.tensor.data % self._ALIGNMENT != 0:
            own = _Memory(result.shape, result.tensor.code, result.tensor.bits)
            ctypes.memmove(own.tensor.data, result.tensor.data, result.nbytes)
            return self._take(own.tensor, own)
        if result.nbytes == 0:
            return self._tensorflow.zeros(result.shape, like.dtype)
        return self._take(result.tensor, result)

    def _take(self, tensor: c.Tensor, keep: object) -> Any:
        return self._from_dlpack(DLPackTensor(tensor, keep).__dlpack__())


class _InGraphKind(Kind):
    """Tensors of a function that is being compiled have no elements yet."""

    def __init__(self, module: str) -> None:
        self._module = module

    def borrow(self, tensor: Any, write: bool) -> Borrowed:
        raise TypeError(
            f"{type(tensor).__name__}: a tensor of a function that is being compiled (by jax.jit, "
            f"tf.function) has no elements yet: use the operations of {self._module}"
        )


def _capsule(tensor: Any) -> object:
    """Of a tensor on the CPU, with a flag that says if it is read-only, if it can say so."""
    try:
        return tensor.__dlpack__(max_version=(1, 0))
    except TypeError:
        return tensor.__dlpack__()


def namespace_of(tensor: Any) -> Any:
    """The framework's module, with from_dlpack: by the array API's standard, or the package."""
    if hasattr(tensor, "__array_namespace__"):
        return tensor.__array_namespace__()
    return sys.modules[type(tensor).__module__.partition(".")[0]]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_exported: dict[int, tuple[ManagedTensor, object]] = {}  # by the address of the first


def _delete_exported(address: int) -> None:
    _exported.pop(address, None)


def _delete_unused_capsule(capsule: int) -> None:
    # Nobody took the tensor out of the capsule; whoever does renames it.
    if _IsValid(capsule, b"dltensor"):
        _delete_exported(_GetPointer(capsule, b"dltensor"))


_delete = _Deleter(_delete_exported)
_deleter: Any = ctypes.cast(_delete, ctypes.c_void_p)


@atexit.register
def _give_away() -> None:
    """After Python's end nobody may call its functions, and tensors of other frameworks may end
    then: what they have of ours is theirs for good. Their deleter becomes a function of C that
    does nothing."""
    global _deleter
    _deleter = ctypes.cast(lib.rueda_version, ctypes.c_void_p)
    for managed, _ in list(_exported.values()):
        managed.deleter = _deleter
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_exported))


_delete_unused = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_delete_unused_capsule)
_IsValid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_GetPointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_capsule_new = ctypes.pythonapi["PyCapsule_New"]
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class DLPackTensor:
    """A tensor of the library's for other frameworks, by DLPack."""

    def __init__(self, tensor: c.Tensor, keep: object) -> None:
        self._tensor = tensor
        self._keep = keep

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.device_type, self._tensor.device_id

    def __dlpack__(self, **_: object) -> object:
        managed = ManagedTensor(tensor=self._tensor, deleter=_deleter)
        address = ctypes.addressof(managed)
        _exported[address] = (managed, self._keep)
        return _capsule_new(address, b"dltensor", ctypes.cast(_delete_unused, ctypes.c_void_p))


class _Memory:
    """New memory on the CPU, aligned as frameworks like it."""

    _ALIGNMENT = 64

    def __init__(self, shape: Sequence[int], code: int, bits: int) -> None:
        count = bits // 8 * math.prod(shape) + self._ALIGNMENT
        numpy = sys.modules.get("numpy")
        if numpy is not None:  # it does not fill it with zeroes
            self._bytes = numpy.empty(count, numpy.uint8)
            address = self._bytes.__array_interface__["data"][0]
        else:
            self._bytes = (ctypes.c_char * count)()
            address = ctypes.addressof(self._bytes)
        self._dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self.tensor = c.Tensor(
            address + -address % self._ALIGNMENT,
            c.CPU,
            0,
            len(shape),
            code,
            bits,
            1,
            ctypes.addressof(self._dims),
        )
        self.borrowed: Borrowed = (ctypes.addressof(self.tensor), self, None)


# ---- Python's numbers ----


class _NumberKind(Kind):
    """Tensors of no dimension: a bool of bool, an int of int64, a float of float64, a complex of
    complex128. Results are numbers, too; of operations that join rows, lists of them."""

    def borrow(self, tensor: Any, write: bool) -> Borrowed:
        if write:
            raise ValueError(f"a {type(tensor).__name__} is a number: it can't be written in place")
        return self._borrow(tensor, ())

    def borrow_rows(self, tensor: Any) -> Borrowed:
        return self._borrow(tensor, (1,))

    def _borrow(self, tensor: Any, shape: Sequence[int]) -> Borrowed:
        dtype, memory = self._memory(tensor)
        memory[:] = self._parts(tensor)
        return borrow_memory(ctypes.addressof(memory), shape, dtype, memory)

    def make_like(self, tensor: Any, borrowed: Borrowed) -> Made:
        dtype, memory = self._memory(tensor)
        made = borrow_memory(ctypes.addressof(memory), (), dtype, memory)
        return made, lambda: self._numbers(tensor, memory)[0]

    def own(self, result: Owned, like: Any) -> Any:
        _dtype, one = self._memory(like)
        parts = (one._type_ * (len(one) * result.shape[0])).from_buffer_copy(result.memory())
        return self._numbers(like, parts)

    @staticmethod
    def _memory(tensor: Any) -> tuple[str, Any]:
        """For one."""
        if isinstance(tensor, bool):
            return "bool", (ctypes.c_bool * 1)()
        if isinstance(tensor, int):
            return "int64", (ctypes.c_int64 * 1)()
        if isinstance(tensor, float):
            return "float64", (ctypes.c_double * 1)()
        return "complex128", (ctypes.c_double * 2)()

    @staticmethod
    def _parts(tensor: Any) -> Sequence[Any]:
        if isinstance(tensor, complex):
            return (tensor.real, tensor.imag)
        if isinstance(tensor, int) and not -(2**63) <= tensor < 2**63:
            raise ValueError(f"{tensor} is too large: an int is a tensor of int64")
        return (tensor,)

    @staticmethod
    def _numbers(like: Any, parts: Any) -> list[Any]:
        if isinstance(like, complex):
            return [complex(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
        return list(parts)


# ---- NumPy ----


class _NumPyKind(Kind):
    def borrow(self, tensor: Any, write: bool) -> Borrowed:
        if tensor.flags.c_contiguous:
            try:
                capsule = tensor.__dlpack__()
                return _capsule_pointer(capsule, b"dltensor"), capsule, None
            except (BufferError, TypeError):  # read-only, or a type that NumPy has from elsewhere
                pass
        elif write:
            raise ValueError(
                f"an array of shape {tensor.shape} is not contiguous: it can't be written in place"
            )
        if write and not tensor.flags.writeable:
            raise ValueError("a read-only array can't be written in place")
        numpy = sys.modules["numpy"]
        array = numpy.ascontiguousarray(tensor).reshape(tensor.shape)
        if not array.dtype.isnative:
            if write:
                raise ValueError(f"an array of {tensor.dtype} can't be written in place")
            array = array.astype(array.dtype.newbyteorder("="))
        return borrow_memory(
            array.__array_interface__["data"][0], array.shape, array.dtype.name, array
        )

    def make_like(self, tensor: Any, borrowed: Borrowed) -> Made:
        dtype = tensor.dtype
        array = sys.modules["numpy"].empty(
            tensor.shape, dtype if dtype.isnative else dtype.newbyteorder("=")
        )
        return self.borrow(array, True), lambda: array

    def own(self, result: Owned, like: Any) -> Any:
        dtype = like.dtype.newbyteorder("=")
        numpy = sys.modules["numpy"]
        if result.nbytes == 0:
            return numpy.empty(result.shape, dtype)
        return numpy.frombuffer(result.memory(), dtype).reshape(result.shape)


class _NumPyScalarKind(Kind):
    """What NumPy makes of an array of one number (numpy.mean). Results are such, too; of operations
    that join rows, arrays."""

    def borrow(self, tensor: Any, write: bool) -> Borrowed:
        if write:
            raise ValueError(f"a {type(tensor).__name__} is a number: it can't be written in place")
        return _NUMPY.borrow(sys.modules["numpy"].asarray(tensor), False)

    def borrow_rows(self, tensor: Any) -> Borrowed:
        return _NUMPY.borrow(sys.modules["numpy"].asarray(tensor).reshape(1), False)

    def make_like(self, tensor: Any, borrowed: Borrowed) -> Made:
        made, get = _NUMPY.make_like(sys.modules["numpy"].asarray(tensor), borrowed)
        return made, lambda: get()[()]

    def own(self, result: Owned, like: Any) -> Any:
        return _NUMPY.own(result, like)


def borrow_memory(address: int, shape: Sequence[int], dtype: str, keep: object) -> Borrowed:
    """Contiguous memory on the CPU. Raises TypeError for a type that Rueda has not."""
    if dtype not in DTYPES:
        raise TypeError(f"there are no tensors of {dtype}; there are {', '.join(DTYPES)}")
    code, bits = DTYPES[dtype]
    dims = (ctypes.c_int64 * len(shape))(*shape)
    tensor = c.Tensor(
        address, c.CPU, 0, len(shape), code, bits, 1, ctypes.addressof(dims) if shape else None
    )
    return ctypes.addressof(tensor), (tensor, dims, keep), None


# ---- torch ----


class _TorchKind(Kind):
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._strided = torch.strided
        self._empty_like = torch.empty_like
        self._increment_version = torch.autograd.graph.increment_version
        types = {getattr(torch, name, None): value for name, value in DTYPES.items()}
        self._forms = Forms(types.get)

    def borrow(self, tensor: Any, write: bool) -> Borrowed:
        if tensor.layout is not self._strided:
            raise TypeError(
                f"a tensor with the layout {tensor.layout} is not dense: make it so by to_dense(), "
                "or use sparse_allreduce_async of rueda.torch"
            )
        if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
            if write:
                raise ValueError(
                    f"a tensor of shape {tuple(tensor.shape)} is not contiguous (or is conjugated "
                    "only when it is read): it can't be written in place"
                )
            tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        form = self._forms[tensor.shape, tensor.dtype]
        described = _copy(form)
        described.data = tensor.data_ptr()
        exec_ = None if tensor.is_cpu else self._put_on_cuda(tensor, described)
        return ctypes.addressof(described), (described, form, tensor), exec_

    def _put_on_cuda(self, tensor: Any, described: c.Tensor) -> c.Exec:
        if not tensor.is_cuda:
            raise TypeError(f"a tensor on {tensor.device}: there are the CPU and CUDA")
        described.device_type, described.device_id = c.CUDA, tensor.device.index
        return c.Exec(
            ctypes.sizeof(c.Exec),
            c.CUDA,
            described.device_id,
            self._torch.cuda.current_stream(described.device_id).cuda_stream,
        )

    def make_like(self, tensor: Any, borrowed: Borrowed) -> Made:
        _address, keep, exec_ = borrowed
        if tensor.is_contiguous():
            made = self._empty_like(tensor)
        else:
            made = self._torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        described = _copy(keep[0])
        described.data = made.data_ptr()
        return (ctypes.addressof(described), (described, keep, made), exec_), lambda: made

    def count_write(self, tensor: Any) -> None:
        """So that autograd finds what it has saved overwritten. Leaves that require gradients are
        written to as under `no_grad`; inference tensors have no version."""
        self._increment_version(tensor)

    def stream(self, tensor: Any) -> int | None:
        return self._torch.cuda.current_stream(tensor.device.index).cuda_stream or None

    def own(self, result: Owned, like: Any) -> Any:
        torch = self._torch
        if result.nbytes == 0:
            return torch.empty(result.shape, dtype=like.dtype, device=like.device)
        if result.tensor.device_type != c.CPU:
            return torch.from_dlpack(DLPackTensor(result.tensor, result))
        flat = torch.frombuffer(result.memory(), dtype=torch.uint8)
        return flat.view(like.dtype).view(result.shape)


# ---- the buffer protocol ----

_FORMATS = {
    **{"?": "bool", "B": "uint8", "b": "int8", "H": "uint16", "h": "int16", "c": "uint8"},
    **{"I": "uint32", "i": "int32", "Q": "uint64", "q": "int64"},
    **{
        "L": f"uint{8 * ctypes.sizeof(ctypes.c_long)}",
        "l": f"int{8 * ctypes.sizeof(ctypes.c_long)}",
    },
    **{"e": "float16", "f": "float32", "d": "float64", "Zf": "complex64", "Zd": "complex128"},
}


class _BufferKind(Kind):
    """bytes, bytearray, array.array, memoryview, ctypes arrays. Results are memoryviews."""

    def borrow(self, tensor: Any, write: bool) -> Borrowed:
        view = memoryview(tensor)
        if not view.c_contiguous:
            raise ValueError("a buffer that is not contiguous: make a contiguous copy of it first")
        if write and view.readonly:
            raise ValueError(f"a read-only {type(tensor).__name__} can't be written in place")
        dtype = _FORMATS.get(view.format.lstrip("@=<"), view.format)
        if view.nbytes == 0:
            return borrow_memory(0, view.shape or (), dtype, view)
        # Read-only memory has no address for ctypes: it is borrowed from bytes, or copied.
        held: Any = (
            ctypes.create_string_buffer(view.tobytes(), view.nbytes)
            if view.readonly
            else (ctypes.c_char * view.nbytes).from_buffer(view.cast("B"))
        )
        return borrow_memory(ctypes.addressof(held), view.shape or (), dtype, (held, view))

    def make_like(self, tensor: Any, borrowed: Borrowed) -> Made:
        view = self._empty(memoryview(tensor).shape or (), tensor)
        return self.borrow(view, True), lambda: view

    def own(self, result: Owned, like: Any) -> Any:
        view = self._empty(result.shape, like)
        if result.nbytes > 0:
            view.cast("B")[:] = memoryview(result.memory()).cast("B")
        return view

    def _empty(self, shape: Sequence[int], like: Any) -> memoryview:
        view = memoryview(like)
        form = view.format.lstrip("@=<")
        flat = memoryview(bytearray(view.itemsize * math.prod(shape)))
        # A memoryview can't be cast to a shape with nothing in it.
        return flat.cast(form) if 0 in shape else flat.cast(form, list(shape))  # type: ignore[call-overload,no-any-return]


# ---- which is which ----

_DLPACK, _NUMPY, _BUFFER = _DLPackKind(), _NumPyKind(), _BufferKind()
_NUMBER = _NumberKind()
_NUMPY_SCALAR, _IN_TF_GRAPH = _NumPyScalarKind(), _InGraphKind("rueda.tensorflow")
_kinds: dict[type, Kind] = {}


def kind_of(tensor: object) -> Kind:
    """Raises TypeError if it is not a tensor."""
    kind = _kinds.get(type(tensor))
    if kind is None:
        kind = _kinds[type(tensor)] = _find_kind(tensor)
    return kind


def _find_kind(tensor: object) -> Kind:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _TorchKind(torch)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(tensor, numpy.ndarray):
        return _NUMPY
    if numpy is not None and isinstance(tensor, numpy.generic):
        return _NUMPY_SCALAR
    if isinstance(tensor, bool | int | float | complex):
        return _NUMBER
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(tensor, getattr(tensorflow, "Tensor", ())):
        # Both have all methods of both.
        return _TensorFlowKind(tensorflow) if hasattr(tensor, "numpy") else _IN_TF_GRAPH
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(tensor, getattr(jax, "Array", ())):
        if isinstance(tensor, jax.core.Tracer):
            return _InGraphKind("rueda.jax")
        if hasattr(tensor, "__dlpack__"):  # keys of random numbers are arrays without
            return _JaxKind(jax)
    if hasattr(tensor, "__dlpack__"):
        return _DLPACK
    try:
        memoryview(tensor)  # type: ignore[arg-type]
    except TypeError:
        if "PRNGKey" in type(tensor).__name__:
            raise TypeError(
                f"expected a tensor, got a {type(tensor).__name__}: jax.random.key_data and "
                "wrap_key_data make one of it, and back"
            ) from None
        raise TypeError(
            f"expected a tensor, got a {type(tensor).__name__}: tensors are numbers, NumPy arrays, "
            "torch tensors, and objects with DLPack or the buffer protocol"
        ) from None
    return _BUFFER
