// The members of one process set on one host, as one of them sees the others: their areas, their
// arenas, and the arrival count by which everything is ordered.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "core/base/check.h"
#include "core/base/shared_memory.h"
#include "core/base/status.h"
#include "ops/backend/backend.h"
#include "ops/host/neighbours.h"
#include "ops/host/segment.h"

namespace rueda {

struct ShmMember {
  Area* area;
  int local;                            // its index among the host's ranks
  std::shared_ptr<SharedMemory> arena;  // region 1
};

class ShmGroup {
 public:
  // `generation`: how many process sets had these areas before.
  ShmGroup(std::vector<ShmMember> members, int self, const Neighbours* neighbours,
           uint32_t generation)
      : members_(std::move(members)),
        self_(self),
        neighbours_(neighbours),
        arrivals_(FirstCount(generation)) {}

  int size() const { return static_cast<int>(members_.size()); }
  int self() const { return self_; }
  const ShmMember& member(int i) const { return members_[i]; }
  Area& own() const { return *members_[self_].area; }

  // Which of the two slots, blocks and descriptors the next arrival publishes.
  int parity() const { return static_cast<int>(arrivals_ & 1); }

  // The number of the next arrival; never 0.
  uint64_t next_arrival() const { return arrivals_ + 1; }

  // Publishes what this rank wrote for the next arrival, with the layout's digest, before anybody
  // can wait for it: nobody has to be woken. Arrive follows, or TakeBackArrival.
  void ArriveEarly(uint32_t digest) {
    prepared_for_ = next_arrival();
    Area& area = own();
    area.digest[parity()] = digest;
    area.arrivals.store(next_arrival(), std::memory_order_release);
    early_ = true;
  }
  // Whoever has seen the early arrival has begun what it was for. `never`: that does not come.
  void TakeBackArrival(bool never) {
    if (never) prepared_for_ = 0;
    if (!early_) return;
    early_ = false;
    // Somebody may read the arrival before from this.
    own().arrivals.store(arrivals_, std::memory_order_release);
  }

  // Whether what the next arrival publishes was written before, and others may be reading it,
  // though the arrival may have been taken back.
  bool prepared() const { return prepared_for_ == next_arrival(); }

  // Publishes what this rank wrote for the next arrival, with the layout's digest, wakes whoever
  // sleeps, and begins the wait for the others.
  void Arrive(uint32_t digest) {
    Area& area = own();
    arrived_ = 0;
    if (early_) {
      RUEDA_CHECK(area.digest[parity()] == digest) << "an early arrival for something else";
      early_ = false;
      ++arrivals_;
      return;
    }
    // After an early arrival that was taken back, others may be reading it.
    if (area.digest[parity()] != digest) area.digest[parity()] = digest;
    area.arrivals.store(++arrivals_, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (int i = 0; i < size(); ++i) {
      if (i != self_) neighbours_->Wake(members_[i].local);
    }
  }

  // Wakes a member if it sleeps, after what it should find was published.
  void Wake(int i) const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    neighbours_->Wake(members_[i].local);
  }

  // Whether all members have made this rank's latest arrival; then what they published is visible.
  bool AllArrived() {
    for (; arrived_ < size(); ++arrived_) {
      if (members_[arrived_].area->arrivals.load(std::memory_order_acquire) < arrivals_)
        return false;
    }
    return true;
  }
  // INTERNAL when a member published another digest with the latest arrival.
  absl::Status CheckDigests(uint32_t digest) const;

 private:
  const std::vector<ShmMember> members_;
  const int self_;
  const Neighbours* const neighbours_;
  uint64_t arrivals_;          // this rank's
  bool early_ = false;         // the next one is published already
  uint64_t prepared_for_ = 0;  // the arrival that was made early last; 0: none that still counts
  int arrived_ = 0;            // members below this index have arrived
};

}  // namespace rueda
