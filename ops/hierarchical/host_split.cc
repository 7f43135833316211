// PURE
#include "ops/hierarchical/host_split.h"

#include <algorithm>

#include "core/base/check.h"

namespace rueda {
namespace {

// More connections between two hosts win nothing.
constexpr size_t kStripesMax = 16;

}  // namespace

int HostSplit::HostOf(int member) const {
  for (size_t i = 0; i < members.size(); ++i) {
    if (std::binary_search(members[i].begin(), members[i].end(), member)) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

HostSplit SplitByHost(const Members& members) {
  RUEDA_CHECK(members.hosts.size() == members.ranks.size())
      << "members whose hosts nobody has looked up";
  HostSplit split;
  std::vector<int> numbers;  // by host of the split: its number among all
  for (size_t member = 0; member < members.hosts.size(); ++member) {
    const auto it = std::find(numbers.begin(), numbers.end(), members.hosts[member]);
    const size_t host = static_cast<size_t>(it - numbers.begin());
    if (it == numbers.end()) {
      numbers.push_back(members.hosts[member]);
      split.members.emplace_back();
    }
    if (static_cast<int>(member) == members.self) {
      split.host = static_cast<int>(host);
      split.local = static_cast<int>(split.members[host].size());
    }
    split.members[host].push_back(static_cast<int>(member));
  }
  size_t stripes = kStripesMax;
  for (const std::vector<int>& own : split.members) stripes = std::min(stripes, own.size());
  split.stripes = static_cast<int>(stripes);
  return split;
}

}  // namespace rueda
