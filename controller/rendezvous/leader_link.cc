#include "controller/rendezvous/leader_link.h"

#include "absl/strings/str_cat.h"
#include "controller/bus/socket.h"
#include "controller/protocol/lost.h"

namespace rueda {
namespace {

constexpr Nanos kRetry = 20 * kMillisecond;

// One try. UNAVAILABLE, DEADLINE_EXCEEDED: another may do better.
absl::StatusOr<std::unique_ptr<Link>> TryOnce(Rank peer, const std::string& address,
                                              const SessionScope& scope, Rank self,
                                              Nanos deadline) {
  RUEDA_ASSIGN_OR_RETURN(UniqueFd fd, ConnectTcp(address));
  if (const absl::Status connected = AwaitConnected(fd, address, deadline); !connected.ok()) {
    // Nobody listens any more: it has ended.
    return absl::IsUnavailable(connected) ? absl::AbortedError(connected.message()) : connected;
  }
  auto link = Link::Client(std::move(fd), scope, self, peer);
  RUEDA_RETURN_IF_ERROR(WaitEstablished(link.get(), deadline));
  return link;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Link>> ConnectToLeader(Rank peer, const std::string& address,
                                                      const SessionScope& scope, Rank self,
                                                      Nanos deadline) {
  while (true) {
    absl::StatusOr<std::unique_ptr<Link>> link = TryOnce(peer, address, scope, self, deadline);
    if (link.ok()) return link;
    const absl::Status& status = link.status();
    const bool again = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (!again || MonotonicNow() + kRetry >= deadline) {
      const bool is_gone = again || absl::IsAborted(status);
      if (!is_gone) return StatusAt(absl::StrCat("connecting to rank ", peer), status);
      return LostError(
          peer, absl::StrCat("rank ", peer, " was lost while the job started: ", status.message()));
    }
    SleepFor(kRetry);
  }
}

}  // namespace rueda
