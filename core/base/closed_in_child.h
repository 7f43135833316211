// Descriptors that a forked child must not keep: a rank is known to be gone when its sockets are
// closed, and a child that lives on, such as a data loader's worker, would keep them open.
#pragma once

namespace rueda {

// As long as this lives, a forked child closes its copy of `fd` before fork returns there; nothing
// else is done to it, as shutting down or watching would act on the parent's. Takes no lock and no
// memory. Any thread. With more than some thousands at a time further ones are not closed.
class ClosedInChild {
 public:
  explicit ClosedInChild(int fd);
  ~ClosedInChild();
  ClosedInChild(const ClosedInChild&) = delete;
  ClosedInChild& operator=(const ClosedInChild&) = delete;

 private:
  int slot_ = -1;  // -1: there was none left
};

}  // namespace rueda
