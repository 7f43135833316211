"""native/xla_ffi_abi.h is what jaxlib's own header says, as a C++ compiler sees both."""

import pathlib
import shutil
import subprocess

import pytest

jax = pytest.importorskip("jax")

OURS = pathlib.Path(__file__).parents[2] / "bindings" / "python" / "native" / "xla_ffi_abi.h"

# Our struct: theirs, and our fields: theirs, in this order.
STRUCTS = {
    "Extension": ("XLA_FFI_Extension_Base", "size:struct_size type next"),
    "Version": (
        "XLA_FFI_Api_Version",
        "size:struct_size extensions:extension_start major:major_version minor:minor_version",
    ),
    "Buffer": (
        "XLA_FFI_Buffer",
        "size:struct_size extensions:extension_start dtype data rank dims",
    ),
    "ByteSpan": ("XLA_FFI_ByteSpan", "data:ptr size:len"),
    "Scalar": ("XLA_FFI_Scalar", "dtype value"),
    "Buffers": (
        "XLA_FFI_Args",
        "size:struct_size extensions:extension_start count:size types values:args",
    ),
    "Attributes": (
        "XLA_FFI_Attrs",
        "size:struct_size extensions:extension_start count:size types names values:attrs",
    ),
    "CallFrame": (
        "XLA_FFI_CallFrame",
        "size:struct_size extensions:extension_start api context:ctx stage arguments:args "
        "results:rets attributes:attrs future",
    ),
    "Metadata": (
        "XLA_FFI_Metadata",
        "size:struct_size version:api_version traits state_type:state_type_id",
    ),
    "MetadataExtension": ("XLA_FFI_Metadata_Extension", "base:extension_base metadata"),
    "CreateErrorArgs": (
        "XLA_FFI_Error_Create_Args",
        "size:struct_size extensions:extension_start message code:errc",
    ),
    "CreateFutureArgs": (
        "XLA_FFI_Future_Create_Args",
        "size:struct_size extensions:extension_start future",
    ),
    "SetAvailableArgs": (
        "XLA_FFI_Future_SetAvailable_Args",
        "size:struct_size extensions:extension_start future",
    ),
    "SetErrorArgs": (
        "XLA_FFI_Future_SetError_Args",
        "size:struct_size extensions:extension_start future error",
    ),
    # Ours ends with the last function that is called here.
    "Api": (
        "XLA_FFI_Api",
        "size:struct_size extensions:extension_start version:api_version internal:internal_api "
        "create_error:XLA_FFI_Error_Create get_error_message:XLA_FFI_Error_GetMessage "
        "destroy_error:XLA_FFI_Error_Destroy register_handler:XLA_FFI_Handler_Register "
        "get_stream:XLA_FFI_Stream_Get register_type:XLA_FFI_Type_Register "
        "get_from_context:XLA_FFI_ExecutionContext_Get set_state:XLA_FFI_State_Set "
        "get_state:XLA_FFI_State_Get allocate:XLA_FFI_DeviceMemory_Allocate "
        "free:XLA_FFI_DeviceMemory_Free schedule:XLA_FFI_ThreadPool_Schedule "
        "thread_count:XLA_FFI_ThreadPool_NumThreads create_future:XLA_FFI_Future_Create "
        "set_available:XLA_FFI_Future_SetAvailable set_error:XLA_FFI_Future_SetError",
    ),
}
# A struct of ours that stands for two of theirs.
RESULTS = ("Buffers", "XLA_FFI_Rets", STRUCTS["Buffers"][1].replace("values:args", "values:rets"))

NUMBERS = {
    "kMajorVersion": "XLA_FFI_API_MAJOR",
    "kMetadataExtension": "XLA_FFI_Extension_Metadata",
    "kBufferArgument": "XLA_FFI_ArgType_BUFFER",
    "kArrayAttribute": "XLA_FFI_AttrType_ARRAY",
    "kScalarAttribute": "XLA_FFI_AttrType_SCALAR",
    "kStringAttribute": "XLA_FFI_AttrType_STRING",
    "kInstantiate": "XLA_FFI_ExecutionStage_INSTANTIATE",
    "kPrepare": "XLA_FFI_ExecutionStage_PREPARE",
    "kInitialize": "XLA_FFI_ExecutionStage_INITIALIZE",
    "kExecute": "XLA_FFI_ExecutionStage_EXECUTE",
    **{
        ours: f"XLA_FFI_DataType_{theirs}"
        for ours, theirs in (
            ("kBool", "PRED"),
            ("kInt8", "S8"),
            ("kInt16", "S16"),
            ("kInt32", "S32"),
            ("kInt64", "S64"),
            ("kUint8", "U8"),
            ("kUint16", "U16"),
            ("kUint32", "U32"),
            ("kUint64", "U64"),
            ("kFloat16", "F16"),
            ("kFloat32", "F32"),
            ("kFloat64", "F64"),
            ("kComplex64", "C64"),
            ("kBfloat16", "BF16"),
            ("kToken", "TOKEN"),
            ("kComplex128", "C128"),
            ("kFloat8E5M2", "F8E5M2"),
            ("kFloat8E4M3FN", "F8E4M3FN"),
        )
    },
}


def checks():
    """Lines of static_asserts."""
    for ours, (theirs, fields) in [*STRUCTS.items(), (RESULTS[0], RESULTS[1:])]:
        if ours != "Api":
            yield f"static_assert(sizeof(rueda::xla::{ours}) == sizeof({theirs}));"
        for field in fields.split():
            mine, _, other = field.partition(":")
            other = other or mine
            yield (
                f"static_assert(offsetof(rueda::xla::{ours}, {mine}) == offsetof({theirs}, {other})"
                f" && sizeof(rueda::xla::{ours}::{mine}) == sizeof({theirs}::{other}));"
            )
    for mine, other in NUMBERS.items():
        yield f"static_assert(int(rueda::xla::{mine}) == int({other}));"
    # What a caller of this version says about its size covers what we ask for.
    yield "static_assert(XLA_FFI_API_MINOR >= rueda::xla::kMinorVersion);"
    yield (
        "static_assert(XLA_FFI_CallFrame_STRUCT_SIZE >= "
        "RUEDA_XLA_SIZE(rueda::xla::CallFrame, attributes));"
    )
    yield "static_assert(XLA_FFI_Api_STRUCT_SIZE >= RUEDA_XLA_SIZE(rueda::xla::Api, set_error));"
    yield "static_assert(XLA_FFI_Buffer_STRUCT_SIZE >= RUEDA_XLA_SIZE(rueda::xla::Buffer, dims));"


def compile_with(lines, tmp_path):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    theirs = pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    source = tmp_path / "layout.cc"
    body = "\n".join(lines)
    source.write_text(f'#include "{theirs}"\n#include "{OURS}"\n{body}\n')
    return subprocess.run(
        [compiler, "-std=c++20", "-w", "-fsyntax-only", source], capture_output=True, text=True
    )


def test_structs_and_numbers_are_those_of_jaxlibs_header(tmp_path):
    done = compile_with(checks(), tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_field_is_compared():
    text = OURS.read_text()
    for ours, (_, fields) in STRUCTS.items():
        body = text.split(f"struct {ours} {{")[1].split("};")[0]
        lines = [line.partition("//")[0] for line in body.splitlines()]
        assert sum(";" in line for line in lines) == len(fields.split()), ours


def test_a_wrong_layout_is_noticed(tmp_path):
    wrong = "static_assert(offsetof(rueda::xla::Buffer, data) == offsetof(XLA_FFI_Buffer, dims));"
    assert compile_with([wrong], tmp_path).returncode != 0
