// Errors whose cause is one rank: it was lost, or could not go on. And how they travel while a job
// starts: in a roster, in the place of the ranks.
#pragma once

#include <optional>

#include "controller/protocol/rueda.pb.h"
#include "core/base/ids.h"
#include "core/base/status.h"

namespace rueda {

// `error`, whose cause is `rank`.
absl::Status ErrorOfRank(Rank rank, absl::Status error);
// UNAVAILABLE, with `text`: `rank` was lost, and nobody knows more.
absl::Status LostError(Rank rank, absl::string_view text);
// Whose doing an error is, if it is one of these; not of what StatusAt makes of them.
std::optional<Rank> LostRank(const absl::Status& error);

// A roster that says why there is none. PURE
wire::Roster RosterOfError(const absl::Status& error);
// The error of a roster that has one, OK of another. PURE
absl::Status ErrorOf(const wire::Roster& roster);

}  // namespace rueda
