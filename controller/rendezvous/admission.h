// Lets the ranks of a job in, and nobody else, while anybody may knock. Used by the thread that
// initialises.
#pragma once

#include <map>
#include <memory>

#include "absl/types/span.h"
#include "controller/bus/link.h"
#include "core/base/clock.h"
#include "core/base/unique_fd.h"

namespace rueda {

// Waits until each of `expected`, ascending, has connected to `listener` and proved that it is that
// rank of the job; `admitted` then has those that came, also when not all did. Others are turned away: those
// that prove nothing within two seconds, that fail to, or that are too many at once.
// DEADLINE_EXCEEDED names the ranks that did not come; FAILED_PRECONDITION when two processes say
// that they are the same rank.
absl::Status AdmitRanks(const UniqueFd& listener, absl::Span<const Rank> expected,
                        const SessionScope& scope, Rank self, Nanos deadline,
                        std::map<Rank, std::unique_ptr<Link>>* admitted);

}  // namespace rueda
