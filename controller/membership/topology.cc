// PURE
#include "controller/membership/topology.h"

#include <map>

#include "absl/strings/str_cat.h"

namespace rueda {

bool Topology::homogeneous() const {
  for (const HostPlace& host : hosts) {
    if (host.ranks.size() != hosts[0].ranks.size()) return false;
  }
  return true;
}

Topology MakeTopology(absl::Span<const std::string> host_ids) {
  Topology topology;
  std::map<std::string, int> index_of;
  for (size_t rank = 0; rank < host_ids.size(); ++rank) {
    const int next = static_cast<int>(topology.hosts.size());
    const auto [it, is_new] = index_of.emplace(host_ids[rank], next);
    if (is_new) topology.hosts.push_back({host_ids[rank], {}});
    HostPlace& host = topology.hosts[it->second];
    RankPlace place;
    place.host = it->second;
    place.local_rank = static_cast<int>(host.ranks.size());
    host.ranks.push_back(static_cast<Rank>(rank));
    topology.ranks.push_back(place);
  }
  std::vector<int> with_local_rank;  // how many ranks have local rank i, so far
  for (const HostPlace& host : topology.hosts) {
    with_local_rank.resize(std::max(with_local_rank.size(), host.ranks.size()), 0);
    for (size_t i = 0; i < host.ranks.size(); ++i) {
      topology.ranks[host.ranks[i]].cross_rank = with_local_rank[i]++;
    }
  }
  for (RankPlace& place : topology.ranks) place.cross_size = with_local_rank[place.local_rank];
  return topology;
}

absl::StatusOr<std::vector<std::string>> FakeHostIds(int world_size, int hosts) {
  if (hosts < 1 || world_size % hosts != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("RUEDA_HOSTS_FAKE=", hosts, ": ", world_size,
                     " ranks can't be split into so many equal blocks"));
  }
  std::vector<std::string> ids;
  for (Rank rank = 0; rank < world_size; ++rank) {
    ids.push_back(absl::StrCat("fake-", rank / (world_size / hosts)));
  }
  return ids;
}

}  // namespace rueda
