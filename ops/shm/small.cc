#include "ops/shm/small.h"

#include "ops/kernels/reduce.h"

namespace rueda {
namespace {

// Of two members: a second synchronisation of theirs costs less than what it saves from here on.
constexpr size_t kPairBytes = 8 << 10;

}  // namespace

bool SmallAlgorithm::Fits(const Collective& collective, int members) {
  return collective.elements * static_cast<int64_t>(DTypeSize(collective.dtype)) <=
         static_cast<int64_t>(members <= 2 ? kPairBytes : kSlotBytes);
}

void SmallAlgorithm::Fill(const Collective& collective) {
  pieces_.Reset(collective.pieces, DTypeSize(collective.dtype));
  pieces_.Pack(0, pieces_.elements(), group_->own().slot[group_->parity()]);
  pieces_.Reset({}, 1);  // the caller's go away
}

void SmallAlgorithm::Prepare(const Collective& collective) {
  Fill(collective);
  group_->ArriveEarly(collective.digest);
}

void SmallAlgorithm::Start(const Collective& collective) {
  collective_ = collective;
  slot_ = group_->parity();
  if (!group_->prepared() && !collective.IsAbsent(group_->self())) Fill(collective);
  group_->Arrive(collective.digest);
}

absl::StatusOr<Progress> SmallAlgorithm::Advance() {
  if (!group_->AllArrived()) return Progress::kBlocked;
  RUEDA_RETURN_IF_ERROR(group_->CheckDigests(collective_.digest));
  Combine();
  return Progress::kDone;
}

void SmallAlgorithm::Combine() {
  size_t offset = 0;
  for (const Piece& piece : collective_.pieces) {
    if (piece.output != nullptr && piece.elements > 0) {
      sources_.clear();
      for (int i = 0; i < group_->size(); ++i) {
        if (collective_.IsAbsent(i)) continue;
        sources_.push_back(group_->member(i).area->slot[slot_] + offset);
      }
      kernels::Reduce(collective_.dtype, collective_.reduce_op, sources_, piece.output,
                      piece.elements, collective_.scaling);
    }
    offset += static_cast<size_t>(piece.elements) * DTypeSize(collective_.dtype);
  }
}

}  // namespace rueda
