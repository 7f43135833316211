// An operation whose data has come with the plan: every member has what all bring, and makes its
// result by itself. Reductions add up as those do that go through blocks. PURE
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/base/status.h"
#include "ops/backend/communicator.h"

namespace rueda {

// `hosts`: HostSplit::members. `narrow`: see CrossWire. `brought`: by member. Of any kind
// but send/recv, of at most one piece, nobody absent. INTERNAL: the data is not what the members
// bring to that.
absl::Status ExecuteInline(const BucketOperation& operation,
                           const std::vector<std::vector<int>>& hosts, int self, bool narrow,
                           absl::Span<const std::string> brought);

}  // namespace rueda
