#include "controller/rendezvous/admission.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controller/bus/socket.h"
#include "controller/membership/rank_set.h"
#include "controller/rendezvous/turned_away.h"
#include "core/base/log.h"
#include "core/base/process.h"

namespace rueda {
namespace {

// A peer that does not prove who it is within this time, or is one too many, is turned away.
constexpr Nanos kHandshakeLimit = 2 * kSecond;
// Real ranks may come all at once; more than them and so many others is an attack.
constexpr size_t kStrangersMax = 64;
// How long one may at least take for each of its two messages, however many wait behind it: a rank
// needs no longer, even on a host that is busy with the crowd.
constexpr Nanos kFairChance = 100 * kMillisecond;
// Between two looks at those that are there already.
constexpr int kAcceptsAtATime = 64;
// How long one that is refused may take to hear why; and so many of them at once.
constexpr Nanos kFarewell = kSecond;
constexpr size_t kLeavingMax = 64;

struct Pending {
  std::unique_ptr<Link> link;
  Nanos since;
  Nanos turn;        // when it came to be its turn to say something
  std::string from;  // an address; empty: of this host
};

class Admission {
 public:
  Admission(absl::Span<const Rank> expected, const SessionScope& scope, Rank self,
            std::map<Rank, std::unique_ptr<Link>>* admitted)
      : expected_(expected), scope_(scope), self_(self), admitted_(*admitted) {}
  ~Admission() {
    Log(turned_away_.Rest());
    CloseGently(std::move(leaving_), MonotonicNow() + kFarewell);
  }

  bool done() const { return admitted_.size() == expected_.size(); }

  absl::Status Missing() const {
    std::vector<Rank> missing;
    for (const Rank rank : expected_) {
      if (admitted_.count(rank) == 0) missing.push_back(rank);
    }
    return absl::DeadlineExceededError(absl::StrCat(RanksText(missing),
                                                    " did not come to the start of the job in time",
                                                    turned_away_.Summary()));
  }

  // Waits for something to happen, at most to `deadline`, and takes it.
  absl::Status Step(const UniqueFd& listener, Nanos now, Nanos deadline) {
    DropLate(now);
    // Those behind wait in the kernel until there is room.
    const Nanos room_from = RoomFrom();
    const bool has_room = room_from <= now;
    if (!has_room) deadline = std::min(deadline, room_from);
    std::vector<pollfd> waits = {{has_room ? listener.get() : -1, POLLIN, 0}};
    for (const Pending& p : pending_) {
      const int events = POLLIN | (p.link->wants_write() ? POLLOUT : 0);
      waits.push_back({p.link->fd(), static_cast<short>(events), 0});
      deadline = std::min(deadline, p.since + kHandshakeLimit);
    }
    const size_t first_admitted = waits.size();
    for (const auto& [rank, link] : admitted_) waits.push_back({link->fd(), POLLRDHUP, 0});
    if (poll(waits.data(), waits.size(), PollTimeoutMs(deadline - now)) < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "waiting for the other ranks");
    }
    size_t i = first_admitted;
    for (const auto& [rank, link] : admitted_) {
      if (waits[i++].revents != 0) {
        return Lost(rank);
      }
    }
    for (i = first_admitted - 1; i > 0; --i) {
      if (waits[i].revents != 0) RUEDA_RETURN_IF_ERROR(Hear(i - 1));
    }
    return waits[0].revents != 0 ? AcceptSome(listener) : absl::OkStatus();
  }

 private:
  static void Log(const std::string& line) {
    if (!line.empty()) RUEDA_LOG(Warning) << line;
  }
  void TurnAway(absl::string_view from, absl::string_view why) {
    Log(turned_away_.Add(from, why, MonotonicNow()));
  }

  bool IsExpected(Rank rank) const {
    return std::binary_search(expected_.begin(), expected_.end(), rank);
  }

  static absl::Status Lost(Rank rank) {
    return absl::UnavailableError(
        absl::StrCat("rank ", rank, " was lost while the job started: it has ended, or given up"));
  }

  void Remove(size_t i) {
    const auto it = pending_from_.find(pending_[i].from);
    if (--it->second == 0) pending_from_.erase(it);
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
  }

  void DropLate(Nanos now) {
    for (size_t i = pending_.size(); i-- > 0;) {
      if (pending_[i].since + kHandshakeLimit > now) continue;
      TurnAway(pending_[i].from, "it did not prove who it is in time");
      Remove(i);
    }
  }

  absl::Status Hear(size_t i) {
    Link& link = *pending_[i].link;
    absl::Status status = link.OnWritable();
    if (status.ok()) status = link.OnReadable();
    if (status.ok() && !link.established()) {
      // Its hello has been answered, if it has said it; that may have taken us long.
      if (link.peer() >= 0 && pending_[i].turn == pending_[i].since) {
        pending_[i].turn = MonotonicNow();
      }
      return absl::OkStatus();
    }
    std::unique_ptr<Link> taken = std::move(pending_[i].link);
    const std::string from = pending_[i].from;
    Remove(i);
    if (taken->established()) return Take(std::move(taken), from, status);
    // Of this user, by a unix socket: somebody only looked whether the name is taken.
    if (from.empty() && taken->peer() < 0 && absl::IsUnavailable(status)) return absl::OkStatus();
    TurnAway(from, Reason(*taken, status));
    return absl::OkStatus();
  }

  // Why one that has proved nothing is turned away.
  static std::string Reason(const Link& link, const absl::Status& status) {
    if (!absl::IsUnavailable(status)) return std::string(status.message());
    if (link.peer() < 0) return "it went without a word";
    return absl::StrCat(
        "it said that it is rank ", link.peer(),
        ", and went before it had proved it (does it have another secret, or another job's name?)");
  }

  // One that has proved to be of this job.
  absl::Status Take(std::unique_ptr<Link> link, const std::string& from,
                    const absl::Status& status) {
    const Rank rank = link->peer();
    const bool is_new = IsExpected(rank) && admitted_.count(rank) == 0;
    if (is_new && absl::IsUnavailable(status)) return Lost(rank);
    if (!status.ok()) {
      TurnAway(from, status.message());
    } else if (is_new) {
      admitted_.emplace(rank, std::move(link));
    } else {
      Refuse(std::move(link), from);
    }
    return absl::OkStatus();
  }

  // The first that came as a rank keeps its place. The other is told, and so is the log.
  void Refuse(std::unique_ptr<Link> link, const std::string& from) {
    const Rank rank = link->peer();
    const std::string why =
        IsExpected(rank)
            ? absl::StrCat("two processes say that they are rank ", rank, " of this job")
            : absl::StrCat("a process says that it is rank ", rank, " of this job, which rank ",
                           self_, " does not wait for");
    TurnAway(from, why);
    link->Send(FrameType::kRefused, why);
    if (!link->OnWritable().ok()) return;
    if (leaving_.size() >= kLeavingMax) leaving_.erase(leaving_.begin());
    leaving_.push_back(std::move(link));
  }

  absl::Status AcceptSome(const UniqueFd& listener) {
    for (int i = 0; i < kAcceptsAtATime && RoomFrom() <= MonotonicNow(); ++i) {
      absl::StatusOr<UniqueFd> fd = Accept(listener);
      if (absl::IsPermissionDenied(fd.status())) {
        TurnAway("", fd.status().message());
        continue;
      }
      if (absl::IsResourceExhausted(fd.status()) && !pending_.empty()) {
        MakeRoom("this process has no descriptor left");
        continue;
      }
      RUEDA_RETURN_IF_ERROR(fd.status());
      if (!fd->valid()) return absl::OkStatus();
      if (full()) MakeRoom("there are too many of them at once");
      std::string from = PeerAddress(*fd);
      ++pending_from_[from];
      const Nanos now = MonotonicNow();
      pending_.push_back({Link::Server(*std::move(fd), scope_, self_), now, now, std::move(from)});
    }
    return absl::OkStatus();
  }

  bool full() const {
    return pending_.size() >= kStrangersMax + expected_.size() - admitted_.size();
  }

  // Who goes when there are too many: of the address that most came from, the one that has had its
  // turn for longest. A rank proves itself at once, and who comes in masses is in his own way.
  // There is at least one.
  size_t First() const {
    const auto most =
        std::max_element(pending_from_.begin(), pending_from_.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    size_t first = pending_.size();
    for (size_t i = 0; i < pending_.size(); ++i) {
      if (pending_[i].from != most->first) continue;
      if (first == pending_.size() || pending_[i].turn < pending_[first].turn) first = i;
    }
    return first;
  }

  // When another may come in.
  Nanos RoomFrom() const { return full() ? pending_[First()].turn + kFairChance : 0; }

  void MakeRoom(absl::string_view why) {
    const size_t first = First();
    TurnAway(pending_[first].from, why);
    Remove(first);
  }

  const absl::Span<const Rank> expected_;
  const SessionScope& scope_;
  const Rank self_;
  std::map<Rank, std::unique_ptr<Link>>& admitted_;
  std::vector<Pending> pending_;                // the oldest first
  std::map<std::string, size_t> pending_from_;  // how many, by address
  std::vector<std::unique_ptr<Link>> leaving_;  // refused, and told so
  TurnedAway turned_away_;
};

}  // namespace

absl::Status AdmitRanks(const UniqueFd& listener, absl::Span<const Rank> expected,
                        const SessionScope& scope, Rank self, Nanos deadline,
                        std::map<Rank, std::unique_ptr<Link>>* admitted) {
  MakeRoomForDescriptors(expected.size());
  Admission admission(expected, scope, self, admitted);
  while (!admission.done()) {
    const Nanos now = MonotonicNow();
    if (now >= deadline) return admission.Missing();
    RUEDA_RETURN_IF_ERROR(admission.Step(listener, now, deadline));
  }
  return absl::OkStatus();
}

}  // namespace rueda
