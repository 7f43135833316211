#include "controller/rendezvous/bootstrap.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "controller/bus/host_log.h"
#include "controller/bus/socket.h"
#include "controller/failure/failure.h"
#include "controller/membership/process_sets.h"
#include "controller/rendezvous/admission.h"
#include "controller/rendezvous/host_identity.h"
#include "controller/rendezvous/leader_link.h"
#include "controller/rendezvous/network.h"
#include "core/base/closed_in_child.h"
#include "core/base/threads.h"
#include "ops/host/arena.h"

namespace rueda {
namespace {

constexpr char kLoopback[] = "127.0.0.1";
// How long a launcher may take to write down how a rank has ended.
constexpr Nanos kVerdictPatience = 500 * kMillisecond;
constexpr Nanos kVerdictLook = 5 * kMillisecond;

// Whether the ranks of a host share one log, or each has one to itself.
bool SharesLog(const Config& config) {
  return config.bus != "tcp";
}

bool NeedsTcp(const Config& config) {
  return config.bus == "tcp" || config.hosts_fake > 1;
}

// What goes over TCP is authenticated (the control plane), or on a private network (tensors). The
// same verdict on all ranks.
absl::Status CheckTcp(const World& world, absl::Span<const wire::Hello> hellos,
                      const Config& config, const Meeting& meeting) {
  if (!world.one_log && hellos[0].bus_address().empty()) {
    return absl::FailedPreconditionError(
        "the ranks have met on one host, but not all say that it is the same: is RUEDA_HOST_ID "
        "set?");
  }
  // On a unix socket the kernel vouches for the other end, on TCP nobody does.
  if (!world.one_log && meeting.secret().empty()) {
    return absl::FailedPreconditionError(
        "control connections over TCP need the job's secret: start the program with ruedarun, or "
        "set RUEDA_SECRET_FD or RUEDA_SECRET_FILE");
  }
  if (world.topology.hosts.size() == 1 || config.allow_unauthenticated_data == 1) {
    return absl::OkStatus();
  }
  for (const wire::Hello& hello : hellos) {
    if (hello.data_address().empty() || !IsPublicAddress(hello.data_address())) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "tensors would cross the network over Gloo's connections, which prove nothing about who is "
        "at the other end, and the address ",
        hello.data_address(), " of rank ", hello.rank(), " (host ", hello.host_name(),
        ") can be reached from anywhere: set RUEDA_NETWORK_INTERFACE to an interface of a private "
        "network, or RUEDA_ALLOW_UNAUTHENTICATED_DATA=1 if others are kept out"));
  }
  return absl::OkStatus();
}

// For the program's own threads and what they allocate while the job starts.
constexpr size_t kProgramBytesMin = 64u << 20;

// How large arenas may be that each of these ranks can map all of, under the limits on their
// address spaces, with the areas of `sets` process sets; more than that take of what is the
// program's. RESOURCE_EXHAUSTED: this rank's is too small for the least that they need.
absl::StatusOr<size_t> ArenaBytesFor(absl::Span<const Rank> ranks, size_t own_room,
                                     absl::Span<const wire::Hello> hellos, size_t log_bytes,
                                     int sets) {
  const int count = static_cast<int>(ranks.size());
  const size_t segment_bytes = Segment::MappedBytesFor(count, log_bytes, sets);
  const size_t needed = segment_bytes + kProgramBytesMin + ranks.size() * kArenaBytesMin;
  if (own_room < needed) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a start with ", count, count == 1 ? " rank" : " ranks", " on the host needs ",
                     needed, " bytes more of address space for the memory that they share, and ",
                     AddressSpaceLimitText(),
                     ": raise it (ulimit -v unlimited), or start fewer ranks per host"));
  }
  size_t room = own_room;
  for (const Rank rank : ranks) {
    if (hellos[rank].has_room()) room = std::min<size_t>(room, hellos[rank].room());
  }
  return ArenaBytesMax(room, segment_bytes, count);
}

// Leaders on other hosts than rank 0's ask it what time it is, and tell the ranks of their host.
// The ranks of one host, also where several are pretended, have one clock.
absl::Status AlignClocks(absl::Span<const wire::Hello> hellos, Nanos deadline, World* world) {
  const auto has_other_clock = [&](Rank rank) {
    return hellos[rank].host_id() != hellos[0].host_id();
  };
  std::vector<Link*> asking;
  for (RoleLink& role_link : world->links) {
    Link* const link = role_link.link.get();
    if (role_link.role == LinkRole::kChild && has_other_clock(link->peer())) asking.push_back(link);
    if (!has_other_clock(world->rank)) continue;
    if (role_link.role == LinkRole::kParent) {
      RUEDA_ASSIGN_OR_RETURN(world->to_rank_0, CompareClocks(link, deadline));
    } else if (role_link.role == LinkRole::kLeader) {
      RUEDA_ASSIGN_OR_RETURN(world->to_rank_0, WaitOffset(link, deadline));
    }
  }
  if (!has_other_clock(world->rank)) return AnswerClocks(asking, deadline);
  for (RoleLink& role_link : world->links) {
    if (role_link.role != LinkRole::kNeighbour) continue;
    SendOffset(role_link.link.get(), world->to_rank_0);
    RUEDA_RETURN_IF_ERROR(WaitFlushed(role_link.link.get(), deadline));
  }
  return absl::OkStatus();
}

// The process at the other end of a connection, where it has a number for this one. Of one by TCP
// the kernel does not tell: then what the ranks said of themselves counts.
int VisiblePid(const Link& link, const wire::Hello& own, const wire::Hello& peer) {
  if (const int pid = PeerPid(link.fd()); pid > 0) return pid;
  const bool same_numbers = own.host_id() == peer.host_id() && own.pid_namespace() != 0 &&
                            own.pid_namespace() == peer.pid_namespace();
  return same_numbers ? peer.pid() : 0;
}

// The ranks of each log.
std::vector<std::vector<Rank>> Logs(const Topology& topology, const Config& config) {
  std::vector<std::vector<Rank>> logs;
  if (SharesLog(config)) {
    for (const HostPlace& host : topology.hosts) logs.push_back(host.ranks);
  } else {
    for (Rank rank = 0; rank < topology.world_size(); ++rank) logs.push_back({rank});
  }
  return logs;
}

// Waits until `children` have come to `listener`.
absl::Status AdmitChildren(const UniqueFd& listener, absl::Span<const Rank> children,
                           const SessionScope& scope, Nanos deadline, const VerdictBoard* board,
                           World* world) {
  LinksByRank admitted;
  RUEDA_RETURN_IF_ERROR(
      AdmitRanks(listener, children, scope, world->rank, deadline, &admitted, board));
  for (auto& [rank, link] : admitted) {
    world->links.push_back({LinkRole::kChild, std::move(link)});
  }
  return absl::OkStatus();
}

// All leaders come to rank 0, which alone is known to everybody. The links stay for those who are
// next to it in the tree.
absl::Status MeetRoot(const UniqueFd& listener, const std::string& address,
                      const SessionScope& scope, Nanos deadline, const VerdictBoard* board,
                      World* world) {
  if (world->rank != 0) {
    RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<Link> link,
                           ConnectToLeader(0, address, scope, world->rank, deadline));
    world->links.push_back({LinkRole::kParent, std::move(link)});
    return absl::OkStatus();
  }
  std::vector<Rank> leaders;
  for (Rank rank = 1; rank < world->size(); ++rank) {
    if (world->leaders->IsLeader(rank)) leaders.push_back(rank);
  }
  return AdmitChildren(listener, leaders, scope, deadline, board, world);
}

// Rank 0: hears where those listen who will have others below them, and sends everybody to his
// place.
absl::Status SendToPlaces(Nanos deadline, World* world) {
  const LeaderTree& tree = *world->leaders;
  std::map<Rank, std::string> address_of;
  for (RoleLink& role_link : world->links) {
    const Rank leader = role_link.link->peer();
    if (role_link.role != LinkRole::kChild || tree.ChildrenOf(leader).empty()) continue;
    RUEDA_ASSIGN_OR_RETURN(Link::Received received,
                           WaitFrame(role_link.link.get(), FrameType::kAddress, deadline));
    address_of[leader] = std::move(received.frame.payload);
  }
  std::vector<std::unique_ptr<Link>> leaving;
  for (RoleLink& role_link : world->links) {
    if (role_link.role != LinkRole::kChild) continue;
    const Rank parent = tree.ParentOf(role_link.link->peer());
    if (parent == 0) continue;
    role_link.link->Send(FrameType::kAddress, address_of[parent]);
    RUEDA_RETURN_IF_ERROR(WaitFlushed(role_link.link.get(), deadline));
    leaving.push_back(std::move(role_link.link));
  }
  std::erase_if(world->links, [](const RoleLink& role_link) { return role_link.link == nullptr; });
  CloseGently(std::move(leaving), deadline);
  return absl::OkStatus();
}

// After all have met rank 0: each leader connects to the one above it in the tree. Before it
// does, it listens for those below it, at `host`.
absl::Status TakePlace(const std::string& host, const SessionScope& scope, Nanos deadline,
                       const VerdictBoard* board, World* world) {
  if (world->rank == 0) return SendToPlaces(deadline, world);
  const LeaderTree& tree = *world->leaders;
  const auto up =
      std::find_if(world->links.begin(), world->links.end(),
                   [](const RoleLink& role_link) { return role_link.role == LinkRole::kParent; });
  const std::vector<Rank> children = tree.ChildrenOf(world->rank);
  UniqueFd listener;
  if (!children.empty()) {
    RUEDA_ASSIGN_OR_RETURN(listener, ListenTcp(host));
    RUEDA_ASSIGN_OR_RETURN(const std::string address, TcpAddressOf(listener));
    up->link->Send(FrameType::kAddress, address);
    RUEDA_RETURN_IF_ERROR(WaitFlushed(up->link.get(), deadline));
  }
  const ClosedInChild closed_in_child(listener.get());
  if (const Rank parent = tree.ParentOf(world->rank); parent != 0) {
    RUEDA_ASSIGN_OR_RETURN(const Link::Received received,
                           WaitFrame(up->link.get(), FrameType::kAddress, deadline));
    RUEDA_ASSIGN_OR_RETURN(
        up->link, ConnectToLeader(parent, received.frame.payload, scope, world->rank, deadline));
  }
  return AdmitChildren(listener, children, scope, deadline, board, world);
}

absl::Status MeetAll(const BootstrapArgs& args, Meeting* meeting, World* world);

// What is known of a rank whose connection has ended, after a moment: its launcher may be about to
// write it down.
absl::Status AwaitVerdict(const Meeting& meeting, Rank rank, absl::Status otherwise) {
  const Nanos deadline = MonotonicNow() + kVerdictPatience;
  while (MonotonicNow() < deadline) {
    RUEDA_RETURN_IF_ERROR(meeting.WhatBecameOf(rank));
    SleepFor(kVerdictLook);  // it rings nobody who only starts
  }
  return otherwise;
}

// Why this rank can't go on, with the rank whose doing it is.
absl::Status Explained(const absl::Status& error, Rank self, const Meeting& meeting) {
  const std::optional<Rank> lost = LostRank(error);
  if (!lost.has_value()) {
    return ErrorOfRank(self, StatusAt(absl::StrCat("rank ", self, " failed to start"), error));
  }
  absl::Status why = absl::IsUnavailable(error) ? AwaitVerdict(meeting, *lost, error) : error;
  if (meeting.board() != nullptr) meeting.board()->Blame(self, LostRank(why).value_or(*lost));
  return why;
}

// What a rank that fails to start tells its neighbours, who may have begun already.
Failure FailureOf(Rank rank, absl::string_view cause, const World& world) {
  Failure failure;
  failure.rank = rank;
  failure.accuser = world.rank;
  failure.cause = std::string(cause);
  failure.membership = world.membership;
  if (rank < world.size()) {
    failure.pid = world.infos[rank].pid;
    failure.host = world.infos[rank].host_name;
  }
  return failure;
}

// Tells all that this rank is connected to, so that none has to guess from a connection's end.
void TellWhy(const absl::Status& why, std::vector<std::unique_ptr<Link>> links) {
  const std::string text = RosterOfError(why).SerializeAsString();
  std::erase_if(links, [](const auto& link) { return link == nullptr || !link->established(); });
  for (const auto& link : links) link->Send(FrameType::kRoster, text);
  const Nanos deadline = MonotonicNow() + kFarewellLimit;
  (void)WaitFlushed(links, deadline);
  CloseGently(std::move(links), deadline);
}

}  // namespace

int World::LocalIndex(Rank other) const {
  return topology.ranks[other].host == topology.ranks[rank].host ? topology.ranks[other].local_rank
                                                                 : -1;
}

absl::StatusOr<World> Bootstrap(const BootstrapArgs& args, Meeting* meeting) {
  World world;
  absl::Status status = WithoutExceptions([&] { return MeetAll(args, meeting, &world); });
  if (status.ok()) return world;
  const absl::Status why = Explained(status, args.rank, *meeting);
  world.guard.Say(FailureOf(LostRank(why).value_or(args.rank), why.message(), world));
  std::vector<std::unique_ptr<Link>> links = meeting->TakeLinks();
  for (RoleLink& role_link : world.links) links.push_back(std::move(role_link.link));
  TellWhy(why, std::move(links));
  return LostRank(status).has_value() ? absl::Status(why.code(), why.message()) : status;
}

namespace {

absl::Status MeetAll(const BootstrapArgs& args, Meeting* meeting, World* met) {
  const Config& config = *args.config;
  const Nanos deadline =
      DeadlineAfter(MonotonicNow(), static_cast<Nanos>(config.start_timeout_s * kSecond));
  World& world = *met;
  world.rank = args.rank;
  world.membership = args.scope.membership;
  world.job = args.scope.job;
  world.slots = args.slots;

  UniqueFd listener;
  wire::Hello mine;
  const std::string own_address = meeting->address();
  if (args.rank == 0 && args.size > 1 && (NeedsTcp(config) || !own_address.empty())) {
    RUEDA_ASSIGN_OR_RETURN(listener, ListenTcp(own_address.empty() ? kLoopback : own_address));
    RUEDA_ASSIGN_OR_RETURN(*mine.mutable_bus_address(), TcpAddressOf(listener));
  }
  const ClosedInChild closed_in_child(listener.get());
  mine.set_rank(args.rank);
  mine.set_size(args.size);
  mine.set_host_id(config.host_id);
  if (config.host_id.empty()) {
    RUEDA_ASSIGN_OR_RETURN(*mine.mutable_host_id(), HostIdentity());
  }
  mine.set_host_name(HostName());
  mine.set_pid(getpid());
  mine.set_pid_namespace(PidNamespace());
  mine.set_version(RUEDA_VERSION_TEXT);
  if (args.room != kNoLimit) mine.set_room(args.room);
  for (const auto& [name, value] : AgreedKnobs(config)) {
    wire::Knob* knob = mine.add_agreed();
    knob->set_name(name);
    knob->set_value(value);
  }
  const absl::StatusOr<std::vector<wire::Hello>> gathered = meeting->Gather(mine, deadline);
  if (absl::IsDeadlineExceeded(gathered.status())) {
    return absl::DeadlineExceededError(absl::StrCat(
        gathered.status().message(), ": ", config.start_timeout_s,
        " s (RUEDA_START_TIMEOUT_S), in the job '", args.scope.job, "'",
        meeting->waited_at().empty() ? "" : ", which met at ", meeting->waited_at(),
        args.may_be_on_several ? ". If some ranks are on other hosts, set RUEDA_SHARED_DIR or "
                                 "RUEDA_MEETING_ADDRESS (docs/guides/launcher.md)"
                               : ""));
  }
  RUEDA_RETURN_IF_ERROR(gathered.status());
  if (args.met != nullptr) *args.met = true;
  const std::vector<wire::Hello>& hellos = *gathered;

  std::vector<std::string> host_ids;
  for (const wire::Hello& hello : hellos) {
    host_ids.push_back(hello.host_id());
    world.machine_ranks += MachineOf(hello.host_id()) == MachineOf(mine.host_id()) ? 1 : 0;
    world.infos.push_back({hello.pid(), hello.host_name()});
  }
  if (config.hosts_fake > 0) {
    RUEDA_ASSIGN_OR_RETURN(host_ids, FakeHostIds(args.size, static_cast<int>(config.hosts_fake)));
  }
  world.topology = MakeTopology(host_ids);
  RUEDA_ASSIGN_OR_RETURN(world.process_sets, ParseProcessSets(config.process_sets, args.size));
  const std::vector<Rank>& neighbours = world.topology.host_of(args.rank).ranks;
  world.log_ranks = SharesLog(config) ? neighbours : std::vector<Rank>{args.rank};
  world.one_log = static_cast<int>(world.log_ranks.size()) == args.size;
  world.leaders = std::make_shared<LeaderTree>(Logs(world.topology, config),
                                               static_cast<int>(config.leader_fan_out));

  world.network_interface = meeting->network_interface();
  if (world.network_interface.empty()) {
    world.network_interface = config.network_interface.empty() ? "lo" : config.network_interface;
  }
  RUEDA_RETURN_IF_ERROR(CheckTcp(world, hellos, config, *meeting));

  SessionScope scope = args.scope;
  scope.secret = world.secret = meeting->secret();
  const bool has_others = !world.one_log && world.log_leader();
  const auto meet_root = [&](Nanos until) {
    return MeetRoot(listener, hellos[0].bus_address(), scope, until, meeting->board(), &world);
  };
  const LogLayout layout = LogLayout::For(static_cast<int>(neighbours.size()));
  world.guard = StartGuard(FailureOf(args.rank, "it failed to start: out of memory", world),
                           neighbours.size());
  absl::StatusOr<Neighbourhood> around = WithoutExceptions([&]() -> absl::StatusOr<Neighbourhood> {
    const size_t log_bytes = SharesLog(config) ? layout.bytes() : 0;
    const int sets = 1 + static_cast<int>(world.process_sets.size());
    RUEDA_ASSIGN_OR_RETURN(const size_t arena_bytes_max,
                           ArenaBytesFor(neighbours, args.room, hellos, log_bytes, sets));
    RUEDA_ASSIGN_OR_RETURN(const NeighbourOffer offer, args.offer(arena_bytes_max));
    return meeting->Introduce(neighbours, args.rank, offer, log_bytes, deadline);
  });
  if (!around.ok()) {
    // Rank 0 waits for this host: it is to be told too.
    if (has_others && args.rank != 0) (void)meet_root(MonotonicNow() + kFarewellLimit);
    return around.status();
  }
  world.neighbourhood = *std::move(around);
  world.guard.Begin(world.neighbourhood.segment.get(), world.neighbourhood.bells);
  if (SharesLog(config)) {
    for (std::unique_ptr<Link>& link : meeting->TakeLinks()) {
      world.links.push_back(
          {neighbours.front() == args.rank ? LinkRole::kNeighbour : LinkRole::kLeader,
           std::move(link)});
    }
  }
  world.store = meeting->store();

  if (has_others) RUEDA_RETURN_IF_ERROR(meet_root(deadline));
  RUEDA_RETURN_IF_ERROR(AlignClocks(hellos, deadline, &world));
  const std::string& address = hellos[args.rank].data_address();
  world.data_address = address.empty() ? kLoopback : address;
  if (has_others && world.leaders->depth() > 1) {
    RUEDA_RETURN_IF_ERROR(TakePlace(world.data_address, scope, deadline, meeting->board(), &world));
  }
  for (RoleLink& each : world.links) {
    each.pid = VisiblePid(*each.link, hellos[args.rank], hellos[each.link->peer()]);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace rueda
