// Who sits where: hosts, local ranks, cross ranks, computed from what each rank said of its host.
// PURE
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/base/status.h"

namespace rueda {

struct RankPlace {
  int host = 0;        // index into Topology::hosts
  int local_rank = 0;  // among the ranks of the host
  int cross_rank = 0;  // among the ranks with this local rank, by host
  int cross_size = 0;  // how many ranks have this local rank
};

// Which process a rank is, for people.
struct RankInfo {
  int pid = 0;
  std::string host_name;
};

struct HostPlace {
  std::string id;
  std::vector<Rank> ranks;  // ascending; the first is the host's leader
};

struct Topology {
  std::vector<HostPlace> hosts;  // in the order of their lowest ranks
  std::vector<RankPlace> ranks;  // by world rank

  int world_size() const { return static_cast<int>(ranks.size()); }
  const HostPlace& host_of(Rank rank) const { return hosts[ranks[rank].host]; }
  int local_size(Rank rank) const { return static_cast<int>(host_of(rank).ranks.size()); }
  // Whether every host has the same number of ranks.
  bool homogeneous() const;
};

// `host_ids` by world rank. Ranks of one host need not be neighbours.
Topology MakeTopology(absl::Span<const std::string> host_ids);

// For tests: splits `world_size` ranks into `hosts` blocks of equal size, as ids for MakeTopology.
absl::StatusOr<std::vector<std::string>> FakeHostIds(int world_size, int hosts);

}  // namespace rueda
