#include "ops/paths/peer_paths.h"

#include <dirent.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace rueda {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How long an answer to a new connection may take, and how many are tried.
constexpr milliseconds kTrialPatience = milliseconds(1'000);
constexpr size_t kTrialsMax = 16;
// How often the kernel asks an idle peer, at least, and how often it does so in vain before it
// takes the connection for lost: far beyond the limit, which is ours to watch.
constexpr int kAskSecondsMax = 30;
constexpr int kAskedInVainMax = 127;
// How long an acknowledgment may take, beyond twice the round trip.
constexpr milliseconds kAnswerPatience = milliseconds(100);

// Address and port, of either family.
bool SameAddress(const sockaddr_storage& a, const sockaddr_storage& b) {
  if (a.ss_family != b.ss_family) return false;
  if (a.ss_family == AF_INET) {
    const auto& four_a = reinterpret_cast<const sockaddr_in&>(a);
    const auto& four_b = reinterpret_cast<const sockaddr_in&>(b);
    return four_a.sin_port == four_b.sin_port && four_a.sin_addr.s_addr == four_b.sin_addr.s_addr;
  }
  if (a.ss_family != AF_INET6) return false;
  const auto& six_a = reinterpret_cast<const sockaddr_in6&>(a);
  const auto& six_b = reinterpret_cast<const sockaddr_in6&>(b);
  return six_a.sin6_port == six_b.sin6_port &&
         memcmp(&six_a.sin6_addr, &six_b.sin6_addr, sizeof six_a.sin6_addr) == 0;
}

// Of a connected IP socket; false: it is something else.
bool NamesOf(int fd, sockaddr_storage* local, sockaddr_storage* remote) {
  *local = *remote = {};
  socklen_t size = sizeof *remote;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(remote), &size) != 0) return false;
  size = sizeof *local;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(local), &size) != 0) return false;
  return remote->ss_family == AF_INET || remote->ss_family == AF_INET6;
}

void Set(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof value);
}

}  // namespace

PeerPaths::~PeerPaths() {
  for (Path& path : paths_) EndTrials(&path);
}

void PeerPaths::Expect(int peer, const sockaddr_storage& here, const sockaddr_storage& there) {
  if (limit_ <= Clock::duration::zero()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  Path path = {};
  path.peer = peer;
  path.here = here;
  path.there = there;
  paths_.push_back(path);
}

void PeerPaths::Watch(int peer, int fd) {
  if (limit_ <= Clock::duration::zero()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  Path path = {};
  path.peer = peer;
  if (!NamesOf(fd, &path.local, &path.remote)) return;
  path.there = path.remote;
  Found(&path, fd);
  paths_.push_back(path);
}

// From now on it is asked after.
void PeerPaths::Found(Path* path, int fd) const {
  const int ask = std::clamp(
      static_cast<int>(std::chrono::duration_cast<seconds>(limit_ / 4).count()), 1, kAskSecondsMax);
  path->socket = fd;
  Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, ask);
  Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, ask);
  Set(fd, IPPROTO_TCP, TCP_KEEPCNT, kAskedInVainMax);
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

void PeerPaths::FindSockets() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), &closedir);
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder.get())) {
    const int fd = atoi(entry->d_name);
    sockaddr_storage local, remote;
    if (entry->d_name[0] == '.' || !NamesOf(fd, &local, &remote)) continue;
    for (Path& path : paths_) {
      if (path.socket != kNotLookedFor) continue;
      if (!SameAddress(local, path.here) && !SameAddress(remote, path.there)) continue;
      path.local = local;
      path.remote = remote;
      Found(&path, fd);
      break;
    }
  }
  for (Path& path : paths_) {
    if (path.socket == kNotLookedFor) path.socket = kNotFound;
  }
}

// Whether the descriptor is the same connection's: Gloo may have closed that.
bool PeerPaths::IsStill(const Path& path) {
  sockaddr_storage local, remote;
  return path.socket >= 0 && NamesOf(path.socket, &local, &remote) &&
         SameAddress(local, path.local) && SameAddress(remote, path.remote);
}

void PeerPaths::EndTrials(Path* path) {
  for (const int fd : path->trials) close(fd);
  path->trials.clear();
  path->tries = false;
}

// Whether the other end's host has said something, be it no.
bool PeerPaths::IsAnswer(int error) {
  return error == 0 || error == ECONNREFUSED || error == ECONNRESET;
}

// Looks after the attempts at a new connection, and begins another.
void PeerPaths::Try(Path* path, Clock::time_point now) {
  std::erase_if(path->trials, [&](int fd) {
    pollfd done = {fd, POLLOUT, 0};
    if (poll(&done, 1, 0) <= 0) return false;
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);  // which it then forgets
    if (IsAnswer(error)) path->answered = now;
    close(fd);
    return true;
  });
  if (!path->tries) path->tried_since = now;
  path->tries = true;
  if (path->answered == now) return EndTrials(path);
  if (path->trials.size() >= kTrialsMax) return;
  const int fd = socket(path->local.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {  // it can't be known
    path->answered = now;
    return EndTrials(path);
  }
  // From the same address, unless that is gone.
  sockaddr_storage from = path->local;
  reinterpret_cast<sockaddr_in&>(from).sin_port = 0;  // at the same place in both families
  (void)bind(fd, reinterpret_cast<const sockaddr*>(&from), sizeof from);
  const int failed =
      connect(fd, reinterpret_cast<const sockaddr*>(&path->there), sizeof path->there);
  if (failed != 0 && errno == EINPROGRESS) {
    path->trials.push_back(fd);
    return;
  }
  // At once: this host itself knows of no way (blackhole, unreachable, no route), or it is
  // loopback.
  const bool answered = failed == 0 || IsAnswer(errno);
  close(fd);
  if (answered) {
    path->answered = now;
    EndTrials(path);
  }
}

// For how long the same bytes have been sent again and again though something came meanwhile; since
// when they have been sent in vain once more, or else a cut that is over would count, as the kernel
// waits for ever longer. A reader who is slow acknowledges what it has no room for.
PeerPaths::Clock::duration PeerPaths::StuckFor(Path* path, const tcp_info& info,
                                               Clock::duration heard, Clock::time_point now) {
  int queued = 0;
  const bool known = ioctl(path->socket, SIOCOUTQ, &queued) == 0;
  const bool was_stuck = path->is_stuck && queued >= path->queued;
  path->is_stuck = known && info.tcpi_unacked > 0 && info.tcpi_retransmits > 0;
  path->queued = queued;
  if (!path->is_stuck) return {};
  if (!was_stuck) {
    path->stuck_since = now;
    path->has_come = false;
  }
  if (!path->has_come) {
    path->has_come = now - heard > path->stuck_since;
    path->sent_again = info.tcpi_retransmits;
    return {};
  }
  const Clock::duration answered_by =
      2 * std::chrono::microseconds(info.tcpi_rtt) + kAnswerPatience;
  const bool in_vain = info.tcpi_retransmits > path->sent_again &&
                       milliseconds(info.tcpi_last_data_sent) > answered_by;
  return in_vain ? now - path->stuck_since : Clock::duration();
}

PeerPaths::Silence PeerPaths::Silent() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Clock::time_point now = Clock::now();
  for (Path& path : paths_) {
    tcp_info info = {};
    socklen_t size = sizeof info;
    if (!IsStill(path) || getsockopt(path.socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
      EndTrials(&path);
      continue;
    }
    const Clock::duration heard =
        std::min<Clock::duration>(milliseconds(info.tcpi_last_ack_recv), now - path.answered);
    const Clock::duration stuck = StuckFor(&path, info, heard, now);
    if (heard <= limit_ / 2) {
      EndTrials(&path);
      if (stuck > limit_) return {path.peer, stuck, /*is_of_large=*/true};
      continue;
    }
    Try(&path, now);
    const bool tried = path.tries && now - path.tried_since >=
                                         std::min<Clock::duration>(kTrialPatience, limit_ / 4);
    if (heard > limit_ && tried) return {path.peer, heard, /*is_of_large=*/false};
  }
  return {};
}

}  // namespace rueda
