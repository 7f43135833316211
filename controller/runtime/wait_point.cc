#include "controller/runtime/wait_point.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <time.h>

#include <algorithm>

namespace rueda {
namespace {

absl::Status Add(const UniqueFd& epoll, int fd, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoStatus(errno, "watching a descriptor (epoll_ctl)");
  }
  return absl::OkStatus();
}

void Change(const UniqueFd& epoll, int fd, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  epoll_ctl(epoll.get(), EPOLL_CTL_MOD, fd, &event);
}

// Until the bell rings, or `other` (-1: nothing) is ready.
void Await(const Doorbell& bell, int other, Nanos deadline) {
  pollfd waits[2] = {{bell.fd(), POLLIN, 0}, {other, POLLIN, 0}};
  const Nanos left = std::max<Nanos>(0, deadline - MonotonicNow());
  const timespec timeout = {left / kSecond, left % kSecond};
  ppoll(waits, 2, deadline == kForever ? nullptr : &timeout, nullptr);
  bell.Clear();
}

}  // namespace

absl::StatusOr<WaitPoint> WaitPoint::Create(const Doorbell* background, const Doorbell* waiter) {
  WaitPoint point(background, waiter);
  point.sockets_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!point.sockets_.valid()) return ErrnoStatus(errno, "creating an epoll instance");
  point.closed_in_child_ = ClosedInChild(point.sockets_.get());
  return point;
}

absl::Status WaitPoint::AddSocket(int fd) {
  return Add(sockets_, fd, EPOLLIN);
}

absl::Status WaitPoint::AddBell(int fd) {
  return Add(sockets_, fd, EPOLLIN | EPOLLET);
}

void WaitPoint::WantWrite(int fd, bool want) {
  Change(sockets_, fd, EPOLLIN | (want ? EPOLLOUT : 0u));
}

void WaitPoint::RemoveSocket(int fd) {
  epoll_ctl(sockets_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

absl::Status WaitPoint::Watch(int fd) {
  watched_.push_back(fd);
  return Add(sockets_, fd, heeds_watched_ ? uint32_t{EPOLLIN} : 0);
}

void WaitPoint::Unwatch(int fd) {
  RemoveSocket(fd);
  std::erase(watched_, fd);
}

void WaitPoint::HeedWatched(bool heed) {
  if (heed == heeds_watched_) return;
  heeds_watched_ = heed;
  for (const int fd : watched_) Change(sockets_, fd, heed ? uint32_t{EPOLLIN} : 0);
}

std::vector<int> WaitPoint::ReadySockets() const {
  epoll_event events[64];
  std::vector<int> ready;
  const int n = epoll_wait(sockets_.get(), events, 64, 0);
  for (int i = 0; i < n; ++i) ready.push_back(events[i].data.fd);
  return ready;
}

void WaitPoint::SleepOnBell(Sleeper sleeper, Nanos deadline) const {
  Await(bell(sleeper), -1, deadline);
}

void WaitPoint::Sleep(Sleeper sleeper, Nanos deadline) const {
  Await(bell(sleeper), sockets_.get(), deadline);
}

}  // namespace rueda
