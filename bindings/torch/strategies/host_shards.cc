#include "bindings/torch/strategies/host_shards.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <map>

#include "bindings/torch/operation.h"

namespace rueda::libtorch {
namespace {

// World ranks by host, both ascending. Collective over the world.
std::vector<std::vector<int>> RanksByHost(const std::string& name) {
  const std::vector<int> hosts = rueda::allgather(std::vector<int>{cross_rank()}, {.name = name});
  std::map<int, std::vector<int>> ranks;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    ranks[hosts[rank]].push_back(static_cast<int>(rank));
  }
  std::vector<std::vector<int>> lists;
  for (auto& [host, list] : ranks) lists.push_back(std::move(list));
  return lists;
}

// Others may have made it; it stays, as they may use it.
ProcessSet SetOf(const std::vector<int>& ranks) {
  ProcessSet set;
  const rueda_status status =
      rueda_process_set_add(CurrentContext(), ranks.data(), ranks.size(), RUEDA_FOREVER, &set.id);
  if (status != RUEDA_ALREADY_EXISTS || set.id < 0) detail::Check(status, CurrentContext());
  return set;
}

}  // namespace

HostShards::HostShards(std::vector<at::Tensor> values, ProcessSet process_set, bool hierarchical,
                       std::string name)
    : values_(std::move(values)), name_(std::move(name)), peers_(process_set.ranks()) {
  if (hierarchical && process_set.id != global_process_set.id) {
    throw Error(RUEDA_INVALID_ARGUMENT, "hierarchical is for all ranks, not for a process set");
  }
  if (hierarchical && !is_homogeneous()) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                "hierarchical needs equally many ranks on all hosts; this one has " +
                    std::to_string(local_size()) + " of " + std::to_string(size()));
  }
  if (hierarchical) {
    int place = 0;  // on this rank's host
    const std::vector<std::vector<int>> hosts = RanksByHost(name_ + ".hosts");
    for (const std::vector<int>& ranks : hosts) {
      const ProcessSet set = ranks.size() == 1 ? ProcessSet() : SetOf(ranks);
      const auto at = std::find(ranks.begin(), ranks.end(), rank());
      if (at == ranks.end()) continue;
      host_ = set;
      local_size_ = static_cast<int>(ranks.size());
      place = static_cast<int>(at - ranks.begin());
    }
    peers_.clear();
    for (const std::vector<int>& ranks : hosts) peers_.push_back(ranks[place]);
  }
  index_ = static_cast<int>(std::find(peers_.begin(), peers_.end(), rank()) - peers_.begin());
  if (alone()) {
    shares_ = values_;
    return;
  }
  const int place = host_.rank();
  for (const at::Tensor& whole : values_) {
    // As reducescatter shares them out.
    const int64_t each = whole.numel() / local_size_, more = whole.numel() % local_size_;
    const int64_t begin = place * each + std::min<int64_t>(place, more);
    places_.push_back(whole.narrow(0, begin, each + (place < more ? 1 : 0)));
    shares_.push_back(at::empty_like(places_.back()));
  }
}

void HostShards::Average() {
  if (alone()) return;
  const std::string name = name_ + ".host average";
  Operation::Execute(CurrentContext(), {.kind = RUEDA_REDUCESCATTER,
                                        .tensors = values_,
                                        .grouped = true,
                                        .name = name,
                                        .process_set = host_,
                                        .op = rueda::Average,
                                        .outputs = shares_});
}

void HostShards::Gather() {
  if (alone()) return;
  for (size_t i = 0; i < shares_.size(); ++i) places_[i].copy_(shares_[i]);
  const std::string name = name_ + ".host";
  Operation::Execute(CurrentContext(), {.kind = RUEDA_ALLGATHER,
                                        .tensors = places_,
                                        .grouped = true,
                                        .name = name,
                                        .process_set = host_,
                                        .outputs = values_});
}

}  // namespace rueda::libtorch
