// From "I am rank r of n" to everything a membership needs: who is where, shared memory with the
// neighbours, connections between leaders.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "controller/bus/role_link.h"
#include "controller/membership/leader_tree.h"
#include "controller/membership/topology.h"
#include "controller/rendezvous/clocks.h"
#include "controller/rendezvous/meeting.h"
#include "controller/rendezvous/start_guard.h"
#include "core/base/memory_limits.h"
#include "core/config/config.h"

namespace rueda {

struct World {
  Rank rank = 0;
  uint64_t membership = 1;
  std::string job;    // job id and context name: what keys of the store begin with
  Topology topology;  // hosts: ranks that share memory
  std::vector<RankInfo> infos;
  std::vector<int32_t> slots;   // of an elastic job, by rank; else empty
  int machine_ranks = 0;        // of the machine that this rank's host is, or is a part of
  std::vector<Rank> log_ranks;  // the ranks that share this rank's announcement log, ascending
  bool one_log = true;          // whether those are all ranks
  std::shared_ptr<const LeaderTree> leaders;    // of the logs
  std::vector<std::vector<Rank>> process_sets;  // sets 1, 2, ... that exist from the start
  ClockOffset to_rank_0;                        // from this host's clock
  std::string network_interface;  // by which other hosts are reached; "lo" if none are
  std::string data_address;       // numeric, of this rank for those on other hosts
  Secret secret;                  // for connections between hosts; empty: there is none

  Neighbourhood neighbourhood;  // of topology.host_of(rank)
  std::vector<RoleLink> links;
  std::shared_ptr<Store> store;  // null: reached over links
  StartGuard guard;  // destroyed before the links: who hears of their end finds the reason

  int size() const { return topology.world_size(); }
  int local_rank() const { return topology.ranks[rank].local_rank; }
  // The index of `other` among this host's ranks; -1: on another host.
  int LocalIndex(Rank other) const;
  bool log_leader() const { return log_ranks.front() == rank; }
};

struct BootstrapArgs {
  Rank rank = 0;
  int size = 1;
  SessionScope scope;
  bool may_be_on_several = false;  // hosts, and nobody has said whether, nor how to meet then
  const Config* config = nullptr;
  std::vector<int32_t> slots;  // of an elastic job, by rank
  // Bytes of address space that this rank may map for itself and its neighbours; kNoLimit.
  size_t room = kNoLimit;
  // Makes what the rank brings to its neighbours, an arena of at most so many bytes; called when
  // the ranks have met, who are told if it fails.
  std::function<absl::StatusOr<NeighbourOffer>(size_t arena_bytes_max)> offer;
  // Set when the ranks have met: from then on no other start can have this membership's number. May
  // be null.
  bool* met = nullptr;
};

// INVALID_ARGUMENT: the setting `process_sets` names what this world can't have.
absl::StatusOr<World> Bootstrap(const BootstrapArgs& args, Meeting* meeting);

}  // namespace rueda
