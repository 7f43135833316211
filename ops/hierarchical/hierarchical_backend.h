// The backend of process sets on several hosts: shared memory inside, connections across. Each byte
// goes once to each other host that needs it, all ranks at once. Send and recv go over Gloo alone.
#pragma once

#include <memory>

#include "ops/backend/backend.h"
#include "ops/backend/connector.h"
#include "ops/backend/wait_set.h"
#include "ops/gloo/gloo_backend.h"
#include "ops/hierarchical/stripe_exchange.h"
#include "ops/shm/shm_backend.h"

namespace rueda {

struct HierarchicalOptions {
  bool narrow = true;  // see CrossWire
  // Between hosts: over sockets of our own, made by the connector; null: over Gloo.
  Connector* connector = nullptr;
  WaitSet* wait_set = nullptr;
  size_t block_bytes = 0;  // for tests; 0: what suits the hosts
};

class HierarchicalBackend : public Backend {
 public:
  // Both outlive this and its communicators.
  HierarchicalBackend(ShmBackend* local, GlooBackend* across, HierarchicalOptions options = {})
      : local_(local), across_(across), options_(options) {}

  absl::string_view name() const override { return "hierarchical"; }
  bool connects() const override { return true; }
  absl::Status Viable(const Members& members) const override;
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const Members& members) override;
  absl::StatusOr<Levels> ConnectLevels(const Members& members) override;

 private:
  absl::StatusOr<std::unique_ptr<StripeExchange>> Across(const Members& members,
                                                         const HostSplit& split,
                                                         const CutLimits& limits,
                                                         LocalRing* ring) const;

  ShmBackend* const local_;
  GlooBackend* const across_;
  const HierarchicalOptions options_;
};

}  // namespace rueda
