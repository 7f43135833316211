// What compression remembers, saved and loaded.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "bindings/c/context.h"
#include "bindings/c/guard.h"
#include "bindings/c/results.h"
#include "bindings/c/structs.h"

namespace rueda::capi {
namespace {

absl::StatusOr<std::vector<Rank>> MembersOf(const Runtime& runtime, int32_t process_set) {
  std::vector<Rank> ranks = runtime.RanksOf(process_set);
  if (std::find(ranks.begin(), ranks.end(), runtime.rank()) != ranks.end()) return ranks;
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", runtime.rank(), " is not in a process set ", process_set));
}

absl::Status Save(rueda_context* context, int32_t process_set, rueda_result* result) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  RUEDA_RETURN_IF_ERROR(CheckStruct(result));
  RUEDA_RETURN_IF_ERROR(MembersOf(*runtime, process_set).status());
  RUEDA_ASSIGN_OR_RETURN(const std::string bytes, runtime->compression().Save(process_set));
  return GiveBytes(bytes, result);
}

absl::Status Load(rueda_context* context, int32_t process_set, const void* const* data,
                  const size_t* bytes, size_t count) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  RUEDA_ASSIGN_OR_RETURN(const std::vector<Rank> ranks, MembersOf(*runtime, process_set));
  if (count == 0 || data == nullptr || bytes == nullptr) {
    return absl::InvalidArgumentError("rueda_compression_load: nothing was given");
  }
  std::vector<absl::string_view> saved;
  for (size_t i = 0; i < count; ++i) {
    if (data[i] == nullptr && bytes[i] > 0) {
      return absl::InvalidArgumentError(absl::StrCat("`data[", i, "]` is null"));
    }
    saved.emplace_back(static_cast<const char*>(data[i]), bytes[i]);
  }
  const auto self = std::find(ranks.begin(), ranks.end(), runtime->rank()) - ranks.begin();
  return runtime->compression().Load(process_set, saved, static_cast<int>(ranks.size()),
                                     static_cast<int>(self));
}

}  // namespace
}  // namespace rueda::capi

extern "C" {

rueda_status rueda_compression_save(rueda_context* context, int32_t process_set,
                                    rueda_result* result) {
  return rueda::capi::Guard([&] { return rueda::capi::Save(context, process_set, result); });
}

rueda_status rueda_compression_load(rueda_context* context, int32_t process_set,
                                    const void* const* data, const size_t* bytes, size_t count) {
  return rueda::capi::Guard(
      [&] { return rueda::capi::Load(context, process_set, data, bytes, count); });
}

}  // extern "C"
