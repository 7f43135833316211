// Results of unknown size, and strings of bytes, which are such results.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bindings/c/arguments.h"
#include "bindings/c/context.h"
#include "bindings/c/guard.h"
#include "bindings/c/results.h"
#include "bindings/c/structs.h"

namespace rueda::capi {
namespace {

// What a taken result keeps alive.
struct ResultOwner {
  std::vector<int64_t> shape;
  OutputMemory memory;
};

// Whether the request has ended well, or is on its device's stream, and has such a result.
absl::Status CheckResult(const Request& request, size_t index) {
  if (!request.is_enqueued()) {
    return absl::FailedPreconditionError("the operation has not ended yet");
  }
  if (!request.local_error.ok()) return DeepCopy(request.local_error);
  if (request.is_done() && !request.status.ok()) return DeepCopy(request.status);
  if (index < request.output_shapes.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("result ", index, " of ", OpKindName(request.spec->signature.kind),
                   ", which has ", request.output_shapes.size(), " results of its own here"));
}

absl::Status TakeFrom(Request* request, size_t index, rueda_result* result) {
  RUEDA_RETURN_IF_ERROR(CheckResult(*request, index));
  OutputMemory& memory = request->outputs[index];
  if (memory.taken) return absl::FailedPreconditionError("this result has been taken already");
  memory.taken = true;
  auto owner = std::make_unique<ResultOwner>();
  const absl::Span<const int64_t> dims = request->output_shapes[index].dims();
  owner->shape.assign(dims.begin(), dims.end());
  owner->memory = std::move(memory);
  memory.taken = true;
  rueda_result given = RUEDA_RESULT_INIT;
  given.tensor = {request->parts[index].output,
                  TheirDevice(request->spec->signature.device, request->device),
                  static_cast<int32_t>(dims.size()),
                  TheirDType(request->parts[index].dtype),
                  owner->shape.data(),
                  nullptr,
                  0};
  given.owner = owner.release();
  WriteStruct(given, result);
  return absl::OkStatus();
}

absl::Status Splits(const Request& request, size_t index, int64_t* splits, size_t capacity,
                    size_t* count) {
  RUEDA_RETURN_IF_ERROR(CheckResult(request, index));
  const std::vector<int64_t>& rows = request.output_splits[index];
  std::copy_n(rows.begin(), std::min(capacity, rows.size()), splits);
  *count = rows.size();
  return absl::OkStatus();
}

// Gathers a string of bytes from every rank of the set, and gives what `fn` makes of the request.
template <typename Fn>
absl::Status GatherBytes(Runtime* runtime, int32_t process_set, const char* name, const void* data,
                         size_t bytes, Fn fn) {
  const int64_t shape[] = {static_cast<int64_t>(bytes)};
  rueda_tensor tensor = {const_cast<void*>(data),     {RUEDA_CPU, 0}, 1, RUEDA_UINT8,
                         const_cast<int64_t*>(shape), nullptr,        0};
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_ALLGATHER;
  operation.process_set = process_set;
  operation.name = name;
  operation.input = &tensor;
  CheckedOperations checked;
  RUEDA_RETURN_IF_ERROR(CheckOperations(&operation, 1, runtime->rank(), &checked));
  Handle handle = 0;
  absl::Status status = runtime->Execute(checked.args, kForever, &handle);
  if (status.ok()) {
    RUEDA_ASSIGN_OR_RETURN(Request * request, runtime->Find(handle));
    status = fn(request);
    runtime->Unreference(request);
  }
  if (handle != 0) runtime->Release(handle).IgnoreError();
  return status;
}

absl::Status BroadcastBytes(rueda_context* context, int32_t process_set, const char* name,
                            int32_t root, const void* data, size_t bytes, rueda_result* result) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  RUEDA_RETURN_IF_ERROR(CheckStruct(result));
  const std::vector<Rank> ranks = runtime->RanksOf(process_set);
  const auto place = std::lower_bound(ranks.begin(), ranks.end(), root);
  if (!ranks.empty() && (place == ranks.end() || *place != root)) {
    return absl::InvalidArgumentError(absl::StrCat("root ", root, " is not a rank of process set ",
                                                   process_set, " {", absl::StrJoin(ranks, ", "),
                                                   "}"));
  }
  const size_t given = runtime->rank() == root ? bytes : 0;
  return GatherBytes(runtime.get(), process_set, name, data, given, [&](Request* request) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      const bool joined =
          std::binary_search(request->absent.begin(), request->absent.end(), static_cast<int>(i));
      if (ranks[i] == root && joined) {
        return absl::FailedPreconditionError(
            absl::StrCat("broadcast of bytes: rank ", root,
                         " has joined and can't be the root until all ranks have joined"));
      }
      if (ranks[i] == root || request->output_splits[0][i] == 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("broadcast of bytes: the ranks disagree on the root: rank ", runtime->rank(),
                       " says ", root, ", rank ", ranks[i], " says ", ranks[i]));
    }
    return TakeFrom(request, 0, result);
  });
}

absl::Status AllgatherBytes(rueda_context* context, int32_t process_set, const char* name,
                            const void* data, size_t bytes, rueda_result* result, int64_t* sizes) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  RUEDA_RETURN_IF_ERROR(CheckStruct(result));
  if (sizes == nullptr) return absl::InvalidArgumentError("`sizes` is null");
  return GatherBytes(runtime.get(), process_set, name, data, bytes, [&](Request* request) {
    const std::vector<int64_t>& rows = request->output_splits[0];
    std::copy(rows.begin(), rows.end(), sizes);
    return TakeFrom(request, 0, result);
  });
}

}  // namespace

absl::Status GiveBytes(absl::string_view bytes, rueda_result* result) {
  auto owner = std::make_unique<ResultOwner>();
  owner->shape.push_back(static_cast<int64_t>(bytes.size()));
  owner->memory.data.reset(malloc(std::max<size_t>(bytes.size(), 1)), &free);
  if (owner->memory.data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes.size(), " bytes"));
  }
  memcpy(owner->memory.data.get(), bytes.data(), bytes.size());
  rueda_result given = RUEDA_RESULT_INIT;
  given.tensor = {owner->memory.data.get(), {RUEDA_CPU, 0}, 1, RUEDA_UINT8,
                  owner->shape.data(),      nullptr,        0};
  given.owner = owner.release();
  WriteStruct(given, result);
  return absl::OkStatus();
}

}  // namespace rueda::capi

extern "C" {

using namespace rueda;        // NOLINT: the definitions below belong to the C API
using namespace rueda::capi;  // NOLINT

rueda_status rueda_result_take(rueda_context* context, rueda_handle handle, size_t index,
                               rueda_result* result) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
    RUEDA_RETURN_IF_ERROR(CheckStruct(result));
    RUEDA_ASSIGN_OR_RETURN(Request * request, runtime->Find(handle));
    const absl::Status status = TakeFrom(request, index, result);
    runtime->Unreference(request);
    return status;
  });
}

void rueda_result_free(rueda_result* result) {
  (void)Guard([&]() -> absl::Status {
    if (result == nullptr) return absl::OkStatus();
    RUEDA_RETURN_IF_ERROR(CheckStruct(result));
    delete static_cast<ResultOwner*>(result->owner);
    WriteStruct(kVersions<rueda_result>.defaults, result);
    return absl::OkStatus();
  });
}

rueda_status rueda_result_splits(rueda_context* context, rueda_handle handle, size_t index,
                                 int64_t* splits, size_t capacity, size_t* count) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
    if (count == nullptr || (splits == nullptr && capacity > 0)) {
      return absl::InvalidArgumentError("rueda_result_splits: a null pointer");
    }
    RUEDA_ASSIGN_OR_RETURN(Request * request, runtime->Find(handle));
    const absl::Status status = Splits(*request, index, splits, capacity, count);
    runtime->Unreference(request);
    return status;
  });
}

rueda_status rueda_broadcast_bytes(rueda_context* context, int32_t process_set, const char* name,
                                   int32_t root, const void* data, size_t bytes,
                                   rueda_result* result) {
  return Guard(
      [&] { return BroadcastBytes(context, process_set, name, root, data, bytes, result); });
}

rueda_status rueda_allgather_bytes(rueda_context* context, int32_t process_set, const char* name,
                                   const void* data, size_t bytes, rueda_result* result,
                                   int64_t* sizes) {
  return Guard(
      [&] { return AllgatherBytes(context, process_set, name, data, bytes, result, sizes); });
}

}  // extern "C"
