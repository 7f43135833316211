// PURE
#include "controller/membership/process_sets.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/limits.h"

namespace rueda {

int ProcessSet::IndexOf(Rank rank) const {
  // The world, and any set of the lowest ranks, without a search.
  if (rank >= 0 && rank < size() && ranks[rank] == rank) return rank;
  const auto it = std::lower_bound(ranks.begin(), ranks.end(), rank);
  return it != ranks.end() && *it == rank ? static_cast<int>(it - ranks.begin()) : -1;
}

ProcessSetTable::ProcessSetTable(int world_size) {
  auto world = std::make_unique<ProcessSet>();
  for (Rank rank = 0; rank < world_size; ++rank) world->ranks.push_back(rank);
  sets_.push_back(std::move(world));
}

const ProcessSet* ProcessSetTable::Find(SetId id) const {
  return id >= 0 && id < count() ? sets_[id].get() : nullptr;
}

absl::Status ProcessSetTable::Check(absl::Span<const Rank> ranks) const {
  const std::string text = absl::StrCat("process set {", absl::StrJoin(ranks, ", "), "}");
  if (ranks.empty()) return absl::InvalidArgumentError("a process set needs at least one rank");
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= world_size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          text, ": ", ranks[i], " is not a rank; the world has ranks 0 to ", world_size() - 1));
    }
    if (i > 0 && ranks[i] <= ranks[i - 1]) {
      return absl::InvalidArgumentError(
          absl::StrCat(text, ": the ranks must be ascending and each named once"));
    }
  }
  for (const auto& set : sets_) {
    if (absl::MakeConstSpan(set->ranks) == ranks) {
      return absl::AlreadyExistsError(absl::StrCat(text, " exists already, as set ", set->id));
    }
  }
  if (count() == kProcessSetsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(text, ": there are ", kProcessSetsMax, " process sets already"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SetId> ProcessSetTable::Add(absl::Span<const Rank> ranks) {
  RUEDA_RETURN_IF_ERROR(Check(ranks));
  auto set = std::make_unique<ProcessSet>();
  set->id = count();
  set->ranks.assign(ranks.begin(), ranks.end());
  sets_.push_back(std::move(set));
  return sets_.back()->id;
}

}  // namespace rueda
