// Connections of lanes between hosts: each begins with the handshake of control connections
// (controller/protocol/authentication.h), under the lane's own name.
#pragma once

#include <string>

#include "controller/protocol/authentication.h"
#include "ops/backend/connector.h"

namespace rueda {

class LaneConnector : public Connector {
 public:
  // `scope`: the job's. `address`: numeric, where this rank waits for those of other hosts.
  LaneConnector(SessionScope scope, std::string address)
      : scope_(std::move(scope)), address_(std::move(address)) {}

  // Who comes later in the order connects to who comes before. Any number of threads at a time.
  absl::StatusOr<std::vector<Connection>> Connect(const Call& call) override;

 private:
  const SessionScope scope_;
  const std::string address_;
};

}  // namespace rueda
