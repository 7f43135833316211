"""The structs and numbers of core/_library.py are those of rueda.h, as a C compiler sees them."""

import ctypes
import os
import re
import shutil
import subprocess

import pytest

from rueda import errors
from rueda.core import _library as c
from rueda.core._operations import ReduceOp

STRUCTS = {
    "rueda_tensor": c.Tensor,
    "rueda_device": c.Device,
    "rueda_init_options": c.InitOptions,
    "rueda_exec": c.Exec,
    "rueda_operation": c.Operation,
    "rueda_completion": c.Completion,
    "rueda_error": c.Error,
    "rueda_result": c.Result,
    "rueda_membership": c.Membership,
}
# Where structs within structs are flat.
NESTED = {
    "device_type": "device.type",
    "device_id": "device.id",
    "code": "dtype.code",
    "bits": "dtype.bits",
    "lanes": "dtype.lanes",
}
NUMBERS = {
    "RUEDA_VERSION": c.HEADER_VERSION,
    "RUEDA_FOREVER": c.FOREVER,
    "RUEDA_WORLD": c.WORLD,
    "RUEDA_CPU": c.CPU,
    "RUEDA_CUDA": c.CUDA,
    "RUEDA_CUDA_HOST": c.CUDA_HOST,
    "RUEDA_CUDA_MANAGED": c.CUDA_MANAGED,
    "RUEDA_INIT_READ_ENVIRONMENT": c.READ_ENVIRONMENT,
    "RUEDA_ALLREDUCE": c.ALLREDUCE,
    "RUEDA_BROADCAST": c.BROADCAST,
    "RUEDA_ALLGATHER": c.ALLGATHER,
    "RUEDA_BARRIER": c.BARRIER,
    "RUEDA_ALLTOALL": c.ALLTOALL,
    "RUEDA_REDUCESCATTER": c.REDUCESCATTER,
    "RUEDA_REDUCE": c.REDUCE,
    "RUEDA_GATHER": c.GATHER,
    "RUEDA_SCATTER": c.SCATTER,
    "RUEDA_SEND": c.SEND,
    "RUEDA_RECV": c.RECV,
    "RUEDA_NO_REDUCE_OP": c.NO_REDUCE_OP,
    "RUEDA_RANKS_ADDED": c.RANKS_ADDED,
    "RUEDA_RANKS_REMOVED": c.RANKS_REMOVED,
    **{f"RUEDA_{op.name}": int(op) for op in ReduceOp},
    **{f"RUEDA_{status.name}": int(status) for status in errors.Status},
}


def header() -> str:
    return os.environ["HEADER_OF_RUEDA"]


def test_structs_and_numbers_are_the_headers(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, _ in struct._fields_:
            inner = NESTED.get(field, field) if struct in (c.Tensor, c.Exec) else field
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {inner}));')
    for name in NUMBERS:
        lines.append(f'printf("{name} %lld\\n", (long long){name});')
    source = tmp_path / "layout.c"
    body = "\n".join(lines)
    source.write_text(
        f'#include <stdio.h>\n#include "{header()}"\nint main(void) {{\n{body}\nreturn 0;\n}}\n'
    )
    subprocess.run([compiler, "-o", tmp_path / "layout", source], check=True)
    out = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True).stdout
    found = {name: int(value) for name, value in (line.split() for line in out.splitlines())}
    expected = dict(NUMBERS)
    for name, struct in STRUCTS.items():
        expected[name] = ctypes.sizeof(struct)
        for field, _ in struct._fields_:
            expected[f"{name}.{field}"] = getattr(struct, field).offset
    assert found == expected


def test_every_function_of_the_header_is_declared():
    with open(header()) as file:
        declared = set(re.findall(r"^RUEDA_API [^(]*?\b(rueda_\w+)\(", file.read(), re.M))
    assert declared == set(c._FUNCTIONS)


def test_the_version_is_the_librarys():
    version = c.lib.rueda_version()
    import rueda

    assert rueda.__version__ == f"{version >> 16}.{version >> 8 & 255}.{version & 255}"
