#include "controller/rendezvous/start_guard.h"

namespace rueda {

void StartGuard::Begin(Segment* segment, absl::Span<const Bells> bells) noexcept {
  bells_.assign(bells.begin(), bells.end());
  segment_ = segment;
}

void StartGuard::Say(const Failure& words) {
  if (segment_ == nullptr) return;
  record_ = EncodeFailure(words);
  Say();
}

void StartGuard::Say() noexcept {
  if (segment_ == nullptr) return;
  segment_->Fail(record_);
  for (const Bells& bells : bells_) {
    bells.background.Ring();
    bells.waiter.Ring();
  }
  segment_ = nullptr;
}

}  // namespace rueda
