// The Gloo backend: any process set, over TCP. What it knows of Gloo is the module's table.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/base/clock.h"
#include "ops/backend/backend.h"
#include "ops/backend/module_abi.h"
#include "ops/backend/module_library.h"
#include "ops/backend/store.h"

namespace rueda {

struct GlooOptions {
  std::string job;  // the store's keys begin with these two
  uint64_t membership = 1;
  std::string network_interface = "lo";
  // Of connecting, and of each wait for a peer once an operation was begun. A peer that begins late
  // uses it up, too: it must be longer than a rank may be late.
  Nanos timeout = 60 * kSecond;
  Nanos silence_limit = 0;  // see Communicator::SilentMember; 0: none
  std::shared_ptr<Store> store;
  // Rings the engine. Any thread; outlives the communicators.
  std::function<void()> wake;
  std::string module_directory;  // empty: ModuleDirectory()
};

class GlooBackend : public Backend {
 public:
  explicit GlooBackend(GlooOptions options) : options_(std::move(options)) {}

  absl::string_view name() const override { return "gloo"; }
  bool connects() const override { return true; }
  // Loads the module the first time.
  absl::Status Viable(const Members& members) const override;
  // INVALID_ARGUMENT: this host has no such network interface.
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const Members& members) override;

  // For who goes between hosts in some other way: what another communicator of these members is
  // made of. `word` tells it from their others.
  absl::StatusOr<ModuleArgs> ArgsFor(const Members& members, absl::string_view word) const;

 private:
  absl::StatusOr<const rueda_module*> Module() const;

  const GlooOptions options_;
  // What loading the module came to; UNKNOWN: not tried yet.
  mutable absl::StatusOr<const rueda_module*> module_ = absl::UnknownError("");
};

}  // namespace rueda
