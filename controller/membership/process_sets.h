// The process sets of one epoch: set 0 is the world; others are added in plan order, so that all
// ranks give them the same ids. PURE
#pragma once

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/base/status.h"

namespace rueda {

struct ProcessSet {
  SetId id = kWorldSet;
  std::vector<Rank> ranks;  // world ranks, ascending

  int size() const { return static_cast<int>(ranks.size()); }
  // A rank's index in the set; -1 when it is not in it.
  int IndexOf(Rank rank) const;
  bool Contains(Rank rank) const { return IndexOf(rank) >= 0; }
};

class ProcessSetTable {
 public:
  explicit ProcessSetTable(int world_size);

  int world_size() const { return sets_[0]->size(); }
  // Null when there is no such set. The pointer stays valid as long as the table.
  const ProcessSet* Find(SetId id) const;
  int count() const { return static_cast<int>(sets_.size()); }

  // What Add would say: INVALID_ARGUMENT (empty, not ascending, not ranks of the world),
  // ALREADY_EXISTS (names the set), RESOURCE_EXHAUSTED (kProcessSetsMax).
  absl::Status Check(absl::Span<const Rank> ranks) const;
  absl::StatusOr<SetId> Add(absl::Span<const Rank> ranks);

 private:
  std::vector<std::unique_ptr<ProcessSet>> sets_;  // by id
};

}  // namespace rueda
