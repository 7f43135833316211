// Memory of the ranks of an elastic job that this process has started, in which they keep what they
// have alone: held open here, so that it outlives all of them. Others that are started here later
// take it over.
#pragma once

#include <sys/types.h>

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "controller/protocol/rueda.pb.h"
#include "core/base/ids.h"
#include "core/base/unique_fd.h"

namespace rueda {

class KeptMemory {
 public:
  // The process in the slot has kept a part, in the memory of the descriptor. Whether it is the
  // first one of that process. What is no memory, or more than a process may keep, is left out.
  bool Keep(Slot slot, const wire::KeptPart& part, UniqueFd memory);
  // The process is gone. What it has kept stays until others keep what makes it too old.
  void OnEnded(Slot slot);

  struct Found {
    wire::KeptPart part;
    int memory;  // stays open until Keep or OnEnded
  };
  // The part that has this name, number, membership and rank, of a process that is gone.
  std::optional<Found> Find(const wire::KeptPart& wanted) const;

  // How many processes that are gone have something here.
  size_t gone() const { return gone_.size(); }

 private:
  using Inode = std::pair<dev_t, ino_t>;
  struct Part {
    wire::KeptPart part;
    Inode memory;
  };
  struct Of {  // one process
    std::map<Inode, UniqueFd> memories;
    std::map<std::string, std::deque<Part>> parts;  // by name, the newest last
  };

  // Parts of that name with a lower number, and memory that nothing is in any more.
  static void Forget(const std::string& name, uint64_t oldest, Of* of);

  std::map<Slot, Of> living_;
  std::multimap<Slot, Of> gone_;  // those of a slot in the order in which they ended
};

}  // namespace rueda
