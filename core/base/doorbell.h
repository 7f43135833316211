// A doorbell: an eventfd that one thread sleeps on (with epoll) and that any thread or process
// holding the descriptor may ring. Ringing never blocks and rings before a sleep are not lost.
// Copies are the same bell, with one descriptor.
#pragma once

#include <memory>

#include "core/base/closed_in_child.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace rueda {

class Doorbell {
 public:
  Doorbell() = default;
  explicit Doorbell(UniqueFd fd)
      : fd_(fd.get()), owner_(std::make_shared<const Owner>(std::move(fd))) {}

  static absl::StatusOr<Doorbell> Create();

  void Ring() const;
  // Forgets the rings so far. Called by the sleeper only.
  void Clear() const;
  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  struct Owner {
    explicit Owner(UniqueFd own) : fd(std::move(own)), closed_in_child(fd.get()) {}
    UniqueFd fd;
    ClosedInChild closed_in_child;
  };

  int fd_ = -1;
  std::shared_ptr<const Owner> owner_;
};

}  // namespace rueda
