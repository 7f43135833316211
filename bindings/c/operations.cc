// Operations: submitting, waiting, handles, and how they failed.
#include "absl/strings/str_cat.h"
#include "bindings/c/arguments.h"
#include "bindings/c/context.h"
#include "bindings/c/guard.h"
#include "bindings/c/structs.h"

namespace rueda::capi {
namespace {

// Checks a caller's operations.
absl::Status Read(Runtime* runtime, const rueda_operation* operations, size_t count,
                  CheckedOperations* checked) {
  RUEDA_RETURN_IF_ERROR(CheckOperations(operations, count, runtime->rank(), checked));
  if (checked->args.device == DeviceType::kCpu) return absl::OkStatus();
  absl::StatusOr<DeviceClaim> claim = runtime->PrepareOnDevice(checked->exec, &checked->args);
  if (claim.ok()) {
    checked->claim = *std::move(claim);
    return absl::OkStatus();
  }
  if (operations[0].name == nullptr) return claim.status();
  return StatusAt(absl::StrCat("'", operations[0].name, "'"), claim.status());
}

// As ReadStruct.
absl::Status ReadCompletion(rueda_completion* copy, const rueda_completion** completion) {
  RUEDA_RETURN_IF_ERROR(ReadStruct(*completion, copy, completion));
  if ((*completion)->callback == nullptr) {
    return absl::InvalidArgumentError("rueda_completion has no callback");
  }
  const uint32_t flags = (*completion)->flags;
  if ((flags & ~static_cast<uint32_t>(RUEDA_COMPLETION_INLINE)) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("unknown bits in rueda_completion.flags: ", flags,
                                                 "; known is RUEDA_COMPLETION_INLINE (1)"));
}

absl::Status Submit(rueda_context* context, const rueda_operation* operations, size_t count,
                    const rueda_completion* completion, rueda_handle* handle) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  if (handle == nullptr) return absl::InvalidArgumentError("rueda_submit: `handle` is null");
  *handle = 0;
  CheckedOperations checked;
  RUEDA_RETURN_IF_ERROR(Read(runtime.get(), operations, count, &checked));
  OperationArgs& args = checked.args;
  if (completion != nullptr) {
    rueda_completion copy;
    RUEDA_RETURN_IF_ERROR(ReadCompletion(&copy, &completion));
    args.callback = reinterpret_cast<CallbackFn>(completion->callback);
    args.callback_user = completion->user;
    args.callback_inline = (completion->flags & RUEDA_COMPLETION_INLINE) != 0;
  }
  RUEDA_ASSIGN_OR_RETURN(*handle, runtime->Submit(args));
  checked.claim.Keep();
  return absl::OkStatus();
}

// A callback gets the status as the C API's enum; both are ints of the same values.
static_assert(sizeof(absl::StatusCode) == sizeof(rueda_status));

absl::Status Execute(rueda_context* context, const rueda_operation* operations, size_t count,
                     int64_t timeout_ns, rueda_handle* handle) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  if (handle != nullptr) *handle = 0;
  if (timeout_ns < 0) return absl::InvalidArgumentError("rueda_execute: a negative time-out");
  if (handle == nullptr && timeout_ns != kForever) {
    return absl::InvalidArgumentError(
        "rueda_execute: a time-out without a handle. An operation that has not ended by then goes "
        "on and uses its tensors' memory, and only its handle tells until when: give `handle`, or "
        "RUEDA_FOREVER");
  }
  CheckedOperations checked;
  RUEDA_RETURN_IF_ERROR(Read(runtime.get(), operations, count, &checked));
  OperationArgs& args = checked.args;
  Handle own = 0;
  absl::Status status = runtime->Execute(std::move(args), timeout_ns, &own);
  if (own != 0) checked.claim.Keep();
  const bool keeps =
      handle != nullptr && !(status.ok() && (operations[0].flags & RUEDA_OPERATION_RELEASE) != 0);
  if (keeps) {
    *handle = own;
  } else if (own != 0) {
    runtime->Release(own).IgnoreError();
  }
  return status;
}

absl::Status OnCompletion(rueda_context* context, rueda_handle handle,
                          const rueda_completion* completion) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  if (context->shut_down.load(std::memory_order_relaxed)) {
    return absl::FailedPreconditionError("this context has shut down");
  }
  rueda_completion copy;
  RUEDA_RETURN_IF_ERROR(ReadCompletion(&copy, &completion));
  if (completion->flags != 0) {
    return absl::InvalidArgumentError(
        "rueda_on_completion: RUEDA_COMPLETION_INLINE is for rueda_submit only");
  }
  return runtime->CallAtEnd(handle, reinterpret_cast<CallbackFn>(completion->callback),
                            completion->user);
}

// How something ended. `strings` keeps the words.
rueda_error ErrorOf(const absl::Status& status, const Failure* failure, uint64_t membership,
                    rueda_context::ErrorStrings* strings) {
  rueda_error error = RUEDA_ERROR_INIT;
  error.code = static_cast<rueda_status>(status.code());
  error.membership = membership;
  if (status.ok()) return error;
  if (strings->message.empty()) {
    strings->message = std::string(status.message());
    if (failure != nullptr) {
      strings->host = failure->host;
      strings->cause = failure->cause;
      strings->operation = failure->operation;
      strings->tensor = failure->tensor;
    }
  }
  if (failure != nullptr) {
    error.recoverable = failure->recoverable;
    error.rank = failure->whose();
    error.pid = failure->pid;
  }
  error.host = strings->host.c_str();
  error.cause = strings->cause.c_str();
  error.operation = strings->operation.c_str();
  error.tensor = strings->tensor.c_str();
  error.message = strings->message.c_str();
  return error;
}

absl::Status HandleError(rueda_context* context, rueda_handle handle, rueda_error* error) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  RUEDA_RETURN_IF_ERROR(CheckStruct(error));
  RUEDA_ASSIGN_OR_RETURN(Request * request, runtime->Find(handle));
  if (!request->is_done()) {
    runtime->Unreference(request);
    return absl::FailedPreconditionError("the operation has not ended yet");
  }
  const absl::Status status = DeepCopy(request->status);
  const FailurePtr failure = request->failure;
  const uint64_t membership = request->membership;
  const SpecPtr spec = request->spec;
  runtime->Unreference(request);
  MutexLock lock(context->errors_mutex);
  std::unique_ptr<rueda_context::ErrorStrings>& strings = context->errors[handle];
  if (strings == nullptr) {
    strings = std::make_unique<rueda_context::ErrorStrings>();
    if (!status.ok() && failure == nullptr) {  // nobody else's doing is to be told
      strings->operation = std::string(OpKindName(spec->signature.kind));
      strings->tensor = spec->name;
    }
  }
  WriteStruct(ErrorOf(status, failure.get(), membership, strings.get()), error);
  return absl::OkStatus();
}

absl::Status ContextError(rueda_context* context, rueda_error* error) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  RUEDA_RETURN_IF_ERROR(CheckStruct(error));
  const FailurePtr failure = runtime->failure();
  MutexLock lock(context->errors_mutex);
  WriteStruct(ErrorOf(failure == nullptr ? absl::OkStatus() : failure->ToStatus(), failure.get(),
                      runtime->world().membership, &context->own_error),
              error);
  return absl::OkStatus();
}

absl::Status Release(rueda_context* context, rueda_handle handle) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  RUEDA_RETURN_IF_ERROR(runtime->Release(handle));
  MutexLock lock(context->errors_mutex);
  if (!context->errors.empty()) context->errors.erase(handle);
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

rueda_status rueda_poll(rueda_context* context, rueda_handle handle, int32_t* done) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
    if (done == nullptr) return absl::InvalidArgumentError("rueda_poll: `done` is null");
    RUEDA_ASSIGN_OR_RETURN(const bool is_done, runtime->Poll(handle));
    *done = is_done ? 1 : 0;
    return absl::OkStatus();
  });
}

rueda_status rueda_wait(rueda_context* context, rueda_handle handle, int64_t timeout_ns) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
    if (timeout_ns < 0) return absl::InvalidArgumentError("rueda_wait: a negative time-out");
    return runtime->Wait(handle, timeout_ns);
  });
}

rueda_status rueda_explain(rueda_context* context, rueda_handle handle) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
    return runtime->Explain(handle);
  });
}

rueda_status rueda_wait_or_abort(rueda_context* context, rueda_handle handle, const char* why) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
    return runtime->WaitOrAbort(handle, why == nullptr ? "its caller can't wait" : why);
  });
}

rueda_status rueda_on_completion(rueda_context* context, rueda_handle handle,
                                 const rueda_completion* completion) {
  return Guard([&] { return OnCompletion(context, handle, completion); });
}

rueda_status rueda_wait_on_stream(rueda_context* context, rueda_handle handle, void* stream) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
    return runtime->WaitOnStream(handle, stream);
  });
}

rueda_status rueda_local_device(rueda_context* context, int32_t type, rueda_device* device) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
    if (device == nullptr)
      return absl::InvalidArgumentError("rueda_local_device: `device` is null");
    if (context->shut_down.load(std::memory_order_relaxed)) {
      return absl::FailedPreconditionError("this context has shut down");
    }
    RUEDA_ASSIGN_OR_RETURN(const DeviceType ours, DeviceTypeOf(type));
    int index = 0;
    if (ours != DeviceType::kCpu) {
      RUEDA_ASSIGN_OR_RETURN(index, runtime->device().Proposed());
    }
    *device = TheirDevice(ours, index);
    return absl::OkStatus();
  });
}

rueda_status rueda_release(rueda_context* context, rueda_handle handle) {
  return Guard([&] { return capi::Release(context, handle); });
}

rueda_status rueda_context_error(rueda_context* context, rueda_error* error) {
  return Guard([&] { return ContextError(context, error); });
}

rueda_status rueda_handle_error(rueda_context* context, rueda_handle handle, rueda_error* error) {
  return Guard([&] { return HandleError(context, handle, error); });
}

}  // extern "C"
