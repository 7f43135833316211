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
  kAlltoall = 4,
  kReducescatter = 5,
  kReduce = 6,
  kGather = 7,
  kScatter = 8,
  kSendRecv = 9,  // from one rank to another; both announce it
  kJoin = 10,
  kAddProcessSet = 11,
  kRemoveProcessSet = 12,
};
inline constexpr int kOpKindCount = 13;

// What a kind of operation has.
struct KindTraits {
  const char* name;
  bool tensors;    // tensors are moved
  bool reduces;    // a reduce operation
  bool rooted;     // a root
  bool ragged;     // the first dimension may differ by rank: signatures have the shape of a row
  bool groups;     // several may form a group
  bool fuses;      // neighbours may share a bucket
  bool has_ranks;  // a list of ranks
};
const KindTraits& TraitsOf(OpKind kind);

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

// How a reduction's tensors are compressed on their way.
enum class Compressor : uint8_t {
  kNone = 0,
  kFloat16 = 1,
  kBfloat16 = 2,
  kFloat8 = 3,
  kInt8 = 4,
  kOneBit = 5,
  kTopK = 6,
  kPowerSgd = 7,
  kAuto = 8,
};
inline constexpr int kCompressorCount = 9;
absl::string_view CompressorName(Compressor compressor);  // "int8"

struct Compression {
  Compressor compressor = Compressor::kNone;
  uint32_t parameter = 0;  // topk: how many of a million elements; powersgd: the rank
  bool feedback = false;   // what compression leaves out is added the next time

  bool none() const { return compressor == Compressor::kNone; }
  std::string ToString() const;  // as it is parsed: compression.h

  friend bool operator==(const Compression&, const Compression&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Compression& c) {
    return H::combine(std::move(h), c.compressor, c.parameter, c.feedback);
  }
};

// Where an operation's tensors are. The numbers go over the wire and never change.
enum class DeviceType : uint8_t { kCpu = 0, kCuda = 1 };
inline constexpr int kDeviceTypeCount = 2;
absl::string_view DeviceTypeName(DeviceType device);  // "CUDA"

// How many of the `rows` of a reducescatter's input member `member` gets: equal parts, and the
// lowest members one more of what remains.
inline int64_t ReducescatterRows(int64_t rows, int members, int member) {
  return rows / members + (member < rows % members ? 1 : 0);
}

absl::string_view OpKindName(OpKind kind);    // "allreduce"
absl::string_view ReduceOpName(ReduceOp op);  // "sum"
// A sum that is divided afterwards, by however many the caller counts.
bool IsAverage(ReduceOp op);

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

struct Signature {
  OpKind kind = OpKind::kBarrier;
  ReduceOp reduce_op = ReduceOp::kNone;
  Rank root = -1;  // a world rank; send/recv: the one that sends
  Rank peer = -1;  // send/recv: the world rank that receives
  DeviceType device = DeviceType::kCpu;
  bool urgent = false;  // on a device: it has a way of its own, beside the others'
  Compression compression;
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
    return H::combine(std::move(h), s.kind, s.reduce_op, s.root, s.peer, s.device, s.urgent,
                      s.compression, s.parts, s.part_names, s.ranks);
  }
};

}  // namespace rueda
