// The shared-memory backend: process sets whose members are all on this host.
#pragma once

#include <memory>
#include <vector>

#include "ops/backend/backend.h"
#include "ops/host/arena.h"
#include "ops/host/neighbours.h"
#include "ops/host/segment.h"
#include "ops/shm/shm_group.h"

namespace rueda {

class ShmBackend : public Backend {
 public:
  // `ranks`: the world ranks of this host's neighbours, ascending. `arenas`: by local index, as
  // mapped here. `own_arena`: this rank's allocator. The segment and the neighbours outlive this
  // and its communicators.
  ShmBackend(const Segment* segment, const Neighbours* neighbours, std::vector<Rank> ranks,
             std::vector<std::shared_ptr<SharedMemory>> arenas, std::shared_ptr<Arena> own_arena);

  absl::string_view name() const override { return "shm"; }
  bool connects() const override { return false; }
  absl::Status Viable(const Members& members) const override;
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const Members& members) override;

  // For who shares memory in some other way: what `ranks`, those of `members` that are on this
  // host, have for a communicator.
  absl::StatusOr<std::vector<ShmMember>> MembersOf(const Members& members,
                                                   absl::Span<const Rank> ranks) const;
  const Neighbours* neighbours() const { return neighbours_; }
  const std::shared_ptr<Arena>& own_arena() const { return own_arena_; }

 private:
  const Segment* const segment_;
  const Neighbours* const neighbours_;
  const std::vector<Rank> ranks_;
  const std::vector<std::shared_ptr<SharedMemory>> arenas_;
  const std::shared_ptr<Arena> own_arena_;
};

}  // namespace rueda
