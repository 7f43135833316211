// PURE
#include "ops/hierarchical/host_split.h"

#include <algorithm>

#include "core/base/check.h"

namespace rueda {
namespace {

// More connections between two hosts win nothing.
constexpr size_t kStripesMax = 16;

}  // namespace

HostSplit SplitByHost(const Group& group) {
  RUEDA_CHECK(group.hosts.size() == group.ranks.size()) << "a group that does not know its hosts";
  HostSplit split;
  std::vector<int> numbers;  // by host of the split: its number in the group
  for (size_t member = 0; member < group.hosts.size(); ++member) {
    const auto it = std::find(numbers.begin(), numbers.end(), group.hosts[member]);
    const size_t host = static_cast<size_t>(it - numbers.begin());
    if (it == numbers.end()) {
      numbers.push_back(group.hosts[member]);
      split.members.emplace_back();
    }
    if (static_cast<int>(member) == group.self) {
      split.host = static_cast<int>(host);
      split.local = static_cast<int>(split.members[host].size());
    }
    split.members[host].push_back(static_cast<int>(member));
  }
  size_t stripes = kStripesMax;
  for (const std::vector<int>& members : split.members) stripes = std::min(stripes, members.size());
  split.stripes = static_cast<int>(stripes);
  return split;
}

}  // namespace rueda
