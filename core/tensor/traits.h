// What an operation is: the kinds and their table, the traits of one operation, and the words for
// them. Values. PURE
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/base/ids.h"

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

// Which ranks of an operation.
enum class Who : uint8_t { kNobody, kAll, kRoot, kPeer };

// What a kind of operation has.
struct KindTraits {
  const char* name;
  Who gives;       // who brings tensors
  Who gets;        // who gets a result
  bool reshapes;   // the result's first dimension is not the input's
  bool reduces;    // a reduce operation
  bool rooted;     // a root
  bool ragged;     // the first dimension may differ by rank: signatures have the shape of a row
  bool groups;     // several may form a group
  bool fuses;      // neighbours may share a bucket
  bool has_ranks;  // a list of ranks

  bool tensors() const { return gives != Who::kNobody; }
};

inline const KindTraits& TraitsOf(OpKind kind) {
  using enum Who;
  static constexpr KindTraits kRows[kOpKindCount] = {
      // By the enum's number: name, gives, gets, reshapes, reduces, rooted, ragged, groups, fuses,
      // has_ranks.
      {"allreduce", kAll, kAll, false, true, false, false, true, true, false},
      {"broadcast", kAll, kAll, false, false, true, false, false, true, false},
      {"allgather", kAll, kAll, true, false, false, true, true, true, false},
      {"barrier", kNobody, kNobody, false, false, false, false, false, false, false},
      {"alltoall", kAll, kAll, true, false, false, true, false, true, false},
      {"reducescatter", kAll, kAll, true, true, false, false, true, true, false},
      {"reduce", kAll, kRoot, false, true, true, false, false, true, false},
      {"gather", kAll, kRoot, true, false, true, true, false, true, false},
      {"scatter", kRoot, kAll, true, false, true, true, false, true, false},
      {"send/recv", kRoot, kPeer, false, false, true, false, false, false, false},
      {"join", kNobody, kNobody, false, false, false, false, false, false, false},
      {"add_process_set", kNobody, kNobody, false, false, false, false, false, false, true},
      {"remove_process_set", kNobody, kNobody, false, false, false, false, false, false, true},
  };
  return kRows[static_cast<int>(kind)];
}

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

// Which operations move first. The numbers go over the wire and never change.
enum class Priority : uint8_t {
  kNormal = 0,
  kUrgent = 1,  // on a device: it has a way of its own, beside the others'
  kLow = 2,     // on the CPU: it has a way of its own, and moves while the others can't
};
inline constexpr int kPriorityCount = 3;

absl::string_view OpKindName(OpKind kind);            // "allreduce"
absl::string_view ReduceOpName(ReduceOp op);          // "sum"
absl::string_view DeviceTypeName(DeviceType device);  // "CUDA"
// A sum that is divided afterwards, by however many the caller counts.
bool IsAverage(ReduceOp op);

// What is the same in each call of a name, on all ranks, and for all tensors of a group. An
// attribute that is added here gets from the API to the backends by itself; what counts the fields
// does not compile until it knows it, too.
struct OperationTraits {
  OpKind kind = OpKind::kBarrier;
  ReduceOp reduce_op = ReduceOp::kNone;
  // World ranks; of a BucketOperation member indices. -1: none.
  Rank root = -1;  // send/recv: who sends
  Rank peer = -1;  // send/recv: who receives
  DeviceType device = DeviceType::kCpu;
  Priority priority = Priority::kNormal;
  Compression compression;

  const OperationTraits& traits() const { return *this; }
  OperationTraits& traits() { return *this; }

  // Whether this rank brings tensors; whether it gets a result.
  bool Gives(Rank rank) const { return Is(TraitsOf(kind).gives, rank); }
  bool Gets(Rank rank) const { return Is(TraitsOf(kind).gets, rank); }

  std::string ToString() const;  // "allreduce(sum) int8 on CUDA"
  // The first field in which two differ, in a user's word: "reduce operation", "root", ...; nothing
  // when they are equal.
  static absl::string_view Difference(const OperationTraits& a, const OperationTraits& b);

  friend bool operator==(const OperationTraits&, const OperationTraits&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const OperationTraits& traits) {
    const auto& [k, op, r, p, d, first, c] = traits;  // all there are
    return H::combine(std::move(h), k, op, r, p, d, first, c);
  }

 private:
  bool Is(Who who, Rank rank) const {
    return who == Who::kAll || (who == Who::kRoot && rank == root) ||
           (who == Who::kPeer && rank == peer);
  }
};

// What a reduction's elements are multiplied and divided by: each operand by prescale before, the
// result by postscale behind the divisor. kernels/reduce.h says how for each type. The factors may
// differ from call to call of a name, and not from rank to rank. The divisor is an average's: it is
// 1 until the ranks that take part are known.
struct Scaling {
  double prescale = 1;
  double postscale = 1;
  int64_t divisor = 1;

  bool none() const { return *this == Scaling(); }
  bool finite() const;
  // What comes before the operands are combined, and what after.
  Scaling before() const { return {prescale, 1, 1}; }
  Scaling after() const { return {1, postscale, divisor}; }
  std::string ToString() const;  // "prescale 0.5 postscale 1"

  friend bool operator==(const Scaling&, const Scaling&) = default;
};

}  // namespace rueda
