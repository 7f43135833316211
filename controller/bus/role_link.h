// A connection between two ranks of a job, and what it is for.
#pragma once

#include <memory>

#include "controller/bus/link.h"

namespace rueda {

// As its owner sees it.
enum class LinkRole {
  kNeighbour,  // at a host's first rank: to another rank of the host
  kLeader,     // to the host's first rank
  kChild,      // at a leader: to one below it in the tree of leaders
  kParent,     // at a leader: to the one above it
};

struct RoleLink {
  LinkRole role;
  std::unique_ptr<Link> link;
  int pid = 0;  // of the process at the other end; 0: not of this host, or it can't be seen
};

}  // namespace rueda
