// A leader's way to the root. Used by the thread that initialises.
#pragma once

#include <memory>
#include <string>

#include "controller/bus/link.h"

namespace rueda {

// Connects rank `self` to rank 0, which listens at `address`. All leaders may come at once, and
// strangers with them: the kernel queues only so many and drops the others, and the root may take one
// for a stranger too many. So this tries again, at most to `deadline`. ABORTED: nobody listens there
// any more.
absl::StatusOr<std::unique_ptr<Link>> ConnectToRoot(const std::string& address,
                                                    const SessionScope& scope, Rank self,
                                                    Nanos deadline);

}  // namespace rueda
