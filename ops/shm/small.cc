#include "ops/shm/small.h"

#include "ops/kernels/reduce.h"

namespace rueda {
namespace {

// Of two members: a second synchronisation of theirs costs less than what it saves from here on.
constexpr size_t kPairBytes = 8 << 10;

}  // namespace

bool SmallAlgorithm::Fits(const BucketOperation& operation, int members) {
  return operation.elements * static_cast<int64_t>(DTypeSize(operation.dtype)) <=
         static_cast<int64_t>(members <= 2 ? kPairBytes : kSlotBytes);
}

void SmallAlgorithm::Fill(const BucketOperation& operation) {
  pieces_.Reset(operation.pieces, DTypeSize(operation.dtype));
  pieces_.Pack(0, pieces_.elements(), group_->own().slot[group_->parity()]);
  pieces_.Reset({}, 1);  // the caller's go away
}

void SmallAlgorithm::Prepare(const BucketOperation& operation) {
  Fill(operation);
  group_->ArriveEarly(operation.digest);
}

void SmallAlgorithm::Start(const BucketOperation& operation) {
  operation_ = operation;
  slot_ = group_->parity();
  if (!group_->prepared() && !operation.IsAbsent(group_->self())) Fill(operation);
  group_->Arrive(operation.digest);
}

absl::StatusOr<Progress> SmallAlgorithm::Advance() {
  if (!group_->AllArrived()) return Progress::kBlocked;
  RUEDA_RETURN_IF_ERROR(group_->CheckDigests(operation_.digest));
  Combine();
  return Progress::kDone;
}

void SmallAlgorithm::Combine() {
  size_t offset = 0;
  for (const Piece& piece : operation_.pieces) {
    if (piece.output != nullptr && piece.elements > 0) {
      sources_.clear();
      for (int i = 0; i < group_->size(); ++i) {
        if (operation_.IsAbsent(i)) continue;
        sources_.push_back(group_->member(i).area->slot[slot_] + offset);
      }
      kernels::Reduce(operation_.dtype, operation_.reduce_op, sources_, piece.output,
                      piece.elements, operation_.scaling);
    }
    offset += static_cast<size_t>(piece.elements) * DTypeSize(operation_.dtype);
  }
}

}  // namespace rueda
