// A doorbell: an eventfd that one thread sleeps on (with epoll) and that any thread or process
// holding the descriptor may ring. Ringing never blocks and rings before a sleep are not lost.
// Copies are the same bell, with one descriptor.
#pragma once

#include <memory>

#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace rueda {

class Doorbell {
 public:
  Doorbell() = default;
  explicit Doorbell(UniqueFd fd)
      : owner_(std::make_shared<const UniqueFd>(std::move(fd))), fd_(owner_->get()) {}

  static absl::StatusOr<Doorbell> Create();

  void Ring() const;
  // Forgets the rings so far. Called by the sleeper only.
  void Clear() const;
  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  std::shared_ptr<const UniqueFd> owner_;
  int fd_ = -1;
};

}  // namespace rueda
