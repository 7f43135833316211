// How the backends of one rank are made: what each may use, and one function for each entry of the
// list (core/config/backends.h). The engine makes them all when it starts, and none connects then.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/config/backends.h"
#include "core/config/config.h"
#include "ops/backend/backend.h"
#include "ops/backend/connector.h"
#include "ops/backend/store.h"
#include "ops/backend/wait_set.h"

namespace rueda {

class Arena;
class Neighbours;
class Segment;
class SharedMemory;

// Pointers outlive the backends and their communicators, but for `config`.
struct BackendArgs {
  const Config* config = nullptr;
  std::string job;  // keys in the store begin with these two
  uint64_t membership = 1;
  std::shared_ptr<Store> store;
  Nanos silence_limit = 0;        // of a member on another host; 0: none
  std::function<void()> wake;     // rings the engine; any thread
  std::string network_interface;  // the one to use
  Connector* connector = nullptr;
  WaitSet* wait_set = nullptr;

  // This rank's host: its ranks, ascending; this one's index among them; what they share; and, by
  // index, their arenas as mapped here. `own_arena`: this rank's allocator.
  std::vector<Rank> host_ranks;
  int local_rank = 0;
  const Segment* segment = nullptr;
  const Neighbours* neighbours = nullptr;
  std::vector<std::shared_ptr<SharedMemory>> arenas;
  std::shared_ptr<Arena> own_arena;

  // Another backend of the list, by its name, for one that is made of others. Not in circles.
  std::function<Backend*(absl::string_view name)> other;
};

#define RUEDA_DECLARE_MAKE(name, make, choice) \
  std::unique_ptr<Backend> make(const BackendArgs& args);
RUEDA_BACKENDS(RUEDA_DECLARE_MAKE)
#undef RUEDA_DECLARE_MAKE

}  // namespace rueda
