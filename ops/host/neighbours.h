// The ranks of this host as one of them sees the others: their doorbells, and the flags that say
// whether ringing is needed. A waker publishes, then calls Wake; a sleeper announces its sleep,
// then looks once more (Rueda's one wait point: controller/runtime/wait_point.h).
#pragma once

#include <atomic>
#include <vector>

#include "core/base/doorbell.h"
#include "ops/host/segment.h"

namespace rueda {

struct Bells {
  Doorbell background;  // bell 1
  Doorbell waiter;      // bell 2
};

class Neighbours {
 public:
  // `bells` by local index; this rank's own are among them.
  Neighbours(Segment* segment, int self, std::vector<Bells> bells)
      : segment_(segment), self_(self), bells_(std::move(bells)) {}

  int self() const { return self_; }
  int count() const { return static_cast<int>(bells_.size()); }
  const Bells& own_bells() const { return bells_[self_]; }
  RankPage& own_page() const { return segment_->page(self_); }

  // Rings the neighbour if it sleeps, unless it has nothing under way: what was published is then
  // none of its business, or it has found it already. The caller has published what it should find,
  // and has put a sequentially consistent fence behind that.
  void Wake(int local) const {
    const uint32_t sleep = segment_->page(local).sleep.load(std::memory_order_relaxed);
    if (__builtin_expect(sleep == static_cast<uint32_t>(Sleep::kAwake), 1)) return;
    if (sleep != static_cast<uint32_t>(Sleep::kIdle)) Ring(local, sleep);
  }
  // The same, but rings one that has nothing under way too.
  void WakeIdle(int local) const {
    const uint32_t sleep = segment_->page(local).sleep.load(std::memory_order_relaxed);
    if (sleep != static_cast<uint32_t>(Sleep::kAwake)) Ring(local, sleep);
  }
  // Rings this rank's own sleeper, if it sleeps. After what it should find was published; the fence
  // is here.
  void WakeSelf() const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    WakeIdle(self_);
  }
  // Rings everybody, this rank too, whatever the flags say: for failures.
  void RingAll() const {
    for (const Bells& bells : bells_) {
      bells.background.Ring();
      bells.waiter.Ring();
    }
  }

 private:
  void Ring(int local, uint32_t sleep) const {
    // A number that is no flag was written by nobody of ours; ring both.
    if (sleep != static_cast<uint32_t>(Sleep::kWaiter)) bells_[local].background.Ring();
    if (sleep != static_cast<uint32_t>(Sleep::kBackground) &&
        sleep != static_cast<uint32_t>(Sleep::kIdle)) {
      bells_[local].waiter.Ring();
    }
  }

  Segment* const segment_;
  const int self_;
  const std::vector<Bells> bells_;
};

}  // namespace rueda
