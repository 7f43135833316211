// PURE
#include "controller/membership/leader_tree.h"

#include <algorithm>

namespace rueda {

LeaderTree::LeaderTree(absl::Span<const std::vector<Rank>> hosts, int fan_out)
    : nodes_(hosts.size() + 1) {
  for (size_t host = 0; host < hosts.size(); ++host) {
    nodes_[host].begin = static_cast<int>(ranks_.size());
    ranks_.insert(ranks_.end(), hosts[host].begin(), hosts[host].end());
  }
  nodes_.back().begin = static_cast<int>(ranks_.size());
  host_of_.resize(ranks_.size());
  for (size_t host = 0; host < hosts.size(); ++host) {
    for (const Rank rank : hosts[host]) host_of_[rank] = static_cast<int>(host);
  }
  // Below a host are the hosts behind it up to its end, in up to fan_out blocks of nearly equal
  // size; the first host of each leads it. Parents come before their children.
  std::vector<int> level(nodes_.size(), 0);
  nodes_[0].end = static_cast<int>(hosts.size());
  for (int host = 0; host < static_cast<int>(hosts.size()); ++host) {
    depth_ = std::max(depth_, level[host]);
    const int below = nodes_[host].end - host - 1;
    const int blocks = std::min(below, fan_out);
    for (int block = 0, begin = host + 1; block < blocks; ++block) {
      const int size = below / blocks + (block < below % blocks ? 1 : 0);
      nodes_[host].children.push_back(begin);
      nodes_[begin].parent = host;
      nodes_[begin].end = begin + size;
      level[begin] = level[host] + 1;
      begin += size;
    }
  }
}

Rank LeaderTree::ParentOf(Rank leader) const {
  const int parent = nodes_[host_of_[leader]].parent;
  return parent < 0 ? -1 : LeaderOf(parent);
}

std::vector<Rank> LeaderTree::ChildrenOf(Rank leader) const {
  std::vector<Rank> children;
  for (const int child : nodes_[host_of_[leader]].children) children.push_back(LeaderOf(child));
  return children;
}

absl::Span<const Rank> LeaderTree::RanksOf(Rank rank, SpeaksFor speaks_for) const {
  const int host = host_of_[rank];
  const Node& node = nodes_[host];
  if (speaks_for == SpeaksFor::kRank) {
    const Rank* const own =
        std::lower_bound(&ranks_[node.begin], ranks_.data() + nodes_[host + 1].begin, rank);
    return absl::MakeConstSpan(own, 1);
  }
  const int end = speaks_for == SpeaksFor::kHost ? host + 1 : node.end;
  return absl::MakeConstSpan(ranks_).subspan(node.begin, nodes_[end].begin - node.begin);
}

bool LeaderTree::Covers(Rank leader, Rank rank) const {
  const int host = host_of_[leader];
  return host_of_[rank] >= host && host_of_[rank] < nodes_[host].end;
}

}  // namespace rueda
