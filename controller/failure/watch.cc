#include "controller/failure/watch.h"

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <map>
#include <utility>

#include "controller/bus/socket.h"
#include "controller/failure/failure.h"
#include "core/base/mutex.h"
#include "core/base/process.h"
#include "core/base/seconds.h"

namespace rueda {
namespace {

// The kernel's own patience with a connection ends after the watch's: it would take a peer for lost
// within the limit, and tell less.
constexpr Nanos kTcpPatienceBeyond = 2 * kSecond;
// Without a limit only the kernel asks, once a second, and its questions may be lost too.
constexpr Nanos kTcpPatienceAlone = 10 * kSecond;

bool IsRemote(LinkRole role) {
  return role == LinkRole::kChild || role == LinkRole::kParent;
}

size_t CountRemotes(const std::vector<RoleLink>& links) {
  return static_cast<size_t>(std::count_if(
      links.begin(), links.end(), [](const RoleLink& each) { return IsRemote(each.role); }));
}

}  // namespace

Watch::Watch(std::vector<RoleLink>* links, Nanos limit, Nanos now)
    : links_(*links),
      has_others_(std::any_of(links->begin(), links->end(),
                              [](const RoleLink& each) { return each.role != LinkRole::kLeader; })),
      liveness_(limit, CountRemotes(*links), links->size() - CountRemotes(*links), now) {
  for (RoleLink& each : *links) {
    std::shared_ptr<const End> end = ShareEnd(each.pid);
    // Of two ranks in one process.
    if (std::find(ends_.begin(), ends_.end(), end) != ends_.end()) end = OpenEnd(each.pid);
    if (IsRemote(each.role)) {
      SetTcpPatience(each.link->fd(), limit > 0 ? limit + kTcpPatienceBeyond : kTcpPatienceAlone);
      remotes_.push_back({each.link.get()});
    } else {
      neighbours_.push_back({each.link->peer(), each.pid, each.role == LinkRole::kLeader, end});
      if (end != nullptr) look_who_dies_ = now;
    }
    ends_.push_back(std::move(end));
  }
}

std::shared_ptr<const Watch::End> Watch::OpenEnd(int pid) {
  UniqueFd fd = pid > 0 ? OpenPidfd(pid) : UniqueFd();
  if (!fd.valid()) return nullptr;
  ClosedInChild closed_in_child(fd.get());
  return std::make_shared<const End>(End{std::move(fd), std::move(closed_in_child)});
}

std::shared_ptr<const Watch::End> Watch::ShareEnd(int pid) {
  struct Shared {
    Mutex mutex;
    std::map<int, std::weak_ptr<const End>> ends ABSL_GUARDED_BY(mutex);  // by process
  };
  static Shared* shared = new Shared;
  // A forked child has ends of its own, and maybe a mutex that is locked for ever.
  [[maybe_unused]] static const int once =
      pthread_atfork(nullptr, nullptr, [] { shared = new Shared; });
  MutexLock lock(shared->mutex);
  std::erase_if(shared->ends, [](const auto& each) { return each.second.expired(); });
  std::weak_ptr<const End>& known = shared->ends[pid];
  if (std::shared_ptr<const End> end = known.lock()) {  // another may have its number since
    pollfd ended = {end->fd.get(), POLLIN, 0};
    if (poll(&ended, 1, 0) == 0) return end;
  }
  std::shared_ptr<const End> end = OpenEnd(pid);
  known = end;
  return end;
}

void Watch::OnHeard(const Link* link, Nanos now) {
  const auto it = std::find_if(remotes_.begin(), remotes_.end(),
                               [&](const Remote& each) { return each.link == link; });
  if (it != remotes_.end()) liveness_.OnHeard(static_cast<size_t>(it - remotes_.begin()), now);
}

// What it has acknowledged since the last look is at least the heartbeat of then, unless that is
// still under way. The kernel there does it: a process that is late has been reached.
void Watch::LookWhatReached(size_t remote, Nanos now) {
  Remote& each = remotes_[remote];
  const uint64_t left = UnacknowledgedBytes(each.link->fd()).value_or(0);
  const uint64_t reached = each.link->written() - std::min(left, each.link->written());
  if (left == 0 || reached > each.reached) liveness_.OnReached(remote, now);
  each.reached = reached;
}

std::optional<Watch::Lost> Watch::WhoDies(Nanos now) {
  look_who_dies_ = now + kWhoDiesInterval;
  for (const Neighbour& each : neighbours_) {
    if (each.end == nullptr) continue;
    const std::optional<int> status = WaitStatusOfDying(each.pid);
    if (!status.has_value()) continue;
    // Of one that has ended the connection tells, and its number may be another's by now.
    pollfd ended = {each.end->fd.get(), POLLIN, 0};
    if (poll(&ended, 1, 0) == 0) return Lost{each.rank, EndText(*status)};
  }
  return std::nullopt;
}

std::optional<Watch::Lost> Watch::SendHeartbeatsAndCheck(bool waiting, Nanos now) {
  liveness_.BeginLook(now);
  for (size_t i = 0; i < remotes_.size(); ++i) {
    LookWhatReached(i, now);
    remotes_[i].link->Send(FrameType::kHeartbeat, "");
  }
  for (size_t i = 0; i < remotes_.size(); ++i) {
    if (const auto silence = liveness_.SilentFor(i, now)) {
      return Lost{remotes_[i].link->peer(),
                  "silent for " + Seconds(*silence) +
                      (liveness_.IsReached(i, now)
                           ? ", while its host answers: the process is stopped, or the network "
                             "drops large packets from there"
                           : ", as is its host: it is down, or cut off from the network")};
    }
  }
  for (size_t i = 0; i < remotes_.size(); ++i) {
    if (const auto time = liveness_.UnreachedFor(i, now)) {
      return Lost{remotes_[i].link->peer(),
                  "nothing has reached it for " + Seconds(*time) +
                      ", though it is heard: the network drops what is sent to its host, or "
                      "large packets"};
    }
  }
  for (size_t i = 0; i < neighbours_.size(); ++i) {
    const Neighbour& each = neighbours_[i];
    const bool matters = each.pid > 0 && (waiting || !each.leads);
    const bool is_stopped = matters && ProcessState(each.pid) == kStoppedBySignal;
    if (const auto time = liveness_.StoppedFor(i, is_stopped, now)) {
      return Lost{each.rank, "stopped by a signal for " + Seconds(*time)};
    }
    // A sandbox without pidfds.
    if (each.pid > 0 && each.end == nullptr && HasEnded(each.pid)) {
      return Lost{each.rank, "its process has ended", /*has_just_ended=*/true};
    }
  }
  return std::nullopt;
}

std::optional<Watch::Lost> EndedRanks::Check(const VerdictBoard* board,
                                             absl::Span<const RankInfo> infos,
                                             absl::FunctionRef<bool(Rank)> has_left, Nanos now) {
  if (board == nullptr) return std::nullopt;
  Rank ended = -1;
  for (size_t i = 0; i < infos.size(); ++i) {
    const Rank rank = static_cast<Rank>(i);
    const std::optional<VerdictBoard::Verdict> verdict = board->Read(rank);
    if (!verdict.has_value() || has_left(rank)) continue;
    const bool said_so = board->BlamedBy(rank) >= 0;
    // Else it may be the end of a script that has started the rank.
    if (!said_so && verdict->pid != infos[i].pid) continue;
    if (!said_so) return Watch::Lost{rank, "its process has ended"};
    if (ended < 0) ended = rank;
  }
  if (std::exchange(found_, ended) != ended) found_at_ = now;
  if (ended < 0 || now - found_at_ < kPatience) return std::nullopt;
  found_ = -1;
  return Watch::Lost{ended, "its process has ended"};
}

}  // namespace rueda
