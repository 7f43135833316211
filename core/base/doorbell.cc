#include "core/base/doorbell.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace rueda {

absl::StatusOr<Doorbell> Doorbell::Create() {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(errno, "creating an eventfd");
  return Doorbell(std::move(fd));
}

void Doorbell::Ring() const {
  const uint64_t one = 1;
  // EAGAIN means that the counter is full, so the bell is ringing already.
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof one);
}

void Doorbell::Clear() const {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(fd_, &count, sizeof count);
}

}  // namespace rueda
