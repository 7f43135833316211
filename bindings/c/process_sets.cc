// Process sets: adding, removing, joining, and who is in them.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "bindings/c/arguments.h"
#include "bindings/c/context.h"
#include "bindings/c/guard.h"

namespace rueda::capi {
namespace {

// Executes an operation without tensors and gives the number that it ends with.
absl::StatusOr<int64_t> ExecuteForValue(Runtime* runtime, const OperationArgs& args,
                                        int64_t timeout_ns) {
  if (timeout_ns < 0) return absl::InvalidArgumentError("a negative time-out");
  Handle handle = 0;
  absl::Status status = runtime->Execute(args, timeout_ns, &handle);
  int64_t value = -1;
  if (status.ok()) {
    RUEDA_ASSIGN_OR_RETURN(Request * request, runtime->Find(handle));
    value = request->value;
    runtime->Unreference(request);
  }
  if (handle != 0) runtime->Release(handle).IgnoreError();
  if (!status.ok()) return status;
  return value;
}

absl::Status Add(rueda_context* context, const int32_t* ranks, size_t count, int64_t timeout_ns,
                 int32_t* id) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  if (id == nullptr || (ranks == nullptr && count > 0)) {
    return absl::InvalidArgumentError("rueda_process_set_add: a null pointer");
  }
  *id = -1;
  OperationArgs args;
  args.kind = OpKind::kAddProcessSet;
  args.ranks.assign(ranks, ranks + count);
  const absl::StatusOr<int64_t> value = ExecuteForValue(runtime.get(), args, timeout_ns);
  if (absl::IsAlreadyExists(value.status())) *id = runtime->FindSet(args.ranks);
  RUEDA_RETURN_IF_ERROR(value.status());
  *id = static_cast<int32_t>(*value);
  return absl::OkStatus();
}

absl::Status Remove(rueda_context* context, int32_t id, int64_t timeout_ns) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  if (id == kWorldSet) {
    return absl::InvalidArgumentError("process set 0 is the world; it can't be removed");
  }
  OperationArgs args;
  args.kind = OpKind::kRemoveProcessSet;
  args.ranks = runtime->RanksOf(id);
  if (args.ranks.empty()) return absl::NotFoundError(absl::StrCat("there is no process set ", id));
  return ExecuteForValue(runtime.get(), args, timeout_ns).status();
}

absl::Status Join(rueda_context* context, int32_t process_set, int64_t timeout_ns,
                  int32_t* last_rank) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  OperationArgs args;
  args.kind = OpKind::kJoin;
  args.set = process_set;
  RUEDA_ASSIGN_OR_RETURN(const int64_t value, ExecuteForValue(runtime.get(), args, timeout_ns));
  if (last_rank != nullptr) *last_rank = static_cast<int32_t>(value);
  return absl::OkStatus();
}

int32_t Size(const rueda_context* context, int32_t id) {
  const absl::StatusOr<Call> runtime = RuntimeOf(context);
  const std::vector<Rank> ranks = runtime.ok() ? (*runtime)->RanksOf(id) : std::vector<Rank>();
  if (!ranks.empty()) return static_cast<int32_t>(ranks.size());
  Report(runtime.ok() ? absl::NotFoundError(absl::StrCat("there is no process set ", id))
                      : runtime.status());
  return -1;
}

int32_t RankIn(const rueda_context* context, int32_t id) {
  const absl::StatusOr<Call> runtime = RuntimeOf(context);
  if (!runtime.ok()) {
    Report(runtime.status());
    return -1;
  }
  const std::vector<Rank> ranks = (*runtime)->RanksOf(id);
  const auto it = std::lower_bound(ranks.begin(), ranks.end(), (*runtime)->rank());
  return it != ranks.end() && *it == (*runtime)->rank() ? static_cast<int32_t>(it - ranks.begin())
                                                        : -1;
}

}  // namespace
}  // namespace rueda::capi

extern "C" {

using namespace rueda;        // NOLINT: the definitions below belong to the C API
using namespace rueda::capi;  // NOLINT

rueda_status rueda_process_set_add(rueda_context* context, const int32_t* ranks, size_t count,
                                   int64_t timeout_ns, int32_t* id) {
  return Guard([&] { return capi::Add(context, ranks, count, timeout_ns, id); });
}

rueda_status rueda_process_set_remove(rueda_context* context, int32_t id, int64_t timeout_ns) {
  return Guard([&] { return capi::Remove(context, id, timeout_ns); });
}

rueda_status rueda_join(rueda_context* context, int32_t process_set, int64_t timeout_ns,
                        int32_t* last_rank) {
  return Guard([&] { return capi::Join(context, process_set, timeout_ns, last_rank); });
}

int32_t rueda_process_set_size(const rueda_context* context, int32_t id) {
  return GuardOr(-1, [&] { return capi::Size(context, id); });
}

int32_t rueda_process_set_rank(const rueda_context* context, int32_t id) {
  return GuardOr(-1, [&] { return capi::RankIn(context, id); });
}

rueda_status rueda_process_set_ranks(const rueda_context* context, int32_t id, int32_t* ranks,
                                     size_t capacity, size_t* count) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
    const std::vector<Rank> all = runtime->RanksOf(id);
    if (all.empty()) return absl::NotFoundError(absl::StrCat("there is no process set ", id));
    return WriteRanks("rueda_process_set_ranks", all, ranks, capacity, count);
  });
}

}  // extern "C"
