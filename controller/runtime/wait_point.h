// The one place where a rank's threads sleep. Two sleepers at most, with a bell each: the
// background thread, parked here whenever it does not turn the engine, and a waiter that holds the
// baton. Both also wake for the sockets.
#pragma once

#include <vector>

#include "core/base/clock.h"
#include "core/base/closed_in_child.h"
#include "core/base/doorbell.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "ops/backend/wait_set.h"

namespace rueda {

class WaitPoint final : public WaitSet {
 public:
  enum class Sleeper { kBackground, kWaiter };

  // The bells outlive this.
  static absl::StatusOr<WaitPoint> Create(const Doorbell* background, const Doorbell* waiter);

  // Sockets to wake for when they can be read (or written, if asked).
  absl::Status AddSocket(int fd);
  // An eventfd whose every ring is to be heard once, though nobody forgets the rings.
  absl::Status AddBell(int fd);
  void WantWrite(int fd, bool want);
  void RemoveSocket(int fd);
  absl::Status Watch(int fd) override;
  void Unwatch(int fd) override;
  // Whether what is watched wakes; at first it does.
  void HeedWatched(bool heed);
  // The sockets that are ready now; does not block.
  std::vector<int> ReadySockets() const;

  // Sleeps until the sleeper's bell rings, a socket is ready, or `deadline`; then forgets the
  // rings.
  void Sleep(Sleeper sleeper, Nanos deadline) const;
  // The same, but sockets don't end it.
  void SleepOnBell(Sleeper sleeper, Nanos deadline) const;

 private:
  const Doorbell& bell(Sleeper sleeper) const {
    return *bells_[sleeper == Sleeper::kBackground ? 0 : 1];
  }

  WaitPoint(const Doorbell* background, const Doorbell* waiter) : bells_{background, waiter} {}

  const Doorbell* bells_[2];
  UniqueFd sockets_;  // an epoll instance of all sockets
  std::vector<int> watched_;
  bool heeds_watched_ = true;
  ClosedInChild closed_in_child_;
};

}  // namespace rueda
