"""The C API (rueda/rueda.h) by ctypes: the library, its structs, its functions. Nothing more.

Structs that hold a tensor's device and dtype are flat here; the layout is the header's, which
test/python/layout_test.py compares.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)

HEADER_VERSION = 0x000100  # RUEDA_VERSION of the header that this file follows
FOREVER = 2**63 - 1
WORLD = 0

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
READ_ENVIRONMENT = 1
WAIT_SOON = 1
RELEASE = 2  # rueda_execute, what has ended well

ALLREDUCE, BROADCAST, ALLGATHER, BARRIER, ALLTOALL, REDUCESCATTER = range(6)
REDUCE, GATHER, SCATTER, SEND, RECV = range(6, 11)
NO_REDUCE_OP = -1

RANKS_ADDED, RANKS_REMOVED = 1, 2


class Tensor(ctypes.Structure):
    """rueda_tensor, which is DLPack's DLTensor."""

    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("byte_offset", c_uint64),
    ]


class Device(ctypes.Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class InitOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("flags", c_uint32),
        ("group_rank", c_int32),
        ("group", c_void_p),
        ("knobs", POINTER(c_char_p)),
        ("knob_count", c_size_t),
    ]


class Exec(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("stream", c_void_p),
        ("ready_event", c_void_p),
    ]


class Operation(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int),
        ("process_set", c_int32),
        ("name", c_char_p),
        ("input", c_void_p),
        ("output", c_void_p),
        ("reduce_op", c_int),
        ("root", c_int32),
        ("prescale", c_double),
        ("postscale", c_double),
        ("allocate", c_void_p),
        ("allocate_user", c_void_p),
        ("exec", c_void_p),
        ("priority", c_int32),
        ("flags", c_uint32),
        ("compressor", c_char_p),
        ("splits", c_void_p),
        ("split_count", c_size_t),
        ("fault", c_char_p),
    ]


class Completion(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("callback", c_void_p),
        ("user", c_void_p),
        ("flags", c_uint32),
    ]


class Error(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("code", c_int),
        ("recoverable", c_int32),
        ("membership", c_uint64),
        ("rank", c_int32),
        ("pid", c_int32),
        ("host", c_char_p),
        ("cause", c_char_p),
        ("operation", c_char_p),
        ("tensor", c_char_p),
        ("message", c_char_p),
    ]


class Membership(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("number", c_uint64),
        ("rank", c_int32),
        ("ranks", c_int32),
        ("survivors", c_int32),
        ("source", c_int32),
        ("keeping", c_int32),
    ]


class Result(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("tensor", Tensor), ("owner", c_void_p)]


def folder() -> pathlib.Path:
    """Where the package lies, with librueda.so and its modules in `lib` and ruedarun in `bin`."""
    return pathlib.Path(os.path.abspath(__file__)).parent.parent


def _load() -> ctypes.CDLL:
    """Opens librueda.so, which looks among its own libraries before those of the process: there
    TensorFlow shows everybody its Protobuf, which is not the one that librueda was built with."""
    path = folder() / "lib" / "librueda_apart.so"
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_DEEPBIND)
    except OSError as error:
        raise ImportError(
            f"rueda can't load its library: {error}; install the wheel again (in the source tree: "
            "cmake --workflow --preset release builds all of build/release/python)"
        ) from error


lib = _load()

_context = c_void_p
_handle = c_uint64
# Name: result, arguments.
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "rueda_status_name": (c_char_p, [c_int]),
    "rueda_last_error": (c_char_p, []),
    "rueda_version": (c_uint32, []),
    "rueda_group_create": (c_int, [c_int32, POINTER(c_void_p)]),
    "rueda_group_destroy": (None, [c_void_p]),
    "rueda_init": (c_int, [c_uint32, POINTER(InitOptions), POINTER(c_void_p)]),
    "rueda_shutdown": (c_int, [_context]),
    "rueda_context_destroy": (None, [_context]),
    "rueda_current_context": (c_void_p, []),
    "rueda_set_default_context": (None, [_context]),
    "rueda_set_thread_context": (None, [_context]),
    "rueda_thread_waits": (c_int, [_context, c_int32]),
    "rueda_is_initialized": (c_int32, [_context]),
    "rueda_rank": (c_int32, [_context]),
    "rueda_size": (c_int32, [_context]),
    "rueda_local_rank": (c_int32, [_context]),
    "rueda_local_size": (c_int32, [_context]),
    "rueda_cross_rank": (c_int32, [_context]),
    "rueda_cross_size": (c_int32, [_context]),
    "rueda_is_homogeneous": (c_int32, [_context]),
    "rueda_context_membership": (c_int, [_context, POINTER(c_uint64)]),
    "rueda_context_epoch": (c_int, [_context, POINTER(c_uint64)]),  # deprecated
    "rueda_context_reset": (c_int, [_context]),
    "rueda_context_error": (c_int, [_context, POINTER(Error)]),
    "rueda_abort": (c_int, [_context, c_char_p]),
    "rueda_membership_info": (c_int, [_context, POINTER(Membership)]),
    "rueda_regroup": (c_int, [_context, c_uint64]),
    "rueda_membership_due": (c_int32, [_context]),
    "rueda_leaving_ranks": (
        c_int,
        [_context, POINTER(c_int32), c_size_t, POINTER(c_size_t)],
    ),
    "rueda_check_membership": (c_int, [_context, POINTER(c_int32)]),
    "rueda_should_stop": (c_int32, [_context]),
    "rueda_local_device": (c_int, [_context, c_int32, POINTER(Device)]),
    "rueda_process_set_add": (
        c_int,
        [_context, POINTER(c_int32), c_size_t, c_int64, POINTER(c_int32)],
    ),
    "rueda_process_set_remove": (c_int, [_context, c_int32, c_int64]),
    "rueda_process_set_size": (c_int32, [_context, c_int32]),
    "rueda_process_set_rank": (c_int32, [_context, c_int32]),
    "rueda_process_set_ranks": (
        c_int,
        [_context, c_int32, POINTER(c_int32), c_size_t, POINTER(c_size_t)],
    ),
    "rueda_submit": (
        c_int,
        [_context, c_void_p, c_size_t, c_void_p, POINTER(_handle)],
    ),
    "rueda_execute": (
        c_int,
        [_context, c_void_p, c_size_t, c_int64, POINTER(_handle)],
    ),
    "rueda_poll": (c_int, [_context, _handle, POINTER(c_int32)]),
    "rueda_wait": (c_int, [_context, _handle, c_int64]),
    "rueda_on_completion": (c_int, [_context, _handle, POINTER(Completion)]),
    "rueda_explain": (c_int, [_context, _handle]),
    "rueda_wait_or_abort": (c_int, [_context, _handle, c_char_p]),
    "rueda_wait_on_stream": (c_int, [_context, _handle, c_void_p]),
    "rueda_release": (c_int, [_context, _handle]),
    "rueda_handle_error": (c_int, [_context, _handle, POINTER(Error)]),
    "rueda_result_take": (c_int, [_context, _handle, c_size_t, POINTER(Result)]),
    "rueda_result_free": (None, [POINTER(Result)]),
    "rueda_result_splits": (
        c_int,
        [_context, _handle, c_size_t, POINTER(c_int64), c_size_t, POINTER(c_size_t)],
    ),
    "rueda_broadcast_bytes": (
        c_int,
        [_context, c_int32, c_char_p, c_int32, c_char_p, c_size_t, POINTER(Result)],
    ),
    "rueda_allgather_bytes": (
        c_int,
        [_context, c_int32, c_char_p, c_char_p, c_size_t, POINTER(Result), POINTER(c_int64)],
    ),
    "rueda_join": (c_int, [_context, c_int32, c_int64, POINTER(c_int32)]),
    "rueda_mem_alloc": (c_int, [_context, c_size_t, POINTER(c_void_p)]),
    "rueda_mem_free": (c_int, [c_void_p]),
    "rueda_neighbor_ranks": (
        c_int,
        [_context, POINTER(c_int32), c_size_t, POINTER(c_size_t)],
    ),
    "rueda_mem_offset": (c_int, [c_void_p, POINTER(c_uint64)]),
    "rueda_mem_open": (
        c_int,
        [_context, c_int32, c_uint64, c_size_t, POINTER(c_void_p)],
    ),
    "rueda_mem_keep": (
        c_int,
        [_context, c_void_p, c_size_t, c_char_p, c_uint64, c_uint64, c_uint64],
    ),
    "rueda_mem_kept": (
        c_int,
        [
            _context,
            c_char_p,
            c_uint64,
            c_uint64,
            c_int32,
            POINTER(c_void_p),
            POINTER(c_size_t),
            POINTER(c_uint64),
        ],
    ),
    "rueda_compression_save": (c_int, [_context, c_int32, POINTER(Result)]),
    "rueda_compression_load": (
        c_int,
        [_context, c_int32, POINTER(c_char_p), POINTER(c_size_t), c_size_t],
    ),
    "rueda_timeline_start": (c_int, [_context, c_char_p]),
    "rueda_timeline_stop": (c_int, [_context]),
    "rueda_dump_state": (None, [c_int]),
}
for _name, (_result, _arguments) in _FUNCTIONS.items():
    _function = getattr(lib, _name)
    _function.restype = _result
    _function.argtypes = _arguments


def version() -> str:
    """The library's, such as "0.1.0"."""
    number = lib.rueda_version()
    return f"{number >> 16}.{number >> 8 & 0xFF}.{number & 0xFF}"
