// Connections of a lane's own between members on different hosts, each of whom proves to the others
// that it belongs to the job. What goes over them afterwards is the lane's business.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "ops/backend/store.h"

namespace rueda {

class Connector {
 public:
  virtual ~Connector() = default;

  struct Call {
    std::string key;               // of what they say in the store; equal on all, and nobody else's
    absl::Span<const Rank> ranks;  // the members, in one order on all
    int self = 0;                  // this rank's index among them
    Nanos timeout = 0;
    LaneStore* store = nullptr;
  };
  // Meets the other members, who do the same. By index: a TCP socket that is connected, and does
  // not block; for this rank none. Blocks; on a lane's thread. DEADLINE_EXCEEDED names who did not
  // come; ABORTED soon after the store's view was aborted.
  virtual absl::StatusOr<std::vector<UniqueFd>> Connect(const Call& call) = 0;
};

}  // namespace rueda
