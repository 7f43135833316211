#include "controller/rendezvous/admission.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controller/bus/socket.h"
#include "controller/membership/rank_set.h"
#include "core/base/log.h"

namespace rueda {
namespace {

// A peer that does not prove who it is within this time, or is one too many, is turned away.
constexpr Nanos kHandshakeLimit = 2 * kSecond;
// Real ranks may come all at once; more than them and so many others is an attack.
constexpr size_t kStrangersMax = 64;

struct Pending {
  std::unique_ptr<Link> link;
  Nanos deadline;
};

class Admission {
 public:
  Admission(absl::Span<const Rank> expected, const SessionScope& scope, Rank self,
            std::map<Rank, std::unique_ptr<Link>>* admitted)
      : expected_(expected), scope_(scope), self_(self), admitted_(*admitted) {}

  bool done() const { return admitted_.size() == expected_.size(); }

  absl::Status Missing() const {
    std::vector<Rank> missing;
    for (const Rank rank : expected_) {
      if (admitted_.count(rank) == 0) missing.push_back(rank);
    }
    return absl::DeadlineExceededError(
        absl::StrCat(RanksText(missing), " did not come to the start of the job in time"));
  }

  // Waits for something to happen, at most to `deadline`, and takes it.
  absl::Status Step(const UniqueFd& listener, Nanos now, Nanos deadline) {
    std::erase_if(pending_, [&](const Pending& p) { return p.deadline <= now; });
    std::vector<pollfd> waits = {{listener.get(), POLLIN, 0}};
    for (const Pending& p : pending_) {
      const int events = POLLIN | (p.link->wants_write() ? POLLOUT : 0);
      waits.push_back({p.link->fd(), static_cast<short>(events), 0});
      deadline = std::min(deadline, p.deadline);
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
    return waits[0].revents != 0 ? AcceptAll(listener) : absl::OkStatus();
  }

 private:
  bool IsExpected(Rank rank) const {
    return std::binary_search(expected_.begin(), expected_.end(), rank);
  }

  static absl::Status Lost(Rank rank) {
    return absl::UnavailableError(
        absl::StrCat("rank ", rank, " was lost while the job started: it has ended, or given up"));
  }

  absl::Status Hear(size_t i) {
    Link& link = *pending_[i].link;
    absl::Status status = link.OnWritable();
    if (status.ok()) status = link.OnReadable();
    if (status.ok() && !link.established()) return absl::OkStatus();
    std::unique_ptr<Link> taken = std::move(pending_[i].link);
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
    if (absl::IsUnavailable(status) && taken->established() && IsExpected(taken->peer()) &&
        admitted_.count(taken->peer()) == 0) {
      return Lost(taken->peer());
    }
    if (!status.ok()) {
      RUEDA_LOG(Warning) << "start: turned a connection away: " << status.message();
      return absl::OkStatus();
    }
    const Rank rank = taken->peer();
    if (!IsExpected(rank) || !admitted_.emplace(rank, std::move(taken)).second) {
      return absl::FailedPreconditionError(
          absl::StrCat("two processes say that they are rank ", rank, " of this job"));
    }
    return absl::OkStatus();
  }

  absl::Status AcceptAll(const UniqueFd& listener) {
    while (true) {
      absl::StatusOr<UniqueFd> fd = Accept(listener);
      if (absl::IsPermissionDenied(fd.status())) {
        RUEDA_LOG(Warning) << "start: turned a connection away: " << fd.status().message();
        continue;
      }
      RUEDA_RETURN_IF_ERROR(fd.status());
      if (!fd->valid()) return absl::OkStatus();
      // The oldest goes: a rank proves itself at once.
      if (pending_.size() >= kStrangersMax + expected_.size()) pending_.erase(pending_.begin());
      pending_.push_back(
          {Link::Server(*std::move(fd), scope_, self_), MonotonicNow() + kHandshakeLimit});
    }
  }

  const absl::Span<const Rank> expected_;
  const SessionScope& scope_;
  const Rank self_;
  std::map<Rank, std::unique_ptr<Link>>& admitted_;
  std::vector<Pending> pending_;
};

}  // namespace

absl::Status AdmitRanks(const UniqueFd& listener, absl::Span<const Rank> expected,
                        const SessionScope& scope, Rank self, Nanos deadline,
                        std::map<Rank, std::unique_ptr<Link>>* admitted) {
  Admission admission(expected, scope, self, admitted);
  while (!admission.done()) {
    const Nanos now = MonotonicNow();
    if (now >= deadline) return admission.Missing();
    RUEDA_RETURN_IF_ERROR(admission.Step(listener, now, deadline));
  }
  return absl::OkStatus();
}

}  // namespace rueda
