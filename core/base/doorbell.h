// A doorbell: an eventfd that one thread sleeps on (with epoll) and that any thread or process
// holding the descriptor may ring. Ringing never blocks and rings before a sleep are not lost.
#pragma once

#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace rueda {

class Doorbell {
 public:
  Doorbell() = default;
  explicit Doorbell(UniqueFd fd) : fd_(std::move(fd)) {}

  static absl::StatusOr<Doorbell> Create();
  // A second handle to the same bell.
  absl::StatusOr<Doorbell> Duplicate() const;

  void Ring() const;
  // Forgets the rings so far. Called by the sleeper only.
  void Clear() const;
  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }

 private:
  UniqueFd fd_;
};

}  // namespace rueda
