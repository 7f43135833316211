// What the ranks must agree on for one operation, and its parts. Values. PURE
#pragma once

#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "core/base/ids.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"
#include "core/tensor/traits.h"

namespace rueda {

// How many of the `rows` of a reducescatter's input member `member` gets: equal parts, and the
// lowest members one more of what remains.
inline int64_t ReducescatterRows(int64_t rows, int members, int member) {
  return rows / members + (member < rows % members ? 1 : 0);
}

// One tensor of an operation. For ragged kinds `shape` is the shape of a row: the first dimension
// may differ by rank and travels beside the signature.
struct PartSignature {
  DType dtype = DType::kUInt8;
  Shape shape;

  friend bool operator==(const PartSignature&, const PartSignature&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const PartSignature& part) {
    return H::combine(std::move(h), part.dtype, part.shape);
  }
};

struct Signature : OperationTraits {
  absl::InlinedVector<PartSignature, 1> parts;  // one; several for a group; none for a barrier
  std::vector<std::string> part_names;          // of a group's tensors; else empty
  std::vector<Rank> ranks;  // of the process set that is added or removed, ascending

  bool is_group() const { return !part_names.empty(); }
  // "allreduce(sum) float32[1000]". Of a large group a few parts are shown, which tell it from
  // another if `from` is the first difference.
  std::string ToString(size_t from = 0) const;
  // The first part in which two groups differ.
  static size_t FirstDifference(const Signature& a, const Signature& b);
  // The first thing in which two signatures differ, in a user's word: "shape", "dtype", "reduce
  // operation", "root", "kind of operation", ...; nothing when they are equal.
  static absl::string_view Difference(const Signature& a, const Signature& b);

  friend bool operator==(const Signature&, const Signature&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Signature& s) {
    return H::combine(std::move(h), s.traits(), s.parts, s.part_names, s.ranks);
  }
};

}  // namespace rueda
