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
// rank of the job; `admitted` then has those that came, also when not all did. Others are turned
// away: those that prove nothing within two seconds, that fail to, or that are too many at once;
// the log has at most a line a second of them. Of two processes of the job that say that they are
// the same rank the first stays; the other, and one that is none of `expected`, is told so
// (kRefused). DEADLINE_EXCEEDED names the ranks that did not come, and how many were turned away;
// UNAVAILABLE a rank that came and was lost again.
absl::Status AdmitRanks(const UniqueFd& listener, absl::Span<const Rank> expected,
                        const SessionScope& scope, Rank self, Nanos deadline,
                        std::map<Rank, std::unique_ptr<Link>>* admitted);

}  // namespace rueda
