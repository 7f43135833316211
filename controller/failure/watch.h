// A rank's watch over those that it is connected to: leaders and rank 0 tell each other that they
// are there, and each host's first rank looks whether its neighbours are stopped, they whether it
// is. Owner: the engine; the thread that holds the baton.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "controller/bus/role_link.h"
#include "controller/failure/liveness.h"
#include "controller/failure/verdict_board.h"
#include "controller/membership/topology.h"
#include "core/base/closed_in_child.h"
#include "core/base/unique_fd.h"

namespace rueda {

class Watch {
 public:
  // `links` outlive this.
  Watch(std::vector<RoleLink>* links, Nanos limit, Nanos now);

  // A descriptor that can be read once the process at the other end has ended, though others have
  // its end of the connection too: its children. -1: there is none.
  int EndOf(const RoleLink& of) const {
    const std::shared_ptr<const End>& end = ends_[static_cast<size_t>(&of - links_.data())];
    return end == nullptr ? -1 : end->fd.get();
  }
  void OnHeard(const Link* link, Nanos now);
  // Whether others may have missed this process, as it did not run.
  bool WasAway(Nanos now) const { return liveness_.WasAway(now); }
  // When to look; kForever: never. `waiting`: this rank has something under way. Else it does not
  // matter to a rank whether its own leader is stopped, and it does not wake for that.
  Nanos next(bool waiting) const { return waiting || has_others_ ? liveness_.next() : kForever; }
  // The same for WhoDies.
  Nanos look_who_dies(bool waiting) const { return waiting ? look_who_dies_ : kForever; }

  struct Lost {
    Rank rank;
    std::string how;
    bool has_just_ended = false;  // the verdict may tell more
  };
  // Sends heartbeats, and says whom it takes for lost.
  std::optional<Lost> SendHeartbeatsAndCheck(bool waiting, Nanos now);
  // A neighbor that is about to end: a connection tells that only when the kernel has freed its
  // memory.
  std::optional<Lost> WhoDies(Nanos now);

 private:
  // A connection tells within milliseconds if there is little memory to free.
  static constexpr Nanos kWhoDiesInterval = 20 * kMillisecond;

  struct End {
    UniqueFd fd;
    ClosedInChild closed_in_child;
  };
  struct Neighbour {
    Rank rank;
    int pid;
    bool leads;  // this host
    std::shared_ptr<const End> end;
  };
  static std::shared_ptr<const End> OpenEnd(int pid);
  static std::shared_ptr<const End> ShareEnd(int pid);

  const std::vector<RoleLink>& links_;
  // By link, each another; null: there is none. Contexts that watch one process share descriptors.
  std::vector<std::shared_ptr<const End>> ends_;
  struct Remote {
    Link* link;
    uint64_t reached = 0;  // bytes that it had acknowledged at the last look
  };
  void LookWhatReached(size_t remote, Nanos now);
  std::vector<Remote> remotes_;
  std::vector<Neighbour> neighbours_;
  bool has_others_;  // than its own leader
  Nanos look_who_dies_ = kForever;
  Liveness liveness_;
};

// Whom the launcher knows to have ended, where no connection tells, as children keep them open.
class EndedRanks {
 public:
  // How long what a rank said of its end itself may be slower than the launcher's word.
  static constexpr Nanos kPatience = 500 * kMillisecond;

  // `board` may be null. `infos`: by rank. Names a rank that has ended, and has not left: at once
  // if it ended in the middle of its work, or else once a look of so long ago found it ended.
  std::optional<Watch::Lost> Check(const VerdictBoard* board, absl::Span<const RankInfo> infos,
                                   absl::FunctionRef<bool(Rank)> has_left, Nanos now);
  // When to look again, whatever else there is to do.
  Nanos next() const { return found_ < 0 ? kForever : found_at_ + kPatience; }

 private:
  Rank found_ = -1;
  Nanos found_at_ = 0;
};

}  // namespace rueda
