#include "ops/hierarchical/block_pipeline.h"

namespace rueda {

void BlockPipeline::Start(BlockOperation* work, const BucketOperation& operation) {
  work_ = work;
  work->Reset(operation, next_);
  next_ += static_cast<uint64_t>(work->layout().blocks);
  filled_ = sent_ = taken_ = 0;
  status_ = ring_.Open();
  if (status_.ok() && HasStripe()) exchange_->Start(work);
}

absl::StatusOr<Progress> BlockPipeline::Advance() {
  RUEDA_RETURN_IF_ERROR(status_);
  bool moved = false;
  if (HasStripe()) {
    RUEDA_ASSIGN_OR_RETURN(moved, exchange_->Advance());
  }
  RUEDA_ASSIGN_OR_RETURN(const bool stepped, Step());
  moved |= stepped;
  if (taken_ == work_->layout().blocks) return Progress::kDone;
  return moved ? Progress::kMoved : Progress::kBlocked;
}

// What keeps the network busy goes first.
absl::StatusOr<bool> BlockPipeline::Step() {
  if (HasStripe() && sent_ < filled_) {
    RUEDA_ASSIGN_OR_RETURN(const bool sent, CollectAndSend());
    if (sent) return true;
  }
  if (filled_ < work_->layout().blocks && filled_ - taken_ < static_cast<int64_t>(kRingBlocks)) {
    Fill();
    return true;
  }
  return Take();
}

void BlockPipeline::Fill() {
  const uint64_t number = work_->Number(filled_);
  if (ring_.size() > 1 && !work_->BringsNothing()) {
    work_->Bring(filled_, ring_.own_input(number));
  }
  ring_.Fill(number, work_->operation().digest);
  ++filled_;
}

absl::StatusOr<bool> BlockPipeline::CollectAndSend() {
  const uint64_t number = work_->Number(sent_);
  if (!exchange_->connected() || !ring_.AllFilled(number)) return false;
  RUEDA_RETURN_IF_ERROR(ring_.CheckFilled(number, work_->operation().digest));
  RUEDA_RETURN_IF_ERROR(ring_.Locate());
  int collected = -1;
  parts_.resize(static_cast<size_t>(split_.hosts()));
  for (int host = 0; host < split_.hosts(); ++host) {
    const int place = work_->PlaceOf(sent_, host).index;
    const auto i = static_cast<size_t>(host);
    parts_[i] = place == collected ? parts_[i - 1]
                                   : work_->Collect(sent_, host, exchange_->PartAt(sent_, host),
                                                    exchange_->sends_from_anywhere());
    collected = place;
  }
  RUEDA_RETURN_IF_ERROR(exchange_->Send(sent_, parts_));
  ++sent_;
  return true;
}

absl::StatusOr<bool> BlockPipeline::Take() {
  if (taken_ == filled_ || !ring_.AllFinished(work_->Number(taken_), work_->layout().stripes)) {
    return false;
  }
  if (work_->layout().taken_from_parts) {
    const uint64_t number = work_->Number(taken_);
    work_->TakeParts(taken_, exchange_->Parts(taken_), ring_.own_output(number));
    RUEDA_RETURN_IF_ERROR(exchange_->Release(taken_));
  } else {
    RUEDA_RETURN_IF_ERROR(ring_.Locate());
    work_->Take(taken_);
  }
  ++taken_;
  return true;
}

}  // namespace rueda
