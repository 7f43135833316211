// Descriptors that a forked child must not keep: a rank is known to be gone when its sockets are
// closed, and a child that lives on, such as a data loader's worker, would keep them open. What a
// child needs to initialize a context of its own is not among them.
#pragma once

#include <utility>

namespace rueda {

// As long as this lives, a forked child closes its copy of `fd` before fork returns there; nothing
// else is done to it, as shutting down or watching would act on the parent's. Takes no lock and no
// memory. Any thread. With more than some thousands at a time further ones are not closed.
class ClosedInChild {
 public:
  ClosedInChild() = default;
  explicit ClosedInChild(int fd);
  ClosedInChild(ClosedInChild&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}
  ClosedInChild& operator=(ClosedInChild&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~ClosedInChild();

 private:
  int slot_ = -1;  // -1: none
};

}  // namespace rueda
