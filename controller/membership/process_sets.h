// The process sets of one membership: set 0 is the world; others are given at the start, or added
// and removed in plan order, so that all ranks give them the same ids. PURE
#pragma once

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/base/status.h"

namespace rueda {

struct ProcessSet {
  SetId id = kWorldSet;
  uint32_t generation = 0;  // how many sets had this id before
  std::vector<Rank> ranks;  // world ranks, ascending

  int size() const { return static_cast<int>(ranks.size()); }
  // A rank's index in the set; -1 when it is not in it.
  int IndexOf(Rank rank) const {
    // The world, and any set of the lowest ranks, without a search.
    if (rank >= 0 && rank < size() && ranks[rank] == rank) return rank;
    return Search(rank);
  }
  bool Contains(Rank rank) const { return IndexOf(rank) >= 0; }

 private:
  int Search(Rank rank) const;
};

class ProcessSetTable {
 public:
  // `more`: sets 1, 2, ... that exist from the start; Add would take them.
  explicit ProcessSetTable(int world_size, absl::Span<const std::vector<Rank>> more = {});

  int world_size() const { return sets_[0]->size(); }
  // Null when there is no such set. The pointer is valid until the set is removed.
  const ProcessSet* Find(SetId id) const {
    return id >= 0 && id < end() ? sets_[id].get() : nullptr;
  }
  // The set of exactly these ranks; null when there is none.
  const ProcessSet* Find(absl::Span<const Rank> ranks) const;
  // Ids are below this.
  int end() const { return static_cast<int>(sets_.size()); }

  // What Add would say: INVALID_ARGUMENT (empty, not ascending, not ranks of the world),
  // ALREADY_EXISTS (names the set), RESOURCE_EXHAUSTED (kProcessSetsMax).
  absl::Status Check(absl::Span<const Rank> ranks) const;
  // The lowest id that is free.
  absl::StatusOr<SetId> Add(absl::Span<const Rank> ranks);
  // The id may be used again. INVALID_ARGUMENT: the world; NOT_FOUND: no such set.
  absl::Status Remove(SetId id);

 private:
  std::vector<std::shared_ptr<const ProcessSet>> sets_;  // by id; null: free
  std::vector<uint32_t> generations_;                    // by id: of the next set there
};

// The list of sets in a setting: "0,1;2-5". INVALID_ARGUMENT says what is wrong where.
absl::StatusOr<std::vector<std::vector<Rank>>> ParseProcessSets(absl::string_view text,
                                                                int world_size);

}  // namespace rueda
