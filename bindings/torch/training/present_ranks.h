// What ranks say, where some may have joined.
#pragma once

#include <string>
#include <vector>

#include "rueda/torch.hpp"

namespace rueda::libtorch {

// By rank, of those that have not joined.
struct PresentRanks {
  std::vector<int> ranks;
  std::vector<std::string> texts;  // none is empty
};

inline PresentRanks AllgatherPresent(const std::string& text, const std::string& name,
                                     const ProcessSet& process_set) {
  const std::vector<std::string> all =
      allgather_object(text, {.name = name, .process_set = process_set});
  const std::vector<int> ranks = process_set.ranks();
  PresentRanks present;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].empty()) continue;
    present.ranks.push_back(ranks[i]);
    present.texts.push_back(all[i]);
  }
  return present;
}

}  // namespace rueda::libtorch
