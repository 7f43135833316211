// The backend of process sets on several hosts: shared memory inside, Gloo across. Reductions and
// barriers send each byte once to each other host, all ranks at once; other operations go over Gloo
// alone.
#pragma once

#include <memory>

#include "ops/backend/backend.h"
#include "ops/gloo/gloo_backend.h"
#include "ops/shm/shm_backend.h"

namespace rueda {

class HierarchicalBackend : public Backend {
 public:
  // Both outlive this and its communicators. `block_bytes`: for tests; 0: what suits the hosts.
  HierarchicalBackend(ShmBackend* local, GlooBackend* across, size_t block_bytes = 0)
      : local_(local), across_(across), block_bytes_(block_bytes) {}

  absl::string_view name() const override { return "hierarchical"; }
  bool connects() const override { return true; }
  absl::Status Viable(const Members& members) const override;
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const Members& members) override;
  absl::StatusOr<Levels> ConnectLevels(const Members& members) override;

 private:
  ShmBackend* const local_;
  GlooBackend* const across_;
  const size_t block_bytes_;
};

}  // namespace rueda
