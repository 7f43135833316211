// How scatter-reduce cuts tensors: which member adds up what, and where that lies when it is
// encoded. Equal on all members. PURE
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/tensor/signature.h"

namespace rueda {

// Of an operand, what a member adds up.
struct CodedRange {
  size_t operand;
  int64_t begin;
  int64_t elements;
};

class CodedRanges {
 public:
  // Elements and identity of each operand.
  struct Size {
    int64_t elements;
    uint64_t identity;
  };
  // `shares`: in elements, by operand, then by member, if each gets its part of the result alone;
  // else empty: whole blocks to each member, as equally as they come, and another member first for
  // another tensor, as small ones have less blocks than there are members.
  void Cut(Compressor compressor, absl::Span<const Size> operands, absl::Span<const int64_t> shares,
           int members);

  // By owner; of one in the order of operands.
  const std::vector<CodedRange>& all() const { return ranges_; }
  absl::Span<const CodedRange> of(int owner) const {
    const auto at = static_cast<size_t>(owner);
    return absl::MakeConstSpan(ranges_).subspan(first_[at], first_[at + 1] - first_[at]);
  }
  size_t first(int owner) const { return first_[static_cast<size_t>(owner)]; }
  // Of an owner's ranges, encoded; by owner.
  const std::vector<int64_t>& bytes() const { return bytes_; }
  int64_t bytes_of_all() const;

 private:
  void Add(Compressor compressor, size_t operand, int64_t begin, int64_t elements);

  std::vector<CodedRange> ranges_;
  std::vector<size_t> first_;  // by owner: its first range; and how many there are
  std::vector<int64_t> bytes_;
};

}  // namespace rueda
