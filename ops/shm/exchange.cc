#include "ops/shm/exchange.h"

#include <algorithm>
#include <cstring>

#include "ops/kernels/copy.h"
#include "ops/kernels/reduce.h"

namespace rueda {

void ExchangeAlgorithm::Start(const BucketOperation& operation) {
  operation_ = operation;
  channels_.Reset(operation, group_->self(), group_->size());
  channel_bytes_ = kBlockBytes / static_cast<size_t>(channels_.count()) / 64 * 64;
  // Without any data the members meet all the same.
  steps_ = std::max<int64_t>(
      1, static_cast<int64_t>((channels_.longest() + channel_bytes_ - 1) / channel_bytes_));
  step_ = 0;
  FillAndArrive();
}

void ExchangeAlgorithm::FillAndArrive() {
  parity_ = group_->parity();
  char* const block = group_->own().input[parity_];
  for (int channel = 0; channel < channels_.count(); ++channel) {
    if (channels_.by_taker() && channel == group_->self()) continue;  // read where it is
    channels_.given(channel).CopyTo(block + static_cast<size_t>(channel) * channel_bytes_,
                                    channel_bytes_);
  }
  group_->Arrive(operation_.digest);
}

const char* ExchangeAlgorithm::ChannelOf(int giver) const {
  const size_t channel = channels_.by_taker() ? static_cast<size_t>(group_->self()) : 0;
  return group_->member(giver).area->input[parity_] + channel * channel_bytes_;
}

void ExchangeAlgorithm::Copy() {
  for (int giver = 0; giver < group_->size(); ++giver) {
    if (giver != group_->self()) {
      channels_.taken(giver).CopyFrom(ChannelOf(giver), channel_bytes_);
      continue;
    }
    channels_.own().PassTo(&channels_.taken(giver), channel_bytes_);
  }
}

// Reduces this member's channel over the blocks of those who give, in their order.
void ExchangeAlgorithm::Reduce() {
  const size_t element_bytes = DTypeSize(operation_.dtype);
  channels_.taken(0).Take(channel_bytes_, [&](char* to, size_t offset, size_t bytes) {
    channels_.own().Take(bytes, [&](const char* own, size_t at, size_t size) {
      if (to == nullptr) return;
      sources_.clear();
      for (int i = 0; i < group_->size(); ++i) {
        if (operation_.IsAbsent(i)) continue;
        sources_.push_back(i == group_->self() ? own : ChannelOf(i) + offset + at);
      }
      kernels::Reduce(operation_.dtype, operation_.reduce_op, sources_, to + at,
                      static_cast<int64_t>(size / element_bytes), operation_.scaling);
    });
  });
}

absl::StatusOr<Progress> ExchangeAlgorithm::Advance() {
  if (!group_->AllArrived()) return Progress::kBlocked;
  if (step_ == 0) RUEDA_RETURN_IF_ERROR(group_->CheckDigests(operation_.digest));
  if (operation_.kind == OpKind::kReducescatter) {
    Reduce();
  } else {
    Copy();
  }
  if (++step_ == steps_) return Progress::kDone;
  FillAndArrive();
  return Progress::kMoved;
}

}  // namespace rueda
