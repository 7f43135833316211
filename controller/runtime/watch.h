// A rank's watch over those that it is connected to: leaders and the root tell each other that they
// are there, and each host's first rank looks whether its neighbours are stopped, they whether it
// is. Owner: the engine; the thread that holds the baton.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "controller/membership/liveness.h"
#include "controller/rendezvous/bootstrap.h"

namespace rueda {

class Watch {
 public:
  // `links` outlive this.
  Watch(std::vector<RoleLink>* links, Nanos limit, Nanos now);

  void OnHeard(const Link* link, Nanos now);
  // Whether others may have missed this process, as it did not run.
  bool WasAway(Nanos now) const { return liveness_.WasAway(now); }
  // When to look; kForever: never. `waiting`: this rank has something under way. Else it does not
  // matter to a rank whether its own leader is stopped, and it does not wake for that.
  Nanos next(bool waiting) const { return waiting || has_others_ ? liveness_.next() : kForever; }

  struct Lost {
    Rank rank;
    std::string how;
  };
  // Sends heartbeats, and says whom it takes for lost.
  std::optional<Lost> Look(bool waiting, Nanos now);

 private:
  struct Neighbour {
    Rank rank;
    int pid;
    bool leads;  // this host
  };

  std::vector<Link*> remotes_;
  std::vector<Neighbour> neighbours_;
  bool has_others_;  // than its own leader
  Liveness liveness_;
};

}  // namespace rueda
