// A leader's way to another one. Used by the thread that initializes.
#pragma once

#include <memory>
#include <string>

#include "controller/bus/link.h"

namespace rueda {

// Connects rank `self` to the leader `peer`, which listens at `address`. Many may come at once, and
// strangers with them: the kernel queues only so many and drops the others, and the peer may take
// one for a stranger too many. So this tries again, at most to `deadline`. ABORTED: nobody listens
// there any more.
absl::StatusOr<std::unique_ptr<Link>> ConnectToLeader(Rank peer, const std::string& address,
                                                      const SessionScope& scope, Rank self,
                                                      Nanos deadline);

}  // namespace rueda
