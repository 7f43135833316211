// librueda_xla.so: collectives as calls out of programs that XLA compiled for the CPU (rueda.jax).
//
// XLA calls `rueda_xla_call` on a thread of its own or of the program's, with the tensors where
// they lie. The handler submits the operation and returns a future, which the library's callback
// thread makes available: nobody waits here. What the call is has been decided when the program was
// traced, and stands in its attributes; the context is the process's default one at the time of the
// call.
//
// Nothing of ours is linked: the functions are those of the librueda that the process has (one, in
// whatever file), which `rueda_xla_use` is told.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/python/native/xla_ffi_abi.h"
#include "rueda/rueda.h"

namespace rueda::xla {
namespace {

// ---- The library ----

// In this order in rueda/jax/_native.py.
struct Library {
  decltype(&rueda_current_context) current_context;
  decltype(&rueda_process_set_size) process_set_size;
  decltype(&rueda_submit) submit;
  decltype(&rueda_handle_error) handle_error;
  decltype(&rueda_release) release;
  decltype(&rueda_last_error) last_error;
};

Library library;                    // set once, before the handler is registered
int minor_version = kMinorVersion;  // that the handler says it follows

// ---- Errors ----

struct Failure {
  rueda_status status;
  std::string message;
};

// rueda/jax/_errors.py knows our errors by this.
constexpr std::string_view kMark = "Rueda: ";

Error* MakeError(const Api* api, const Failure& failure) {
  std::string message(kMark);
  message += failure.message;
  CreateErrorArgs args = {sizeof(CreateErrorArgs), nullptr, message.c_str(), failure.status};
  return api->create_error(&args);
}

// ---- Attributes ----

// Of one call: what tracing has put down.
struct Call {
  int64_t kind = -1;
  int64_t op = RUEDA_NO_REDUCE_OP;
  int64_t root = -1;
  int64_t process_set = RUEDA_WORLD;
  int64_t ranks = -1;  // of the process set, when the program was traced
  int64_t group = 0;
  double prescale = 1;
  double postscale = 1;
  std::string name;
  std::string compressor;
};

struct Field {
  std::string_view name;
  DataType type;  // kToken: a string
  void* (*place)(Call*);
};

constexpr Field kFields[] = {
    {"compressor", kToken, [](Call* r) -> void* { return &r->compressor; }},
    {"group", kInt64, [](Call* r) -> void* { return &r->group; }},
    {"kind", kInt64, [](Call* r) -> void* { return &r->kind; }},
    {"name", kToken, [](Call* r) -> void* { return &r->name; }},
    {"op", kInt64, [](Call* r) -> void* { return &r->op; }},
    {"postscale", kFloat64, [](Call* r) -> void* { return &r->postscale; }},
    {"prescale", kFloat64, [](Call* r) -> void* { return &r->prescale; }},
    {"process_set", kInt64, [](Call* r) -> void* { return &r->process_set; }},
    {"ranks", kInt64, [](Call* r) -> void* { return &r->ranks; }},
    {"root", kInt64, [](Call* r) -> void* { return &r->root; }},
};
constexpr int64_t kFieldCount = sizeof(kFields) / sizeof(kFields[0]);

bool ReadAttribute(const Field& field, AttributeType type, const void* value, Call* call) {
  void* place = field.place(call);
  if (type == kStringAttribute && field.type == kToken) {
    const auto* text = static_cast<const ByteSpan*>(value);
    static_cast<std::string*>(place)->assign(text->data, text->size);
    return true;
  }
  if (type != kScalarAttribute) return false;
  const auto* scalar = static_cast<const Scalar*>(value);
  if (scalar->dtype != field.type) return false;
  std::memcpy(place, scalar->value, 8);
  return true;
}

// XLA gives them sorted by name, as kFields are.
bool ReadAttributes(const Attributes& given, Call* call) {
  if (given.count != kFieldCount) return false;
  for (int64_t i = 0; i < kFieldCount; ++i) {
    const ByteSpan& name = *given.names[i];
    if (std::string_view(name.data, name.size) != kFields[i].name) return false;
    if (!ReadAttribute(kFields[i], given.types[i], given.values[i], call)) return false;
  }
  return true;
}

// ---- Tensors ----

bool FindType(DataType type, rueda_dtype* dtype) {
  switch (type) {
    case kBool:
      *dtype = RUEDA_BOOL;
      return true;
    case kInt8:
      *dtype = RUEDA_INT8;
      return true;
    case kInt16:
      *dtype = RUEDA_INT16;
      return true;
    case kInt32:
      *dtype = RUEDA_INT32;
      return true;
    case kInt64:
      *dtype = RUEDA_INT64;
      return true;
    case kUint8:
      *dtype = RUEDA_UINT8;
      return true;
    case kUint16:
      *dtype = RUEDA_UINT16;
      return true;
    case kUint32:
      *dtype = RUEDA_UINT32;
      return true;
    case kUint64:
      *dtype = RUEDA_UINT64;
      return true;
    case kFloat16:
      *dtype = RUEDA_FLOAT16;
      return true;
    case kFloat32:
      *dtype = RUEDA_FLOAT32;
      return true;
    case kFloat64:
      *dtype = RUEDA_FLOAT64;
      return true;
    case kBfloat16:
      *dtype = RUEDA_BFLOAT16;
      return true;
    case kComplex64:
      *dtype = RUEDA_COMPLEX64;
      return true;
    case kComplex128:
      *dtype = RUEDA_COMPLEX128;
      return true;
    case kFloat8E5M2:
      *dtype = RUEDA_FLOAT8_E5M2;
      return true;
    case kFloat8E4M3FN:
      *dtype = RUEDA_FLOAT8_E4M3FN;
      return true;
    case kToken:
      break;
  }
  return false;
}

// Borrows XLA's memory, but for tokens, which have none.
bool Borrow(const Buffers& given, std::vector<rueda_tensor>* tensors) {
  for (int64_t i = 0; i < given.count; ++i) {
    if (given.types[i] != kBufferArgument) return false;
    const auto& buffer = *static_cast<const Buffer*>(given.values[i]);
    if (buffer.size < RUEDA_XLA_SIZE(Buffer, dims)) return false;
    if (buffer.dtype == kToken) continue;
    rueda_tensor& tensor = tensors->emplace_back(rueda_tensor{});
    if (!FindType(buffer.dtype, &tensor.dtype)) return false;
    tensor.data = buffer.data;
    tensor.device = {RUEDA_CPU, 0};
    tensor.ndim = static_cast<int32_t>(buffer.rank);
    tensor.shape = buffer.dims;
  }
  return true;
}

// ---- The call ----

// What the callback needs.
struct Flight {
  const Api* api;
  Future* future;
  rueda_context* context;
};

// On the library's callback thread.
void Land(void* user, rueda_handle handle, rueda_status status) {
  const std::unique_ptr<Flight> flight(static_cast<Flight*>(user));
  Error* error = nullptr;
  if (status != RUEDA_OK) {
    rueda_error details = RUEDA_ERROR_INIT;
    library.handle_error(flight->context, handle, &details);
    error = MakeError(flight->api, {status, details.message});
  }
  library.release(flight->context, handle);
  if (error != nullptr) {
    SetErrorArgs args = {sizeof(SetErrorArgs), nullptr, flight->future, error};
    flight->api->set_error(&args);
  } else {
    SetAvailableArgs args = {sizeof(SetAvailableArgs), nullptr, flight->future};
    flight->api->set_available(&args);
  }
}

// The operations of one call, with the names and tensors that they point to.
struct Operations {
  std::vector<rueda_tensor> inputs;
  std::vector<rueda_tensor> outputs;
  std::vector<std::string> names;
  std::vector<rueda_operation> all;
};

void Fill(const Call& call, Operations* operations) {
  const size_t count = std::max<size_t>({operations->inputs.size(), operations->outputs.size(), 1});
  operations->names.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    operations->names.push_back(call.group != 0 ? call.name + "." + std::to_string(i) : call.name);
    rueda_operation& operation = operations->all.emplace_back(rueda_operation RUEDA_OPERATION_INIT);
    operation.kind = static_cast<rueda_kind>(call.kind);
    operation.process_set = static_cast<int32_t>(call.process_set);
    operation.name = call.kind == RUEDA_BARRIER ? nullptr : operations->names.back().c_str();
    if (i < operations->inputs.size()) operation.input = &operations->inputs[i];
    if (i < operations->outputs.size()) operation.output = &operations->outputs[i];
    operation.reduce_op = static_cast<rueda_reduce_op>(call.op);
    operation.root = static_cast<int32_t>(call.root);
    operation.prescale = call.prescale;
    operation.postscale = call.postscale;
    if (!call.compressor.empty()) operation.compressor = call.compressor.c_str();
  }
}

Failure CheckContext(rueda_context* context, const Call& call) {
  if (context == nullptr) {
    return {RUEDA_FAILED_PRECONDITION, "this is not initialized: call init() first"};
  }
  const int32_t ranks = library.process_set_size(context, static_cast<int32_t>(call.process_set));
  if (ranks == call.ranks) return {RUEDA_OK, ""};
  if (ranks < 0) {
    return {RUEDA_FAILED_PRECONDITION, "'" + call.name + "': there is no process set " +
                                           std::to_string(call.process_set) + " any more"};
  }
  return {RUEDA_FAILED_PRECONDITION,
          "'" + call.name + "' was traced for " + std::to_string(call.ranks) +
              " ranks, and now there are " + std::to_string(ranks) +
              ": call jax.clear_caches() after an init() that changes that"};
}

Error* Execute(CallFrame* frame) {
  const Api* api = frame->api;
  Call call;
  Operations operations;
  if (!ReadAttributes(frame->attributes, &call)) {
    return MakeError(api, {RUEDA_INTERNAL, "librueda_xla.so and rueda.jax are not of one version"});
  }
  if (!Borrow(frame->arguments, &operations.inputs) ||
      !Borrow(frame->results, &operations.outputs)) {
    return MakeError(api, {RUEDA_UNIMPLEMENTED, "'" + call.name + "': no tensor of this type"});
  }
  rueda_context* context = library.current_context();
  if (Failure failure = CheckContext(context, call); failure.status != RUEDA_OK) {
    return MakeError(api, failure);
  }
  Fill(call, &operations);
  CreateFutureArgs future = {sizeof(CreateFutureArgs), nullptr, nullptr};
  if (Error* error = api->create_future(&future); error != nullptr) return error;
  auto flight = std::make_unique<Flight>(Flight{api, future.future, context});
  rueda_completion completion = RUEDA_COMPLETION_INIT;
  completion.callback = &Land;
  completion.user = flight.get();
  rueda_handle handle = 0;
  const rueda_status status =
      library.submit(context, operations.all.data(), operations.all.size(), &completion, &handle);
  frame->future = future.future;
  if (status == RUEDA_OK) {
    flight.release();  // the callback's
    return nullptr;
  }
  SetErrorArgs args = {sizeof(SetErrorArgs), nullptr, future.future,
                       MakeError(api, {status, library.last_error()})};
  api->set_error(&args);
  return nullptr;
}

// ---- What XLA asks ----

// Whether this is a question about the handler, and no call.
bool AnswerMetadata(const CallFrame& frame) {
  if (frame.extensions == nullptr || frame.extensions->type != kMetadataExtension) return false;
  Metadata* metadata = reinterpret_cast<MetadataExtension*>(frame.extensions)->metadata;
  metadata->version.major = kMajorVersion;
  metadata->version.minor = minor_version;
  metadata->traits = 0;
  return true;
}

Failure CheckLayout(const CallFrame& frame) {
  if (frame.size >= RUEDA_XLA_SIZE(CallFrame, attributes) &&
      frame.api->size >= RUEDA_XLA_SIZE(Api, set_error)) {
    return {RUEDA_OK, ""};
  }
  return {RUEDA_UNIMPLEMENTED,
          "this jaxlib has XLA's FFI in version " + std::to_string(frame.api->version.major) + "." +
              std::to_string(frame.api->version.minor) + ", which lacks what is needed"};
}

}  // namespace
}  // namespace rueda::xla

extern "C" {

// XLA refuses handlers of a version that is newer than its own, and of one that is much older.
__attribute__((visibility("default"))) void rueda_xla_use(const void* const* functions, int minor) {
  rueda::xla::minor_version = minor;
  std::memcpy(&rueda::xla::library, functions, sizeof(rueda::xla::library));
}

__attribute__((visibility("default"))) rueda::xla::Error* rueda_xla_call(
    rueda::xla::CallFrame* frame) {
  using namespace rueda::xla;
  if (AnswerMetadata(*frame)) return nullptr;
  if (Failure failure = CheckLayout(*frame); failure.status != RUEDA_OK) {
    return MakeError(frame->api, failure);
  }
  if (frame->stage != kExecute) return nullptr;
  try {
    return Execute(frame);
  } catch (const std::exception& exception) {
    return MakeError(frame->api, {RUEDA_INTERNAL, exception.what()});
  }
}

}  // extern "C"
