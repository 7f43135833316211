// Connections of a lane's own between members on different hosts, each of whom proves to the others
// that it belongs to the job. What goes over them afterwards is the lane's business.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "core/base/clock.h"
#include "core/base/closed_in_child.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "ops/backend/store.h"

namespace rueda {

struct Connection {
  Connection() = default;
  explicit Connection(UniqueFd socket) : fd(std::move(socket)), closed_in_child(fd.get()) {}
  UniqueFd fd;
  ClosedInChild closed_in_child;
};

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
  // Meets the other members, who do the same. By index: a TCP connection that does
  // not block; for this rank none. Blocks; on a lane's thread. DEADLINE_EXCEEDED names who did not
  // come; ABORTED soon after the store's view was aborted.
  virtual absl::StatusOr<std::vector<Connection>> Connect(const Call& call) = 0;
};

}  // namespace rueda
