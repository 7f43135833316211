// The backend of process sets with one rank: results are the rank's own inputs, scaled.
#pragma once

#include "ops/backend/backend.h"

namespace rueda {

class SoloBackend : public Backend {
 public:
  absl::string_view name() const override { return "solo"; }
  bool connects() const override { return false; }
  absl::Status Viable(const Members& members) const override;
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const Members& members) override;
};

}  // namespace rueda
