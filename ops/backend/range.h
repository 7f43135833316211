// Ranges of elements, and how they are divided among members. PURE
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace rueda {

// Elements [begin, end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// What two have in common; empty: anywhere.
inline Range Overlap(Range a, Range b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// Member i's slice of `range`: equal parts whose borders are multiples of a cache line.
inline Range SliceOf(Range range, int i, int members, size_t element_bytes) {
  const int64_t line = static_cast<int64_t>(64 / element_bytes);
  const auto border = [&](int k) {
    if (k == members) return range.end;
    // In whole lines first: the product fits, as the range has fewer than 2^63 bytes.
    const int64_t lines = (range.size() + line - 1) / line;
    return std::min(
        range.end, range.begin + lines / members * k * line + lines % members * k / members * line);
  };
  return {border(i), border(i + 1)};
}

}  // namespace rueda
