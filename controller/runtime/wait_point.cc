#include "controller/runtime/wait_point.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <time.h>

#include <algorithm>
#include <atomic>

namespace rueda {
namespace {

absl::Status Watch(const UniqueFd& epoll, int fd, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoStatus(errno, "watching a descriptor (epoll_ctl)");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WaitPoint> WaitPoint::Create(const Doorbell* background, const Doorbell* waiter) {
  WaitPoint point(background, waiter);
  int count = 0;
  for (UniqueFd* epoll : {&point.sockets_, &point.sleeps_[0], &point.sleeps_[1]}) {
    epoll->reset(epoll_create1(EPOLL_CLOEXEC));
    if (!epoll->valid()) return ErrnoStatus(errno, "creating an epoll instance");
    point.closed_in_child_[count++] = ClosedInChild(epoll->get());
  }
  for (int i = 0; i < 2; ++i) {
    RUEDA_RETURN_IF_ERROR(Watch(point.sleeps_[i], point.bells_[i]->fd(), EPOLLIN));
    RUEDA_RETURN_IF_ERROR(Watch(point.sleeps_[i], point.sockets_.get(), EPOLLIN));
  }
  return point;
}

absl::Status WaitPoint::AddSocket(int fd) {
  return Watch(sockets_, fd, EPOLLIN);
}

absl::Status WaitPoint::AddBell(int fd) {
  return Watch(sockets_, fd, EPOLLIN | EPOLLET);
}

void WaitPoint::WantWrite(int fd, bool want) {
  epoll_event event = {};
  event.events = EPOLLIN | (want ? EPOLLOUT : 0u);
  event.data.fd = fd;
  epoll_ctl(sockets_.get(), EPOLL_CTL_MOD, fd, &event);
}

void WaitPoint::RemoveSocket(int fd) {
  epoll_ctl(sockets_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

std::vector<int> WaitPoint::ReadySockets() const {
  epoll_event events[64];
  std::vector<int> ready;
  const int n = epoll_wait(sockets_.get(), events, 64, 0);
  for (int i = 0; i < n; ++i) ready.push_back(events[i].data.fd);
  return ready;
}

namespace {

timespec LeftUntil(Nanos deadline) {
  const Nanos left = std::max<Nanos>(0, deadline - MonotonicNow());
  return {left / kSecond, left % kSecond};
}

// Until something is ready.
void WaitUntil(const UniqueFd& epoll, Nanos deadline) {
  // Not before Linux 5.11, nor behind a filter of system calls that knows only older ones.
  static std::atomic<bool> has_pwait2{true};
  epoll_event events[2];
  if (has_pwait2.load(std::memory_order_relaxed)) {
    const timespec timeout = LeftUntil(deadline);
    const int ready =
        epoll_pwait2(epoll.get(), events, 2, deadline == kForever ? nullptr : &timeout, nullptr);
    if (ready >= 0 || (errno != ENOSYS && errno != EPERM)) return;
    has_pwait2.store(false, std::memory_order_relaxed);
  }
  epoll_wait(epoll.get(), events, 2,
             deadline == kForever ? -1 : PollTimeoutMs(deadline - MonotonicNow()));
}

}  // namespace

void WaitPoint::SleepOnBell(Sleeper sleeper, Nanos deadline) const {
  const Doorbell& bell = *bells_[sleeper == Sleeper::kBackground ? 0 : 1];
  pollfd wait = {bell.fd(), POLLIN, 0};
  const timespec timeout = LeftUntil(deadline);
  ppoll(&wait, 1, deadline == kForever ? nullptr : &timeout, nullptr);
  bell.Clear();
}

void WaitPoint::Sleep(Sleeper sleeper, Nanos deadline) const {
  const int i = sleeper == Sleeper::kBackground ? 0 : 1;
  WaitUntil(sleeps_[i], deadline);
  bells_[i]->Clear();
}

}  // namespace rueda
