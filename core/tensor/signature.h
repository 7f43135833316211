// What the ranks must agree on for one operation, and the names of its parts. Values. PURE
#pragma once

#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "core/base/ids.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace rueda {

// The numbers go over the wire and never change.
enum class OpKind : uint8_t {
  kAllreduce = 0,
  kBroadcast = 1,
  kAllgather = 2,
  kBarrier = 3,
  kAddProcessSet = 4,
};
inline constexpr int kOpKindCount = 5;

enum class ReduceOp : uint8_t {
  kSum = 0,
  kAverage = 1,
  kMin = 2,
  kMax = 3,
  kProduct = 4,
  kBitAnd = 5,
  kBitOr = 6,
  kBitXor = 7,
  kAdasum = 8,
  kAverageLive = 9,  // the average over those ranks of the set that have not joined
  kNone = 10,        // for kinds that reduce nothing
};
inline constexpr int kReduceOpCount = 11;

enum class DeviceType : uint8_t { kCpu = 0 };

absl::string_view OpKindName(OpKind kind);    // "allreduce"
absl::string_view ReduceOpName(ReduceOp op);  // "sum"
// A sum that is divided afterwards, by however many the caller counts.
bool IsAverage(ReduceOp op);

// One tensor of an operation. For allgather `shape` is the shape of a row: the first dimension may
// differ by rank and travels beside the signature.
struct PartSignature {
  DType dtype = DType::kUInt8;
  Shape shape;

  friend bool operator==(const PartSignature&, const PartSignature&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const PartSignature& part) {
    return H::combine(std::move(h), part.dtype, part.shape);
  }
};

struct Signature {
  OpKind kind = OpKind::kBarrier;
  ReduceOp reduce_op = ReduceOp::kNone;
  Rank root = -1;  // broadcast: a world rank
  DeviceType device = DeviceType::kCpu;
  absl::InlinedVector<PartSignature, 1> parts;  // one; several for a group; none for a barrier
  std::vector<std::string> part_names;          // of a group's tensors; else empty
  std::vector<Rank> ranks;  // kAddProcessSet: the new set's world ranks, ascending

  bool is_group() const { return !part_names.empty(); }
  // "allreduce(sum) float32[1000]".
  std::string ToString() const;
  // The first thing in which two signatures differ, in a user's word: "shape", "dtype", "reduce
  // operation", "root", "kind of operation", ...; nothing when they are equal.
  static absl::string_view Difference(const Signature& a, const Signature& b);

  friend bool operator==(const Signature&, const Signature&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Signature& s) {
    return H::combine(std::move(h), s.kind, s.reduce_op, s.root, s.device, s.parts, s.part_names,
                      s.ranks);
  }
};

}  // namespace rueda
