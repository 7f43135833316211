"""librueda_xla.so, which XLA's programs call. Registered when the first one is compiled."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import jax

from rueda.core import _library as c

#: What the calls are called in XLA's programs.
TARGET = "rueda"

# Of XLA's FFI, as far as native/xla_ffi_abi.h knows it. The newest that jaxlib has goes.
_MINOR_VERSIONS = (3, 2, 1)

# In the order of `Library` in native/rueda_xla.cc.
_FUNCTIONS = (
    "rueda_current_context",
    "rueda_process_set_size",
    "rueda_submit",
    "rueda_handle_error",
    "rueda_release",
    "rueda_last_error",
)


@functools.cache
def register() -> None:
    """Makes the calls known to XLA, once."""
    path = c.folder() / "lib" / "librueda_xla.so"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"rueda.jax can't load its library: {error}; install the wheel again (in the source "
            "tree build the target rueda_python)"
        ) from error
    addresses = [ctypes.cast(getattr(c.lib, name), ctypes.c_void_p) for name in _FUNCTIONS]
    table = (ctypes.c_void_p * len(addresses))(*addresses)
    ffi: Any = jax.ffi
    refusals = []
    for minor in _MINOR_VERSIONS:
        library.rueda_xla_use(table, minor)
        try:
            ffi.register_ffi_target(TARGET, ffi.pycapsule(library.rueda_xla_call), platform="cpu")
            return
        except Exception as refusal:  # of jaxlib's; its class differs by version
            refusals.append(str(refusal))
    raise ImportError(f"jax {jax.__version__} does not take rueda's calls: {refusals}")
