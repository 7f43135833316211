// A library behind a module's table: what a communicator over it is made of, and its errors as
// ours.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "ops/backend/communicator.h"
#include "ops/backend/module_abi.h"
#include "ops/backend/store.h"

namespace rueda {

// What a lane's communicator needs to meet the other members', and to be heard by the engine.
struct LaneArgs {
  std::string prefix;       // of this communicator's keys in the store; equal on all members
  Nanos timeout = 0;        // of connecting, and of each wait for a peer inside an operation
  Nanos silence_limit = 0;  // of a member; 0: none
  std::shared_ptr<Store> store;
  // Rings the engine after an operation's end was published. Any thread; outlives the communicator.
  std::function<void()> wake;
};

struct ModuleArgs : LaneArgs {
  const rueda_module* module = nullptr;
  int members = 0;
  int self = 0;
  std::string network_interface;
};

// The library's object, for the module's `destroy`. It uses `store`, the lane's view of args.store,
// which must outlive it.
absl::StatusOr<rueda_module_communicator*> CreateInModule(const ModuleArgs& args, LaneStore* store);

// A member to whose host no connection works, if there is one. Any thread, before `destroy`.
std::optional<Silence> SilentMember(const rueda_module& module, rueda_module_communicator* library);

// What a function of the module has returned, in its words.
absl::Status ModuleStatus(const rueda_module& module, int32_t code, const char* message);

}  // namespace rueda
