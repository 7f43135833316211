// The tree of leaders, along which what concerns the whole job goes up to rank 0 and comes down
// from it: each leader talks to its parent and its children only, so that nobody has more than
// `fan_out` + 1 connections and rank 0 hears `fan_out` voices however many hosts there are. A
// subtree is a block of neighbouring hosts. A value that all ranks compute alike. PURE
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/base/ids.h"

namespace rueda {

// For whom a rank speaks.
enum class SpeaksFor : uint8_t {
  kRank = 0,     // for itself
  kHost = 1,     // a leader: for all ranks of its host that have a part in it
  kSubtree = 2,  // a leader: for those, and for those of all hosts below it
};

class LeaderTree {
 public:
  // `hosts`: which ranks share a log, the leader first; in the order of their leaders, so that the
  // first is rank 0's. Every rank of the world is in one of them. fan_out > 0.
  LeaderTree(absl::Span<const std::vector<Rank>> hosts, int fan_out);

  int world_size() const { return static_cast<int>(host_of_.size()); }
  bool IsLeader(Rank rank) const { return ranks_[nodes_[host_of_[rank]].begin] == rank; }
  // Of leaders. Rank 0 has no parent: -1.
  Rank ParentOf(Rank leader) const;
  std::vector<Rank> ChildrenOf(Rank leader) const;
  // Those for whom the rank speaks, which is a leader unless it speaks for itself. By host, each
  // host's ascending.
  absl::Span<const Rank> RanksOf(Rank rank, SpeaksFor speaks_for) const;
  bool Covers(Rank leader, Rank rank) const;
  // How many leaders there are between the farthest one and rank 0, itself included. 0: one host.
  int depth() const { return depth_; }

 private:
  struct Node {     // a host
    int begin = 0;  // of its ranks, in ranks_
    int parent = -1;
    int end = 0;  // of its subtree: the hosts from itself to before this one
    std::vector<int> children;
  };
  Rank LeaderOf(int host) const { return ranks_[nodes_[host].begin]; }

  std::vector<Node> nodes_;   // by host, and one more for its `begin`
  std::vector<Rank> ranks_;   // by host
  std::vector<int> host_of_;  // by rank
  int depth_ = 0;
};

}  // namespace rueda
