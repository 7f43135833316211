// The wall toward XLA: what its foreign function interface (FFI) looks like in memory, as far as a
// handler on the CPU needs it. Declared here so that nothing of XLA or JAX is needed to build; no
// other file knows the layout. PURE.
//
// Follows version 0.3 of the FFI's C ABI (jaxlib 0.10). XLA keeps old minor versions working:
// fields are only added at the end of a struct, and each begins with its size as the caller knows
// it. What we need of each is checked at run time (RUEDA_XLA_SIZE), and test/python/jax_abi_test.py
// compares all of it with the header that jaxlib brings.
#ifndef RUEDA_BINDINGS_PYTHON_NATIVE_XLA_FFI_ABI_H_
#define RUEDA_BINDINGS_PYTHON_NATIVE_XLA_FFI_ABI_H_

#include <cstddef>
#include <cstdint>

namespace rueda::xla {

inline constexpr int kMajorVersion = 0;
inline constexpr int kMinorVersion = 3;

// What structs begin with.
struct Extension {
  size_t size;
  int32_t type;
  Extension* next;
};
inline constexpr int32_t kMetadataExtension = 1;

struct Version {
  size_t size;
  Extension* extensions;
  int major;
  int minor;
};

struct Error;             // XLA's; made by Api::create_error, and given away
struct ExecutionContext;  // not looked at
struct Future;            // XLA's; made by Api::create_future

// ---- Tensors and attributes ----

enum DataType : int32_t {
  kBool = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint8 = 6,
  kUint16 = 7,
  kUint32 = 8,
  kUint64 = 9,
  kFloat16 = 10,
  kFloat32 = 11,
  kFloat64 = 12,
  kComplex64 = 15,
  kBfloat16 = 16,
  kToken = 17,
  kComplex128 = 18,
  kFloat8E5M2 = 19,
  kFloat8E4M3FN = 20,
};

// Row-major, contiguous.
struct Buffer {
  size_t size;
  Extension* extensions;
  DataType dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};
inline constexpr int32_t kBufferArgument = 1;  // and result

struct ByteSpan {
  const char* data;
  size_t size;
};

struct Scalar {
  DataType dtype;
  void* value;
};

enum AttributeType : int32_t { kArrayAttribute = 1, kScalarAttribute = 3, kStringAttribute = 4 };

// Arguments, or results.
struct Buffers {
  size_t size;
  Extension* extensions;
  int64_t count;
  int32_t* types;
  void** values;
};

// Sorted by name.
struct Attributes {
  size_t size;
  Extension* extensions;
  int64_t count;
  AttributeType* types;
  ByteSpan** names;
  void** values;
};

// ---- A call ----

struct Api;

enum Stage : int32_t { kInstantiate = 0, kPrepare = 1, kInitialize = 2, kExecute = 3 };

struct CallFrame {
  size_t size;
  Extension* extensions;
  const Api* api;
  ExecutionContext* context;
  Stage stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
  Future* future;  // set by the handler: the call ends when the future is available
};

// A handler; registered with XLA by name.
using Handler = Error*(CallFrame*);

// ---- What a handler is asked about itself: a call with this extension and nothing else ----

struct Metadata {
  size_t size;
  Version version;
  uint32_t traits;
  int64_t state_type;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

// ---- Functions of XLA's ----

struct CreateErrorArgs {
  size_t size;
  Extension* extensions;
  const char* message;
  int32_t code;  // absl::StatusCode, as rueda_status
};

struct CreateFutureArgs {
  size_t size;
  Extension* extensions;
  Future* future;  // the result
};

struct SetAvailableArgs {
  size_t size;
  Extension* extensions;
  Future* future;
};

struct SetErrorArgs {
  size_t size;
  Extension* extensions;
  Future* future;
  Error* error;  // is the runtime's from then on
};

using Function = void*;  // of what is not called here

// Lives as long as the process.
struct Api {
  size_t size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(CreateErrorArgs*);
  Function get_error_message;
  Function destroy_error;
  Function register_handler;
  Function get_stream;
  Function register_type;
  Function get_from_context;
  Function set_state;
  Function get_state;
  Function allocate;
  Function free;
  Function schedule;
  Function thread_count;
  Error* (*create_future)(CreateFutureArgs*);
  Error* (*set_available)(SetAvailableArgs*);
  Error* (*set_error)(SetErrorArgs*);
};

// What the caller has to know of a struct: everything up to and with a field.
#define RUEDA_XLA_SIZE(type, last) (offsetof(type, last) + sizeof(type::last))

}  // namespace rueda::xla

#endif  // RUEDA_BINDINGS_PYTHON_NATIVE_XLA_FFI_ABI_H_
