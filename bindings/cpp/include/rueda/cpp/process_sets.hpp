// Rueda's C++ API: some of the ranks. Included by rueda/rueda.hpp, which says how to use it.
#ifndef RUEDA_CPP_PROCESS_SETS_HPP_
#define RUEDA_CPP_PROCESS_SETS_HPP_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rueda/cpp/errors.hpp"
#include "rueda/rueda.h"

namespace rueda {

/// \addtogroup cpp_process_sets
/// @{

/// Some of the ranks, by the number of their set. All operations take one.
struct ProcessSet {
  int32_t id = RUEDA_WORLD;

  /// How many ranks it has.
  int size() const { return detail::CheckNumber(rueda_process_set_size(detail::Current(), id)); }
  /// This rank's index in the set; -1 when it is not in it.
  int rank() const { return rueda_process_set_rank(detail::Current(), id); }
  /// Whether this rank is in it.
  bool included() const { return rank() >= 0; }
  /// Its world ranks, ascending.
  std::vector<int> ranks() const {
    std::vector<int32_t> found(static_cast<size_t>(size()));
    size_t count = 0;
    detail::Check(
        rueda_process_set_ranks(detail::Current(), id, found.data(), found.size(), &count));
    return {found.begin(), found.end()};
  }
};

/// All ranks.
inline constexpr ProcessSet global_process_set{RUEDA_WORLD};

/// Makes a process set of these world ranks, ascending. All ranks of the world call it, with one
/// list.
inline ProcessSet add_process_set(const std::vector<int>& ranks) {
  const std::vector<int32_t> list(ranks.begin(), ranks.end());
  ProcessSet set;
  detail::Check(
      rueda_process_set_add(detail::Current(), list.data(), list.size(), RUEDA_FOREVER, &set.id));
  return set;
}

/// Removes a process set that has no operation in flight. All ranks of the world call it.
inline void remove_process_set(ProcessSet process_set) {
  detail::Check(rueda_process_set_remove(detail::Current(), process_set.id, RUEDA_FOREVER));
}

/// @}

}  // namespace rueda

#endif  // RUEDA_CPP_PROCESS_SETS_HPP_
