// A set of small numbers: ranks, or members' indices. A value. PURE
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "core/base/ids.h"

namespace rueda {

class RankSet {
 public:
  explicit RankSet(int universe = 0) : words_((universe + 63) / 64, 0) {}

  bool Contains(int i) const { return (words_[i / 64] >> (i % 64)) & 1; }
  // True when `i` was not there yet.
  bool Insert(int i) {
    uint64_t& word = words_[i / 64];
    const uint64_t bit = uint64_t{1} << (i % 64);
    if (word & bit) return false;
    word |= bit;
    ++count_;
    return true;
  }
  void Erase(int i) {
    if (!Contains(i)) return;
    words_[i / 64] &= ~(uint64_t{1} << (i % 64));
    --count_;
  }
  int count() const { return count_; }

 private:
  absl::InlinedVector<uint64_t, 1> words_;
  int count_ = 0;
};

// "rank 3", "ranks 0, 2-5": for people. Ascending input.
std::string RanksText(absl::Span<const Rank> ranks);

}  // namespace rueda
