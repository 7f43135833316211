// Hash maps for what must survive a refusal of memory: after an exception out of an insertion they
// are as before. Abseil's, which are faster, are broken then, down to their destructors.
#pragma once

#include <functional>
#include <unordered_map>

#include "absl/hash/hash.h"

namespace rueda {

template <typename Key, typename Value, typename Hash = absl::Hash<Key>,
          typename Equal = std::equal_to<Key>>
using HashMap = std::unordered_map<Key, Value, Hash, Equal>;

}  // namespace rueda
