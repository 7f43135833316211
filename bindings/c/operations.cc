// Operations: from the caller's structs, every field checked, to the runtime's, and handles back.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "bindings/c/context.h"
#include "bindings/c/guard.h"
#include "bindings/c/utf8.h"

namespace rueda::capi {
namespace {

using Parts = absl::InlinedVector<PartArgs, 1>;
using Names = absl::InlinedVector<absl::string_view, 1>;

// "operation 2 ('w')": where in the caller's input something is wrong.
std::string Where(const rueda_operation& operation, size_t index) {
  return operation.name == nullptr
             ? absl::StrCat("operation ", index)
             : absl::StrCat("operation ", index, " ('",
                            absl::string_view(operation.name, strnlen(operation.name, 64)), "')");
}

// By our number.
const rueda_dtype kTheirDTypes[kDTypeCount] = {
    RUEDA_UINT8,         RUEDA_INT8,       RUEDA_INT32,   RUEDA_INT64,     RUEDA_FLOAT16,
    RUEDA_BFLOAT16,      RUEDA_FLOAT32,    RUEDA_FLOAT64, RUEDA_BOOL,      RUEDA_INT16,
    RUEDA_UINT16,        RUEDA_UINT32,     RUEDA_UINT64,  RUEDA_COMPLEX64, RUEDA_COMPLEX128,
    RUEDA_FLOAT8_E4M3FN, RUEDA_FLOAT8_E5M2};

rueda_dtype TheirDType(DType dtype) {
  return kTheirDTypes[static_cast<int>(dtype)];
}

absl::StatusOr<DType> DTypeOf(rueda_dtype dtype) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const rueda_dtype& theirs = kTheirDTypes[i];
    if (theirs.code == dtype.code && theirs.bits == dtype.bits && theirs.lanes == dtype.lanes) {
      return static_cast<DType>(i);
    }
  }
  std::string supported;
  for (int i = 0; i < kDTypeCount; ++i) {
    absl::StrAppend(&supported, i == 0 ? "" : ", ", DTypeName(static_cast<DType>(i)));
  }
  return absl::UnimplementedError(absl::StrCat("dtype with code ", dtype.code, ", ", dtype.bits,
                                               " bits and ", dtype.lanes, " lanes; supported are ",
                                               supported));
}

struct CheckedTensor {
  void* data;
  DType dtype;
  Shape shape;
};

absl::StatusOr<CheckedTensor> CheckTensor(const rueda_tensor& tensor) {
  if (tensor.device.type != RUEDA_CPU) {
    return absl::UnimplementedError(absl::StrCat("a tensor on DLPack device type ",
                                                 tensor.device.type,
                                                 "; this version moves CPU tensors only"));
  }
  CheckedTensor checked;
  RUEDA_ASSIGN_OR_RETURN(checked.dtype, DTypeOf(tensor.dtype));
  if (tensor.ndim < 0 || tensor.ndim > kDimsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("ndim is ", tensor.ndim, "; expected 0 to ", kDimsMax));
  }
  if (tensor.ndim > 0 && tensor.shape == nullptr) {
    return absl::InvalidArgumentError("the tensor's shape is null");
  }
  const absl::Span<const int64_t> dims(tensor.shape, static_cast<size_t>(tensor.ndim));
  RUEDA_RETURN_IF_ERROR(Shape::Validate(dims));
  checked.shape = Shape(dims);
  if (tensor.strides != nullptr && checked.shape.elements() > 1) {
    int64_t expected = 1;
    for (int i = tensor.ndim - 1; i >= 0; --i) {
      if (dims[i] != 1 && tensor.strides[i] != expected) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the tensor is not contiguous: dimension ", i, " has stride ", tensor.strides[i],
            " where row-major order has ", expected, "; copy it into a contiguous one"));
      }
      expected *= dims[i];
    }
  }
  checked.data =
      tensor.data == nullptr ? nullptr : static_cast<char*>(tensor.data) + tensor.byte_offset;
  return checked;
}

absl::Status CheckPart(const rueda_operation& operation, PartArgs* part) {
  if (operation.kind == RUEDA_BARRIER) return absl::OkStatus();
  if (operation.input == nullptr) return absl::InvalidArgumentError("`input` is null");
  RUEDA_ASSIGN_OR_RETURN(CheckedTensor input, CheckTensor(*operation.input));
  part->input = input.data;
  part->dtype = input.dtype;
  part->shape = std::move(input.shape);
  if (operation.output == nullptr) {
    if (operation.kind != RUEDA_ALLGATHER) part->output = input.data;
    return absl::OkStatus();
  }
  RUEDA_ASSIGN_OR_RETURN(CheckedTensor output, CheckTensor(*operation.output));
  if (output.dtype != part->dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("input is ", DTypeName(part->dtype), ", output is ", DTypeName(output.dtype)));
  }
  part->output = output.data;
  part->output_given = true;
  if (operation.kind == RUEDA_ALLGATHER) {
    if (output.data == nullptr && output.shape.elements() > 0) {
      return absl::InvalidArgumentError("the output's data pointer is null");
    }
    part->output_shape = std::move(output.shape);
  } else if (output.shape != part->shape) {
    return absl::InvalidArgumentError(absl::StrCat("input has shape ", part->shape.ToString(),
                                                   ", output ", output.shape.ToString()));
  }
  return absl::OkStatus();
}

absl::Status CheckName(const char* name, absl::string_view* out) {
  const size_t length = strnlen(name, kNameBytesMax + 1);
  if (length == 0) {
    return absl::InvalidArgumentError("the name is empty; null makes an operation unnamed");
  }
  if (length > kNameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name is longer than ", kNameBytesMax, " bytes"));
  }
  *out = absl::string_view(name, length);
  if (!IsUtf8(*out)) return absl::InvalidArgumentError("the name is not UTF-8");
  return absl::OkStatus();
}

// The number behind an enumerator that a caller wrote, which may be any.
template <typename E>
int NumberOf(const E& enumerator) {
  static_assert(sizeof(E) == sizeof(int));
  int number;
  memcpy(&number, &enumerator, sizeof number);
  return number;
}

absl::Status CheckOne(const rueda_operation& operation) {
  if (operation.size < sizeof(rueda_operation)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rueda_operation.size is ", operation.size,
                     "; initialise the struct with RUEDA_OPERATION_INIT"));
  }
  const int kind = NumberOf(operation.kind);
  if (kind < RUEDA_ALLREDUCE || kind > RUEDA_BARRIER) {
    return absl::InvalidArgumentError(absl::StrCat("kind ", kind, " is no kind of operation"));
  }
  const int reduce_op = NumberOf(operation.reduce_op);
  if (kind == RUEDA_ALLREDUCE && (reduce_op < RUEDA_SUM || reduce_op >= RUEDA_NO_REDUCE_OP)) {
    return absl::InvalidArgumentError(
        absl::StrCat("reduce_op ", reduce_op, " is no reduce operation"));
  }
  if (operation.priority != 0 || operation.flags != 0 || operation.compressor != nullptr) {
    return absl::InvalidArgumentError("priority, flags and compressor are reserved: 0, 0 and null");
  }
  if (const rueda_exec* exec = operation.exec; exec != nullptr) {
    if (exec->size < sizeof(rueda_exec)) {
      return absl::InvalidArgumentError("initialise rueda_exec with RUEDA_EXEC_INIT");
    }
    if (exec->device.type != RUEDA_CPU || exec->stream != nullptr || exec->ready_event != nullptr) {
      return absl::UnimplementedError("this version runs on the CPU only: no streams, no events");
    }
  }
  return absl::OkStatus();
}

// In a group everything but tensors and names must be alike.
bool Alike(const rueda_operation& a, const rueda_operation& b) {
  return a.kind == b.kind && a.process_set == b.process_set &&
         NumberOf(a.reduce_op) == NumberOf(b.reduce_op) && a.root == b.root &&
         a.prescale == b.prescale && a.postscale == b.postscale && a.allocate == b.allocate &&
         a.allocate_user == b.allocate_user && (a.name == nullptr) == (b.name == nullptr);
}

absl::Status Check(const rueda_operation* operations, size_t count, Parts* parts, Names* names,
                   OperationArgs* args) {
  if (operations == nullptr || count == 0) {
    return absl::InvalidArgumentError("no operations were given");
  }
  if (count > static_cast<size_t>(kGroupTensorsMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a group of ", count, " tensors; at most ", kGroupTensorsMax));
  }
  const auto at = [&](size_t i) -> const rueda_operation& {
    return *reinterpret_cast<const rueda_operation*>(reinterpret_cast<const char*>(operations) +
                                                     i * operations[0].size);
  };
  for (size_t i = 0; i < count; ++i) {
    const rueda_operation& operation = at(i);
    PartArgs part;
    absl::string_view name;
    absl::Status status = CheckOne(operation);
    if (status.ok() && operation.size != operations[0].size) {
      status = absl::InvalidArgumentError("the operations of a group differ in `size`");
    }
    if (status.ok() && i > 0 && !Alike(at(0), operation)) {
      status = absl::InvalidArgumentError(
          "in a group kind, process set, reduce_op, root, scale factors and allocator must be "
          "equal, "
          "and all operations named or none");
    }
    if (status.ok() && count > 1 && operation.kind != RUEDA_ALLREDUCE &&
        operation.kind != RUEDA_ALLGATHER) {
      status = absl::InvalidArgumentError("only allreduces and allgathers form groups");
    }
    if (status.ok()) status = CheckPart(operation, &part);
    if (status.ok() && operation.name != nullptr) status = CheckName(operation.name, &name);
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(Where(operation, i), ": ", status.message()));
    }
    if (operation.kind != RUEDA_BARRIER) parts->push_back(std::move(part));
    if (operation.name != nullptr) names->push_back(name);
  }
  const rueda_operation& first = at(0);
  args->kind = static_cast<OpKind>(first.kind);
  args->set = first.process_set;
  if (first.kind == RUEDA_ALLREDUCE) {
    args->reduce_op = static_cast<ReduceOp>(first.reduce_op);
    args->prescale = first.prescale;
    args->postscale = first.postscale;
  }
  if (first.kind == RUEDA_BROADCAST) args->root = first.root;
  args->parts = *parts;
  args->names = *names;
  args->allocate = first.allocate;
  args->allocate_user = first.allocate_user;
  return absl::OkStatus();
}

static_assert(static_cast<int>(OpKind::kAllreduce) == RUEDA_ALLREDUCE);
static_assert(static_cast<int>(OpKind::kBroadcast) == RUEDA_BROADCAST);
static_assert(static_cast<int>(OpKind::kAllgather) == RUEDA_ALLGATHER);
static_assert(static_cast<int>(OpKind::kBarrier) == RUEDA_BARRIER);
static_assert(static_cast<int>(ReduceOp::kSum) == RUEDA_SUM);
static_assert(static_cast<int>(ReduceOp::kAverage) == RUEDA_AVERAGE);
static_assert(static_cast<int>(ReduceOp::kMin) == RUEDA_MIN);
static_assert(static_cast<int>(ReduceOp::kMax) == RUEDA_MAX);
static_assert(static_cast<int>(ReduceOp::kProduct) == RUEDA_PRODUCT);
static_assert(static_cast<int>(ReduceOp::kBitAnd) == RUEDA_BAND);
static_assert(static_cast<int>(ReduceOp::kBitOr) == RUEDA_BOR);
static_assert(static_cast<int>(ReduceOp::kBitXor) == RUEDA_BXOR);
static_assert(static_cast<int>(ReduceOp::kAdasum) == RUEDA_ADASUM);
static_assert(static_cast<int>(ReduceOp::kAverageLive) == RUEDA_AVERAGE_LIVE);
static_assert(static_cast<int>(ReduceOp::kNone) == RUEDA_NO_REDUCE_OP);

absl::Status Submit(rueda_context* context, const rueda_operation* operations, size_t count,
                    const rueda_completion* completion, rueda_handle* handle) {
  RUEDA_ASSIGN_OR_RETURN(Runtime * runtime, RuntimeOf(context));
  if (handle == nullptr) return absl::InvalidArgumentError("rueda_submit: `handle` is null");
  *handle = 0;
  Parts parts;
  Names names;
  OperationArgs args;
  RUEDA_RETURN_IF_ERROR(Check(operations, count, &parts, &names, &args));
  if (completion != nullptr) {
    if (completion->size < sizeof(rueda_completion) || completion->callback == nullptr) {
      return absl::InvalidArgumentError(
          "initialise rueda_completion with RUEDA_COMPLETION_INIT, and give it a callback");
    }
    if ((completion->flags & ~static_cast<uint32_t>(RUEDA_COMPLETION_INLINE)) != 0) {
      return absl::InvalidArgumentError("unknown bits in rueda_completion.flags");
    }
    args.callback = reinterpret_cast<CallbackFn>(completion->callback);
    args.callback_user = completion->user;
    args.callback_inline = (completion->flags & RUEDA_COMPLETION_INLINE) != 0;
  }
  RUEDA_ASSIGN_OR_RETURN(*handle, runtime->Submit(args));
  return absl::OkStatus();
}

// A callback gets the status as the C API's enum; both are ints of the same values.
static_assert(sizeof(absl::StatusCode) == sizeof(rueda_status));

absl::Status Execute(rueda_context* context, const rueda_operation* operations, size_t count,
                     int64_t timeout_ns, rueda_handle* handle) {
  RUEDA_ASSIGN_OR_RETURN(Runtime * runtime, RuntimeOf(context));
  if (handle != nullptr) *handle = 0;
  if (timeout_ns < 0) return absl::InvalidArgumentError("rueda_execute: a negative time-out");
  Parts parts;
  Names names;
  OperationArgs args;
  RUEDA_RETURN_IF_ERROR(Check(operations, count, &parts, &names, &args));
  Handle own = 0;
  absl::Status status = runtime->Execute(std::move(args), timeout_ns, &own);
  if (handle != nullptr) {
    *handle = own;
  } else if (own != 0) {
    runtime->Release(own).IgnoreError();
  }
  return status;
}

absl::Status AddProcessSet(rueda_context* context, const int32_t* ranks, size_t count,
                           int64_t timeout_ns, int32_t* id) {
  RUEDA_ASSIGN_OR_RETURN(Runtime * runtime, RuntimeOf(context));
  if (id == nullptr || (ranks == nullptr && count > 0)) {
    return absl::InvalidArgumentError("rueda_process_set_add: a null pointer");
  }
  if (timeout_ns < 0)
    return absl::InvalidArgumentError("rueda_process_set_add: a negative time-out");
  *id = -1;
  OperationArgs args;
  args.kind = OpKind::kAddProcessSet;
  args.ranks.assign(ranks, ranks + count);
  Handle handle = 0;
  absl::Status status = runtime->Execute(std::move(args), timeout_ns, &handle);
  if (status.ok()) {
    RUEDA_ASSIGN_OR_RETURN(Request * request, runtime->Find(handle));
    *id = request->new_set;
    runtime->Unreference(request);
  }
  if (handle != 0) runtime->Release(handle).IgnoreError();
  return status;
}

absl::Status HandleError(rueda_context* context, rueda_handle handle, rueda_error* error) {
  RUEDA_ASSIGN_OR_RETURN(Runtime * runtime, RuntimeOf(context));
  if (error == nullptr || error->size < sizeof(rueda_error)) {
    return absl::InvalidArgumentError("initialise rueda_error with RUEDA_ERROR_INIT");
  }
  RUEDA_ASSIGN_OR_RETURN(Request * request, runtime->Find(handle));
  if (!request->is_done()) {
    runtime->Unreference(request);
    return absl::FailedPreconditionError("the operation has not ended yet");
  }
  const absl::Status status = DeepCopy(request->status);
  const FailurePtr failure = request->failure;
  runtime->Unreference(request);
  const size_t size = error->size;
  *error = RUEDA_ERROR_INIT;
  error->size = size;
  error->code = static_cast<rueda_status>(status.code());
  error->epoch = runtime->world().epoch;
  if (status.ok()) return absl::OkStatus();
  MutexLock lock(context->errors_mutex);
  std::unique_ptr<rueda_context::ErrorStrings>& strings = context->errors[handle];
  if (strings == nullptr) {
    strings = std::make_unique<rueda_context::ErrorStrings>();
    strings->message = std::string(status.message());
    if (failure != nullptr) {
      strings->host = failure->host;
      strings->cause = failure->cause;
      strings->operation = failure->operation;
      strings->tensor = failure->tensor;
    }
  }
  if (failure != nullptr) {
    error->recoverable = failure->recoverable;
    error->rank = failure->rank;
    error->pid = failure->pid;
  }
  error->host = strings->host.c_str();
  error->cause = strings->cause.c_str();
  error->operation = strings->operation.c_str();
  error->tensor = strings->tensor.c_str();
  error->message = strings->message.c_str();
  return absl::OkStatus();
}

absl::Status Release(rueda_context* context, rueda_handle handle) {
  RUEDA_ASSIGN_OR_RETURN(Runtime * runtime, RuntimeOf(context));
  RUEDA_RETURN_IF_ERROR(runtime->Release(handle));
  MutexLock lock(context->errors_mutex);
  if (!context->errors.empty()) context->errors.erase(handle);
  return absl::OkStatus();
}

// What a taken result keeps alive.
struct ResultOwner {
  std::vector<int64_t> shape;
  OutputMemory memory;
};

absl::Status TakeFrom(Request* request, size_t index, rueda_result* result) {
  if (!request->is_done()) return absl::FailedPreconditionError("the operation has not ended yet");
  if (!request->status.ok()) return DeepCopy(request->status);
  if (index >= request->output_shapes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("result ", index, " of an operation with ", request->output_shapes.size(),
                     " results; only allgathers have results to take"));
  }
  OutputMemory& memory = request->outputs[index];
  if (memory.taken) return absl::FailedPreconditionError("this result has been taken already");
  memory.taken = true;
  auto owner = std::make_unique<ResultOwner>();
  const absl::Span<const int64_t> dims = request->output_shapes[index].dims();
  owner->shape.assign(dims.begin(), dims.end());
  owner->memory = std::move(memory);
  memory.taken = true;
  result->tensor = {request->parts[index].output,
                    {RUEDA_CPU, 0},
                    static_cast<int32_t>(dims.size()),
                    TheirDType(request->parts[index].dtype),
                    owner->shape.data(),
                    nullptr,
                    0};
  result->owner = owner.release();
  return absl::OkStatus();
}

}  // namespace
}  // namespace rueda::capi

extern "C" {

using namespace rueda;        // NOLINT: the definitions below belong to the C API
using namespace rueda::capi;  // NOLINT

rueda_status rueda_submit(rueda_context* context, const rueda_operation* operations, size_t count,
                          const rueda_completion* completion, rueda_handle* handle) {
  return Guard([&] { return capi::Submit(context, operations, count, completion, handle); });
}

rueda_status rueda_execute(rueda_context* context, const rueda_operation* operations, size_t count,
                           int64_t timeout_ns, rueda_handle* handle) {
  return Guard([&] { return capi::Execute(context, operations, count, timeout_ns, handle); });
}

rueda_status rueda_process_set_add(rueda_context* context, const int32_t* ranks, size_t count,
                                   int64_t timeout_ns, int32_t* id) {
  return Guard([&] { return AddProcessSet(context, ranks, count, timeout_ns, id); });
}

rueda_status rueda_poll(rueda_context* context, rueda_handle handle, int32_t* done) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(Runtime * runtime, RuntimeOf(context));
    if (done == nullptr) return absl::InvalidArgumentError("rueda_poll: `done` is null");
    RUEDA_ASSIGN_OR_RETURN(const bool is_done, runtime->Poll(handle));
    *done = is_done ? 1 : 0;
    return absl::OkStatus();
  });
}

rueda_status rueda_wait(rueda_context* context, rueda_handle handle, int64_t timeout_ns) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(Runtime * runtime, RuntimeOf(context));
    if (timeout_ns < 0) return absl::InvalidArgumentError("rueda_wait: a negative time-out");
    return runtime->Wait(handle, timeout_ns);
  });
}

rueda_status rueda_wait_on_stream(rueda_context* context, rueda_handle handle, void* stream) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(Runtime * runtime, RuntimeOf(context));
    if (stream != nullptr) {
      return absl::UnimplementedError(
          "operations of this version run on the CPU and have no stream");
    }
    return runtime->Wait(handle, kForever);
  });
}

rueda_status rueda_release(rueda_context* context, rueda_handle handle) {
  return Guard([&] { return capi::Release(context, handle); });
}

rueda_status rueda_handle_error(rueda_context* context, rueda_handle handle, rueda_error* error) {
  return Guard([&] { return HandleError(context, handle, error); });
}

rueda_status rueda_result_take(rueda_context* context, rueda_handle handle, size_t index,
                               rueda_result* result) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(Runtime * runtime, RuntimeOf(context));
    if (result == nullptr || result->size < sizeof(rueda_result)) {
      return absl::InvalidArgumentError("initialise rueda_result with RUEDA_RESULT_INIT");
    }
    RUEDA_ASSIGN_OR_RETURN(Request * request, runtime->Find(handle));
    const absl::Status status = TakeFrom(request, index, result);
    runtime->Unreference(request);
    return status;
  });
}

void rueda_result_free(rueda_result* result) {
  if (result == nullptr) return;
  delete static_cast<ResultOwner*>(result->owner);
  const size_t size = result->size;
  *result = RUEDA_RESULT_INIT;
  result->size = size;
}

}  // extern "C"
