#include "controller/runtime/engine_parts.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "controller/bus/log_bus.h"
#include "controller/failure/liveness.h"
#include "controller/rendezvous/lane_connector.h"
#include "ops/backends.h"

namespace rueda {
namespace {

Nanos Limit(double seconds) {
  return static_cast<Nanos>(seconds * kSecond);
}

// Rings this rank's own sleeper, if it sleeps.
std::function<void()> WakeSelf(const EngineParts& parts) {
  return [neighbours = parts.neighbours.get()] { neighbours->WakeSelf(); };
}

void MakeStore(const World& world, EngineParts* parts) {
  parts->store = world.store;
  if (parts->store != nullptr) return;
  Link* up = nullptr;
  for (const RoleLink& each : world.links) {
    if (each.role == LinkRole::kParent || each.role == LinkRole::kLeader) up = each.link.get();
  }
  parts->link_store = std::make_shared<LinkStore>(WakeSelf(*parts));
  parts->relay = std::make_unique<StoreRelay>(up, parts->link_store.get());
  parts->store = parts->link_store;
}

absl::StatusOr<std::unique_ptr<HostLog>> MakeLog(const World& world, const Config& config,
                                                 EngineParts* parts) {
  const std::vector<Rank>& ranks = world.log_ranks;
  const LogLayout layout = LogLayout::For(static_cast<int>(ranks.size()));
  void* memory = world.neighbourhood.segment->log();
  if (config.bus == "tcp") {
    parts->own_log.reset(aligned_alloc(64, layout.bytes() / 64 * 64 + 64));
    memory = parts->own_log.get();
    if (memory == nullptr) {
      return absl::ResourceExhaustedError("no memory for the announcement log");
    }
    // The side ring need not be zero, and is not touched before it is used.
    memset(memory, 0, layout.bytes() - layout.side_bytes);
  }
  const auto position = std::find(ranks.begin(), ranks.end(), world.rank);
  return std::make_unique<HostLog>(memory, layout, static_cast<int>(position - ranks.begin()));
}

absl::Status MakeBus(const World& world, const Config& config, EngineParts* parts) {
  CoordinatorOptions options;
  options.world_size = world.size();
  options.process_sets = world.process_sets;
  options.bucket_bytes = config.fusion_threshold;
  options.stall_warn = Limit(config.stall_warn_s);
  options.stall_timeout = Limit(config.stall_timeout_s);
  options.deadlock_timeout = Limit(config.deadlock_timeout_s);
  options.leaders = world.leaders;
  RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<HostLog> log, MakeLog(world, config, parts));
  const Neighbours* const neighbours = parts->neighbours.get();
  const WakeFn wake = [neighbours, &world](Rank rank) { neighbours->Wake(world.LocalIndex(rank)); };
  if (world.one_log) {
    parts->bus = std::make_unique<LogBus>(
        std::move(log), world.rank, options, wake,
        [neighbours, &world](Rank rank) { neighbours->WakeIdle(world.LocalIndex(rank)); });
    parts->connections->CarryFor(nullptr, parts->relay.get());
    return absl::OkStatus();
  }
  auto bus = std::make_unique<HostsBus>(std::move(log), world.log_ranks, world.rank, options, wake,
                                        parts->connections.get());
  parts->connections->CarryFor(bus.get(), parts->relay.get());
  parts->bus = std::move(bus);
  return absl::OkStatus();
}

BackendArgs ArgsOfBackends(const World& world, const Config& config, std::shared_ptr<Arena> arena,
                           const EngineParts& parts) {
  BackendArgs args;
  args.config = &config;
  args.job = world.job;
  args.membership = world.membership;
  args.store = parts.store;
  args.wake = WakeSelf(parts);
  args.silence_limit = Liveness::SilenceMax(Limit(config.heartbeat_limit_s));
  args.network_interface = world.network_interface;
  args.connector = parts.connector.get();
  args.wait_set = parts.wait_point.get();
  args.host_ranks = world.topology.host_of(world.rank).ranks;
  args.local_rank = world.local_rank();
  args.segment = world.neighbourhood.segment.get();
  args.neighbours = parts.neighbours.get();
  args.arenas = world.neighbourhood.arenas;
  args.own_arena = std::move(arena);
  return args;
}

}  // namespace

absl::Status MakeParts(const EnginePartsArgs& args, EngineParts* parts) {
  World& world = *args.world;
  const Config& config = *args.config;
  parts->neighbours = std::make_unique<Neighbours>(
      world.neighbourhood.segment.get(), world.local_rank(), std::move(world.neighbourhood.bells));
  const Bells& bells = parts->neighbours->own_bells();
  RUEDA_ASSIGN_OR_RETURN(WaitPoint point, WaitPoint::Create(&bells.background, &bells.waiter));
  parts->wait_point = std::make_unique<WaitPoint>(std::move(point));
  if (config.agent_fd >= 0) {
    RUEDA_ASSIGN_OR_RETURN(parts->verdicts,
                           VerdictBoard::Open(static_cast<int>(config.agent_fd),
                                              static_cast<int>(config.agent_bell_fd), world.slots));
    parts->verdicts->Blame(world.rank, -1);
  }
  parts->connections = std::make_unique<Connections>(&world.links, parts->wait_point.get(),
                                                     Limit(config.heartbeat_limit_s),
                                                     args.turns_without_sockets, args.listener);
  RUEDA_RETURN_IF_ERROR(
      parts->connections->Open(parts->verdicts == nullptr ? -1 : parts->verdicts->bell_fd()));
  MakeStore(world, parts);
  RUEDA_RETURN_IF_ERROR(MakeBus(world, config, parts));
  parts->connector = std::make_unique<LaneConnector>(
      SessionScope{world.secret, world.job, world.membership}, world.data_address);
  parts->backends = MakeBackends(ArgsOfBackends(world, config, args.arena, *parts));
  return absl::OkStatus();
}

void TellFailedStart(World* world, const absl::Status& why) {
  const RankInfo& self = world->infos[world->rank];
  // Threads have no connection that would break.
  world->guard.Say({.rank = world->rank,
                    .accuser = world->rank,
                    .pid = self.pid,
                    .host = self.host_name,
                    .cause = absl::StrCat("it failed to start: ", why.message()),
                    .membership = world->membership});
  const std::string record = world->neighbourhood.segment->failure();
  for (RoleLink& each : world->links) {
    each.link->Send(FrameType::kFailure, record);
    (void)each.link->OnWritable();
  }
}

}  // namespace rueda
