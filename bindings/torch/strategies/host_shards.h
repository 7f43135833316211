// Ranks of one host that meet other hosts' as one: they average their values, and each takes a
// share of the average to the ranks of other hosts that have the same share (what Bagua calls
// hierarchical). A host then sends its parameters once, and all its ranks send at the same time.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "rueda/torch.hpp"

namespace rueda::libtorch {

class HostShards {
 public:
  // Of `values`, flat tensors on one device whose memory stays. Without `hierarchical` each rank of
  // the process set is a host of its own, whose shares are `values` themselves. With it, collective
  // over the world, the only process set for which it may be; throws RUEDA_INVALID_ARGUMENT when
  // that, or the number of ranks on the hosts, is not right. `name`: of its operations.
  HostShards(std::vector<at::Tensor> values, ProcessSet process_set, bool hierarchical,
             std::string name);

  // One rank on each host, which has the same share: world ranks, ascending.
  const std::vector<int>& peers() const { return peers_; }
  // This rank's place among them.
  int index() const { return index_; }
  // This rank's shares of `values`, one each; some may be empty.
  std::vector<at::Tensor>& shares() { return shares_; }

  // Averages the values over the host; the average is then in the shares, and `values` is anything.
  void Average();
  // The other way: `values` of all shares of this host.
  void Gather();

 private:
  bool alone() const { return local_size_ == 1; }

  std::vector<at::Tensor> values_;
  std::string name_;
  ProcessSet host_;
  int local_size_ = 1;
  std::vector<int> peers_;
  int index_ = 0;
  std::vector<at::Tensor> shares_;
  std::vector<at::Tensor> places_;  // the shares' in `values`
};

}  // namespace rueda::libtorch
