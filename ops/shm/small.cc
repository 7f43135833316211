#include "ops/shm/small.h"

#include <algorithm>
#include <cstring>

namespace rueda {

bool SmallAlgorithm::Fits(const Collective& collective) {
  int64_t elements = collective.elements;
  if (collective.kind == OpKind::kAllgather) {
    elements = *std::max_element(collective.counts.begin(), collective.counts.end());
  }
  return elements * static_cast<int64_t>(DTypeSize(collective.dtype)) <=
         static_cast<int64_t>(kSlotBytes);
}

void SmallAlgorithm::Start(const Collective& collective) {
  collective_ = collective;
  slot_ = group_->parity();
  pieces_.Reset(collective.pieces, DTypeSize(collective.dtype));
  const bool contributes =
      collective.kind != OpKind::kBroadcast || collective.root == group_->self();
  if (contributes) pieces_.Pack(0, pieces_.elements(), group_->own().slot[slot_]);
  group_->Arrive(collective.digest);
}

absl::StatusOr<Progress> SmallAlgorithm::Advance() {
  if (!group_->AllArrived()) return Progress::kBlocked;
  RUEDA_RETURN_IF_ERROR(group_->CheckDigests(collective_.digest));
  Combine();
  return Progress::kDone;
}

void SmallAlgorithm::Combine() {
  const size_t element_bytes = DTypeSize(collective_.dtype);
  switch (collective_.kind) {
    case OpKind::kAllreduce: {
      sources_.resize(group_->size());
      size_t offset = 0;
      for (const Piece& piece : collective_.pieces) {
        if (piece.output != nullptr && piece.elements > 0) {
          for (int i = 0; i < group_->size(); ++i) {
            sources_[i] = group_->member(i).area->slot[slot_] + offset;
          }
          kernels::Reduce(collective_.dtype, collective_.reduce_op, sources_, piece.output,
                          piece.elements, ScalingOf(collective_));
        }
        offset += static_cast<size_t>(piece.elements) * element_bytes;
      }
      return;
    }
    case OpKind::kBroadcast:
      if (collective_.root != group_->self() ||
          collective_.pieces[0].input != collective_.pieces[0].output) {
        pieces_.Unpack(0, collective_.elements, group_->member(collective_.root).area->slot[slot_]);
      }
      return;
    case OpKind::kAllgather: {
      char* output = static_cast<char*>(collective_.pieces[0].output);
      if (output == nullptr) return;
      for (int i = 0; i < group_->size(); ++i) {
        const size_t bytes = static_cast<size_t>(collective_.counts[i]) * element_bytes;
        memcpy(output, group_->member(i).area->slot[slot_], bytes);
        output += bytes;
      }
      return;
    }
    case OpKind::kBarrier:
    case OpKind::kAddProcessSet:
      return;
  }
}

}  // namespace rueda
