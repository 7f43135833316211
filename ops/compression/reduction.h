// One way to add up compressed tensors over the members of a communicator: a resumable machine like
// Communicator's, on float32 values that it owns for the time being.
#pragma once

#include <memory>
#include <vector>

#include "ops/backend/communicator.h"
#include "ops/compression/state.h"

namespace rueda {

// A tensor, or a range of one.
struct Operand {
  float* values = nullptr;  // what this member brings, scaled; at the end the result
  int64_t begin = 0;        // in its tensor
  int64_t elements = 0;
  int64_t rows = 1;                   // of the matrix that it is, which it is whole then
  uint64_t identity = 0;              // equal on all members
  CompressionState* state = nullptr;  // null: nothing is remembered
};

struct ReductionArgs {
  Compression compression;
  absl::Span<const Operand> operands;
  // In elements, by operand, then by member, if each gets its part of the result alone; else empty.
  absl::Span<const int64_t> shares;
  absl::Span<const int> absent;  // as BucketOperation has it; their values are 0
  Scaling after;                 // of the sum
  uint32_t digest = 0;
  uint64_t sequence = 0;

  bool IsAbsent(int member) const {
    return !absent.empty() && std::binary_search(absent.begin(), absent.end(), member);
  }
  // Whether what is left out of it is kept for the next time.
  bool Remembers(const Operand& operand) const {
    return compression.feedback && operand.state != nullptr;
  }
  float Scaled(float sum) const {
    return sum / static_cast<float>(after.divisor) * static_cast<float>(after.postscale);
  }
};

class Reduction {
 public:
  // Member `self` of `members`; the communicator outlives this.
  Reduction(Communicator* communicator, int members, int self)
      : communicator_(*communicator), members_(members), self_(self) {}
  virtual ~Reduction() = default;

  // What `args` points to stays valid until it is done.
  virtual absl::Status Start(const ReductionArgs& args) = 0;
  // As Communicator::Advance.
  virtual absl::StatusOr<Progress> Advance() = 0;

 protected:
  // Elements that one Advance works on: some 100 us.
  static constexpr int64_t kElementsAtOnce = 64 << 10;

  // An operation of the communicator on one piece.
  void StartExchange(OpKind kind, DType dtype, Piece piece, absl::Span<const int64_t> counts) {
    piece_ = piece;
    BucketOperation operation;
    operation.kind = kind;
    operation.dtype = dtype;
    operation.reduce_op = TraitsOf(kind).reduces ? ReduceOp::kSum : ReduceOp::kNone;
    operation.pieces = {&piece_, 1};
    operation.elements = piece.elements;
    operation.counts = counts;
    operation.digest = args_.digest;
    operation.sequence = args_.sequence;
    communicator_.Start(operation);
  }

  Communicator& communicator_;
  const int members_;
  const int self_;
  ReductionArgs args_;

 private:
  Piece piece_;
};

}  // namespace rueda
