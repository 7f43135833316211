#include "controller/rendezvous/lane_connector.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controller/bus/link.h"
#include "controller/bus/socket.h"
#include "controller/membership/rank_set.h"
#include "controller/protocol/lost.h"
#include "controller/rendezvous/admission.h"
#include "core/base/process.h"

namespace rueda {
namespace {

// Between two looks whether the lane has ended.
constexpr Nanos kLookAgain = 50 * kMillisecond;
// As long as any peer may be silent, and longer.
constexpr Nanos kTcpPatience = 3'600 * kSecond;
// Before a connection that was refused is tried again: its host may be busy with strangers.
constexpr Nanos kKnockAgain = 20 * kMillisecond;

// The connections to the members before this one, all at a time.
class Reaching {
 public:
  Reaching(const SessionScope& scope, const Connector::Call& call, Nanos deadline)
      : scope_(scope), call_(call), deadline_(deadline) {}

  absl::Status Run();
  UniqueFd Take(size_t member) { return ends_[member].link->TakeSocket(); }

 private:
  struct End {
    std::string address;
    std::unique_ptr<Link> link;
    Nanos again_at = 0;  // without a link: when to try
    absl::Status why;    // the last try failed
    bool is_let_in = false;
  };
  static absl::Status Hear(End* end, short revents);
  absl::Status TryAt(size_t member);
  absl::Status Step();

  const SessionScope& scope_;
  const Connector::Call& call_;
  const Nanos deadline_;
  std::vector<End> ends_;
};

absl::Status Reaching::Run() {
  for (int member = 0; member < call_.self; ++member) {
    End end;
    absl::StatusOr<std::string> address =
        call_.store->Get(absl::StrCat(call_.key, "/", member), deadline_ - MonotonicNow());
    if (!address.ok()) {
      return StatusAt(absl::StrCat("waiting for rank ", call_.ranks[static_cast<size_t>(member)]),
                      address.status());
    }
    end.address = *std::move(address);
    ends_.push_back(std::move(end));
  }
  const auto is_let_in = [](const End& end) { return end.is_let_in; };
  while (!std::all_of(ends_.begin(), ends_.end(), is_let_in)) RUEDA_RETURN_IF_ERROR(Step());
  return absl::OkStatus();
}

absl::Status Reaching::TryAt(size_t member) {
  End& end = ends_[member];
  RUEDA_ASSIGN_OR_RETURN(UniqueFd fd, ConnectTcp(end.address));
  end.link = Link::Client(std::move(fd), scope_, call_.ranks[static_cast<size_t>(call_.self)],
                          call_.ranks[member]);
  return absl::OkStatus();
}

absl::Status Reaching::Step() {
  const Nanos now = MonotonicNow();
  if (call_.store->aborted()) return absl::AbortedError("the operation was aborted");
  std::vector<pollfd> waits;
  std::vector<size_t> members;
  Nanos until = now + kLookAgain;
  for (size_t member = 0; member < ends_.size(); ++member) {
    End& end = ends_[member];
    if (end.is_let_in) continue;
    if (now >= deadline_) {
      return ErrorOfRank(call_.ranks[member],
                         absl::DeadlineExceededError(absl::StrCat(
                             "connecting to rank ", call_.ranks[member], " at ", end.address, ": ",
                             end.why.ok() ? "no answer in time" : end.why.message())));
    }
    if (end.link == nullptr && now >= end.again_at) RUEDA_RETURN_IF_ERROR(TryAt(member));
    if (end.link == nullptr) {
      until = std::min(until, end.again_at);
      continue;
    }
    const int events = POLLIN | (end.link->wants_write() ? POLLOUT : 0);
    waits.push_back({end.link->fd(), static_cast<short>(events), 0});
    members.push_back(member);
  }
  if (poll(waits.data(), waits.size(), PollTimeoutMs(until - now)) < 0 && errno != EINTR) {
    return ErrnoStatus(errno, "waiting for connections");
  }
  for (size_t i = 0; i < members.size(); ++i) {
    End& end = ends_[members[i]];
    if (waits[i].revents == 0) continue;
    absl::Status status = Hear(&end, waits[i].revents);
    if (status.ok()) continue;
    if (!absl::IsUnavailable(status)) {
      return StatusAt(absl::StrCat("connecting to rank ", call_.ranks[members[i]]), status);
    }
    end.link.reset();
    end.again_at = MonotonicNow() + kKnockAgain;
    end.why = std::move(status);
  }
  return absl::OkStatus();
}

// A member that has proved itself may be refused all the same, if that took it long: it knows that
// it is let in by one byte. Not a byte behind that is read.
absl::Status Reaching::Hear(End* end, short revents) {
  Link& link = *end->link;
  if (!link.established()) return OnReady(&link, revents);
  if (link.wants_write()) return link.OnWritable();
  char word;
  const ssize_t n = recv(link.fd(), &word, 1, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return absl::OkStatus();
  if (n <= 0) return absl::UnavailableError("it was not let in");
  end->is_let_in = true;
  return absl::OkStatus();
}

// Says so to those who have been let in since.
void Welcome(const LinksByRank& admitted, std::vector<Rank>* welcomed) {
  for (const auto& [rank, link] : admitted) {
    if (std::find(welcomed->begin(), welcomed->end(), rank) != welcomed->end()) continue;
    const char word = 1;
    (void)send(link->fd(), &word, 1, MSG_NOSIGNAL | MSG_DONTWAIT);  // one who is gone is missed
    welcomed->push_back(rank);
  }
}

}  // namespace

absl::StatusOr<std::vector<Connection>> LaneConnector::Connect(const Call& call) {
  const Nanos deadline = MonotonicNow() + call.timeout;
  SessionScope scope = scope_;
  absl::StrAppend(&scope.job, "/", call.key);
  scope.frames = false;
  const auto members = call.ranks.size();
  const auto self = static_cast<size_t>(call.self);
  MakeRoomForDescriptors(members);
  UniqueFd listener;
  ClosedInChild listener_in_child;
  if (self + 1 < members) {
    RUEDA_ASSIGN_OR_RETURN(listener, ListenTcp(address_));
    listener_in_child = ClosedInChild(listener.get());
    RUEDA_ASSIGN_OR_RETURN(const std::string address, TcpAddressOf(listener));
    RUEDA_RETURN_IF_ERROR(call.store->Set(absl::StrCat(call.key, "/", call.self), address));
  }
  Reaching reaching(scope, call, deadline);
  RUEDA_RETURN_IF_ERROR(reaching.Run());

  std::vector<Rank> later(call.ranks.begin() + call.self + 1, call.ranks.end());
  std::sort(later.begin(), later.end());
  LinksByRank admitted;
  Admission admission(later, scope, call.ranks[self], &admitted, /*board=*/nullptr);
  std::vector<Rank> welcomed;
  while (welcomed.size() < later.size()) {
    const Nanos now = MonotonicNow();
    if (call.store->aborted()) return absl::AbortedError("the operation was aborted");
    if (now >= deadline) {
      std::erase_if(later, [&](Rank rank) { return admitted.count(rank) > 0; });
      return ErrorOfRank(later.front(),
                         absl::DeadlineExceededError(absl::StrCat(
                             RanksText(later), " did not connect to rank ", call.ranks[self],
                             " in ", call.timeout / kMillisecond, " ms")));
    }
    RUEDA_RETURN_IF_ERROR(admission.Step(listener, std::min(deadline, now + kLookAgain)));
    Welcome(admitted, &welcomed);
  }

  std::vector<Connection> connections(members);
  for (size_t i = 0; i < members; ++i) {
    if (i == self) continue;
    connections[i] =
        Connection(i < self ? reaching.Take(i) : admitted.at(call.ranks[i])->TakeSocket());
    // A peer that is stopped, or does not read, is not lost: others watch over that.
    SetTcpPatience(connections[i].fd.get(), kTcpPatience);
  }
  return connections;
}

}  // namespace rueda
