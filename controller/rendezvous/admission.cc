#include "controller/rendezvous/admission.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controller/bus/socket.h"
#include "controller/membership/rank_set.h"
#include "controller/protocol/lost.h"
#include "controller/rendezvous/refused_peers.h"
#include "core/base/log.h"
#include "core/base/process.h"

namespace rueda {
namespace {

// A peer that does not prove who it is within this time, or is one too many, is refused.
constexpr Nanos kHandshakeLimit = 2 * kSecond;
// Real ranks may come all at once; more than them and so many others is an attack.
constexpr size_t kStrangersMax = 64;
// So few of them can't be why there is no descriptor left.
constexpr size_t kStrangersMin = 8;
// How long one may at least take for each of its two messages, however many wait behind it: a rank
// needs no longer, even on a host that is busy with the crowd.
constexpr Nanos kFairChance = 100 * kMillisecond;
// After an error, how long all takes. It ends before the others give up waiting for why
// (UnixMeeting::kVerdictPatience).
constexpr Nanos kHearOutLimit = 1500 * kMillisecond;
// Between two looks at those that are there already.
constexpr int kAcceptsAtATime = 64;
// So many that are refused may be hearing why at once.
constexpr size_t kLeavingMax = 64;

void Log(const std::string& line) {
  if (!line.empty()) RUEDA_LOG(Warning) << line;
}

absl::Status Lost(Rank rank) {
  return LostError(rank, absl::StrCat("rank ", rank,
                                      " was lost while the job started: it has ended, "
                                      "or given up"));
}

// Why one that has proved nothing is refused.
std::string Reason(const Link& link, const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return std::string(status.message());
  if (link.peer() < 0) return "it went without a word";
  return absl::StrCat(
      "it said that it is rank ", link.peer(),
      ", and went before it had proved it (does it have another secret, or another job's name?)");
}

}  // namespace

std::string TwoAre(Rank rank) {
  return absl::StrCat("two processes say that they are rank ", rank, " of this job");
}

Admission::Admission(absl::Span<const Rank> expected, const SessionScope& scope, Rank self,
                     LinksByRank* links, const VerdictBoard* board, Hear hear)
    : expected_(expected),
      scope_(scope),
      self_(self),
      links_(*links),
      board_(board),
      hear_(std::move(hear)) {
  MakeRoomForDescriptors(expected.size());
}

Admission::~Admission() {
  Log(refused_peers_.Rest());
  CloseGently(std::move(leaving_), MonotonicNow() + kFarewellLimit);
}

absl::Status Admission::DidNotCome(absl::Span<const Rank> ranks) const {
  return absl::DeadlineExceededError(absl::StrCat(
      RanksText(ranks), " did not come to the start of the job in time", refused_peers_.Summary()));
}

absl::Status Admission::Step(const UniqueFd& listener, Nanos deadline) {
  const Nanos now = MonotonicNow();
  RUEDA_RETURN_IF_ERROR(LookAtBoard());
  if (board_ != nullptr) deadline = std::min(deadline, now + VerdictBoard::kLookAgain);
  // Those behind wait in the kernel until there is room.
  const Nanos room_from = RoomFrom();
  const bool has_room = room_from <= now;
  if (!has_room) deadline = std::min(deadline, room_from);
  std::vector<pollfd> waits = {{has_room ? listener.get() : -1, POLLIN, 0}};
  const auto wait_for = [&waits](const Link& link, int events) {
    if (link.wants_write()) events |= POLLOUT;
    waits.push_back({link.fd(), static_cast<short>(events), 0});
  };
  for (const Pending& p : pending_) {
    wait_for(*p.link, POLLIN);
    deadline = std::min(deadline, p.since + kHandshakeLimit);
  }
  const size_t strangers = pending_.size();
  std::vector<Rank> ranks;
  for (const auto& [rank, link] : links_) {
    wait_for(*link, hear_ ? POLLIN : POLLRDHUP);
    ranks.push_back(rank);
  }
  if (poll(waits.data(), waits.size(), PollTimeoutMs(deadline - now)) < 0 && errno != EINTR) {
    return ErrnoStatus(errno, "waiting for the other ranks");
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    const short revents = waits[1 + strangers + i].revents;
    if (revents != 0) RUEDA_RETURN_IF_ERROR(Attend(ranks[i], revents));
  }
  for (size_t i = strangers; i > 0; --i) {
    if (waits[i].revents != 0) RUEDA_RETURN_IF_ERROR(HearStranger(i - 1));
  }
  DropLate(MonotonicNow());  // who has said it meanwhile is in
  return waits[0].revents != 0 ? AcceptSome(listener) : absl::OkStatus();
}

void Admission::HearOut(const UniqueFd& listener) {
  const Nanos last_call = MonotonicNow() + kLastCall;
  const Nanos end = MonotonicNow() + kHearOutLimit;
  bool open = true;
  while (true) {
    const Nanos now = MonotonicNow();
    if (now >= end) return;
    open = open && now < last_call;
    const Nanos room_from = RoomFrom();
    std::vector<pollfd> waits = {{open && room_from <= now ? listener.get() : -1, POLLIN, 0}};
    for (const Pending& p : pending_) {
      const int events = POLLIN | (p.link->wants_write() ? POLLOUT : 0);
      waits.push_back({p.link->fd(), static_cast<short>(events), 0});
    }
    Nanos until = pending_.empty() ? now : std::min(pending_.front().since + kHandshakeLimit, end);
    if (open && room_from > now) until = std::min(until, room_from);
    if (poll(waits.data(), waits.size(), PollTimeoutMs(until - now)) < 0 && errno != EINTR) return;
    if (pending_.empty() && waits[0].revents == 0) return;
    for (size_t i = waits.size(); i > 1; --i) {
      if (waits[i - 1].revents != 0) (void)HearStranger(i - 2);
    }
    if (waits[0].revents != 0) open = AcceptSome(listener).ok();
    DropLate(MonotonicNow());
  }
}

absl::Status Admission::LookAtBoard() const {
  if (board_ == nullptr) return absl::OkStatus();
  for (const Rank rank : expected_) RUEDA_RETURN_IF_ERROR(board_->CheckThere(rank));
  return absl::OkStatus();
}

// One that has been let in has something to say, or has gone.
absl::Status Admission::Attend(Rank rank, short revents) {
  const auto it = links_.find(rank);
  if (it == links_.end()) return absl::OkStatus();  // dismissed just now
  const absl::Status status = OnReady(it->second.get(), revents);
  if (!hear_) return LastWords(it->second.get(), Lost(rank));
  RUEDA_RETURN_IF_ERROR(PassOn(rank));
  if (status.ok() || links_.count(rank) == 0) return absl::OkStatus();
  return absl::IsUnavailable(status)
             ? Lost(rank)
             : StatusAt(absl::StrCat("rank ", rank, " failed to start"), status);
}

// What has come of it so far.
absl::Status Admission::PassOn(Rank rank) {
  Link::Received received;
  while (true) {
    const auto it = links_.find(rank);
    if (it == links_.end() || !it->second->Next(&received)) return absl::OkStatus();
    RUEDA_RETURN_IF_ERROR(hear_(it->second.get(), received.frame));
  }
}

void Admission::Dismiss(Rank rank, const std::string& why) {
  const auto it = links_.find(rank);
  if (it == links_.end()) return;
  std::unique_ptr<Link> link = std::move(it->second);
  links_.erase(it);
  Refuse(std::move(link), "", why);
}

bool Admission::IsExpected(Rank rank) const {
  return std::binary_search(expected_.begin(), expected_.end(), rank);
}

void Admission::NoteRefused(absl::string_view from, absl::string_view why) {
  Log(refused_peers_.Add(from, why, MonotonicNow()));
}

void Admission::Remove(size_t i) {
  const auto it = pending_from_.find(pending_[i].from);
  if (--it->second == 0) pending_from_.erase(it);
  pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
}

void Admission::DropLate(Nanos now) {
  for (size_t i = pending_.size(); i-- > 0;) {
    if (pending_[i].since + kHandshakeLimit > now) continue;
    NoteRefused(pending_[i].from, "it did not prove who it is in time");
    Remove(i);
  }
}

absl::Status Admission::HearStranger(size_t i) {
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
  NoteRefused(from, Reason(*taken, status));
  return absl::OkStatus();
}

// One that has proved to be of this job.
absl::Status Admission::Take(std::unique_ptr<Link> link, const std::string& from,
                             const absl::Status& status) {
  const Rank rank = link->peer();
  const bool is_new = IsExpected(rank) && links_.count(rank) == 0;
  if (is_new && absl::IsUnavailable(status)) return Lost(rank);
  if (!status.ok()) {
    NoteRefused(from, status.message());
  } else if (is_new) {
    links_.emplace(rank, std::move(link));
    if (hear_) return PassOn(rank);
  } else {
    // The first that came as a rank keeps its place.
    Refuse(std::move(link), from,
           IsExpected(rank) ? TwoAre(rank)
                            : absl::StrCat("a process says that it is rank ", rank,
                                           " of this job, which is not waited for here"));
  }
  return absl::OkStatus();
}

// Who is told, and so is the log.
void Admission::Refuse(std::unique_ptr<Link> link, const std::string& from,
                       const std::string& why) {
  NoteRefused(from, why);
  link->Send(FrameType::kRefused, why);
  if (!link->OnWritable().ok()) return;
  if (leaving_.size() >= kLeavingMax) leaving_.erase(leaving_.begin());
  leaving_.push_back(std::move(link));
}

absl::Status Admission::AcceptSome(const UniqueFd& listener) {
  for (int i = 0; i < kAcceptsAtATime && RoomFrom() <= MonotonicNow(); ++i) {
    absl::StatusOr<UniqueFd> fd = Accept(listener);
    if (absl::IsPermissionDenied(fd.status())) {
      NoteRefused("", fd.status().message());
      continue;
    }
    if (absl::IsResourceExhausted(fd.status()) && HasTooFewDescriptors()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "rank ", self_, " has no file descriptor left for the ranks that come to it: ",
          "raise the hard limit (ulimit -Hn), or start fewer ranks per host"));
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

// Whether all that are still to come would find no place if those who only seem to be ranks went.
// Not all of them come here where one speaks for a host; then strangers may be in the way, but
// many.
bool Admission::HasTooFewDescriptors() const {
  return pending_.size() < kStrangersMin && expected_.size() - links_.size() > pending_.size();
}

bool Admission::full() const {
  return pending_.size() >= kStrangersMax + expected_.size() - links_.size();
}

// Who goes when there are too many: of the address that most came from, the one that has had its
// turn for longest. A rank proves itself at once, and who comes in masses is in his own way.
// There is at least one.
size_t Admission::First() const {
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
Nanos Admission::RoomFrom() const {
  return full() ? pending_[First()].turn + kFairChance : 0;
}

void Admission::MakeRoom(absl::string_view why) {
  const size_t first = First();
  NoteRefused(pending_[first].from, why);
  Remove(first);
}

absl::Status AdmitRanks(const UniqueFd& listener, absl::Span<const Rank> expected,
                        const SessionScope& scope, Rank self, Nanos deadline, LinksByRank* admitted,
                        const VerdictBoard* board) {
  Admission admission(expected, scope, self, admitted, board);
  absl::Status status;
  while (status.ok() && admitted->size() < expected.size()) {
    if (MonotonicNow() < deadline) {
      status = admission.Step(listener, deadline);
      continue;
    }
    std::vector<Rank> missing;
    for (const Rank rank : expected) {
      if (admitted->count(rank) == 0) missing.push_back(rank);
    }
    status = admission.DidNotCome(missing);
  }
  if (!status.ok()) admission.HearOut(listener);
  return status;
}

}  // namespace rueda
