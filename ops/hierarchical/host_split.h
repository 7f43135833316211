// How the members of a process set lie on hosts. PURE
#pragma once

#include <vector>

#include "ops/backend/backend.h"

namespace rueda {

struct HostSplit {
  // By host, in the order of the hosts' first members: its members' indices, ascending.
  std::vector<std::vector<int>> members;
  int host = 0;   // this rank's
  int local = 0;  // this rank's index among its host's members
  // How many members of each host send and receive: of each host the first ones. As many as the
  // smallest host has, so that each has one to talk to on every other host.
  int stripes = 1;

  int hosts() const { return static_cast<int>(members.size()); }
  const std::vector<int>& own() const { return members[static_cast<size_t>(host)]; }
  int self() const { return own()[static_cast<size_t>(local)]; }
  int HostOf(int member) const;
  int ranks() const {  // of all hosts
    size_t count = 0;
    for (const std::vector<int>& of_host : members) count += of_host.size();
    return static_cast<int>(count);
  }
};

HostSplit SplitByHost(const Members& members);

}  // namespace rueda
