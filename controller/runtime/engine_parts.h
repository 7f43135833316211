// What an engine is made of: what a world and a configuration make before its first turn.
#pragma once

#include <stdlib.h>

#include <memory>
#include <vector>

#include "controller/bus/bus.h"
#include "controller/bus/hosts_bus.h"
#include "controller/bus/store_relay.h"
#include "controller/failure/verdict_board.h"
#include "controller/rendezvous/bootstrap.h"
#include "controller/runtime/connections.h"
#include "controller/runtime/wait_point.h"
#include "core/config/config.h"
#include "ops/backend/backend.h"
#include "ops/backend/connector.h"
#include "ops/host/arena.h"
#include "ops/host/neighbours.h"

namespace rueda {

struct EngineParts {
  std::unique_ptr<Neighbours> neighbours;
  std::unique_ptr<WaitPoint> wait_point;   // wakes for the sockets of all links
  std::unique_ptr<VerdictBoard> verdicts;  // null: no launcher watches this rank
  std::unique_ptr<Connections> connections;
  std::shared_ptr<LinkStore> link_store;  // null: the store is not reached over links
  std::shared_ptr<Store> store;
  std::unique_ptr<StoreRelay> relay;                               // of `link_store`
  std::unique_ptr<void, decltype(&free)> own_log{nullptr, &free};  // the log's memory, if it is
                                                                   // this rank's alone
  std::unique_ptr<Bus> bus;
  std::unique_ptr<Connector> connector;  // of lanes
  std::vector<std::unique_ptr<Backend>> backends;
};

struct EnginePartsArgs {
  World* world = nullptr;          // outlives the parts; its bells are taken
  const Config* config = nullptr;  // outlives them too
  std::shared_ptr<Arena> arena;
  int turns_without_sockets = 1;  // Spin::turns_without_sockets
  Connections::Listener* listener = nullptr;
};

// Fills `parts`, whose address stays. Nothing blocks, nothing is connected yet.
absl::Status MakeParts(const EnginePartsArgs& args, EngineParts* parts);

// Tells all that this rank is connected to, and its neighbours, who may have started, why it can't.
void TellFailedStart(World* world, const absl::Status& why);

}  // namespace rueda
