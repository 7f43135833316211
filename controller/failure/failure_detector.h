// Who is to blame when something breaks: broken connections, silences, the launcher's verdicts and
// the time in, one accusation out.
//
// A hang-up tells that a rank is gone, but not why, and what breaks first is not always what was
// lost: a killed process closes its descriptors one by one, and a rank that gives up because of
// another closes its own. So the suspicion of a hang-up waits for a moment: for the verdict, if
// somebody watches the processes, or for the connection that tells who is gone. Meanwhile no lane
// moves.
//
// Owner: the engine; the holder of the baton. PURE
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "controller/failure/failure.h"
#include "core/base/clock.h"

namespace rueda {

// How ranks have ended, as whoever watches their processes knows it.
class Verdicts {
 public:
  virtual ~Verdicts() = default;
  // "killed by signal 9 (SIGKILL)"; nothing while it runs, or if nobody watches it.
  virtual std::optional<std::string> HowItEnded(Rank rank) const = 0;
  // Whose doing the end of `rank` was, as it said itself; -1: nobody's.
  virtual Rank BlamedBy(Rank rank) const = 0;
  // Whether it knows of all ranks, and whom they blame. Else it tells how a rank that is lost has
  // ended, not who was lost first.
  virtual bool KnowsAll() const { return true; }
  // Whether the job goes on without whoever is lost, so that who is to blame matters less than
  // time.
  virtual bool elastic() const { return false; }
  // Whether a verdict on `rank`, of which there is none yet, may come.
  virtual bool MayCome(Rank /*rank*/) const { return true; }
};

class FailureDetector {
 public:
  // How long a broken connection waits for the verdict. It is written at once, but on a busy
  // machine its writer may wait tens of milliseconds for a core; the news of another host takes
  // longer.
  static constexpr Nanos kVerdictPatience = 250 * kMillisecond;
  static constexpr Nanos kRemoteVerdictPatience = 700 * kMillisecond;
  // In an elastic job: the cause may as well follow, in the launcher's words.
  static constexpr Nanos kElasticVerdictPatience = 100 * kMillisecond;
  // How long a backend's connection that broke, and may be anybody's, waits for the one that tells
  // who is gone. A killed process closes its descriptors one by one, on its last thread's turns: on
  // a crowded machine hundreds of milliseconds may lie between two of them.
  static constexpr Nanos kCulpritPatience = 2 * kSecond;

  // `neighbours`: the ranks of this host. `verdicts` outlives this.
  FailureDetector(Rank self, int world_size, std::vector<Rank> neighbours, const Verdicts* verdicts)
      : self_(self),
        world_size_(world_size),
        neighbours_(std::move(neighbours)),
        verdicts_(verdicts) {}

  // The connection to `rank` broke.
  void OnLinkLost(Rank rank, std::string how, bool same_host, Nanos now);
  // `rank` has been silent, or stopped, for the limit, or the kernel says that it dies: no verdict
  // that is still to come is worth waiting for.
  void OnLost(Rank rank, std::string how, Nanos now);
  // A backend's connection broke.
  void OnConnectionLost(std::string how, Nanos now);

  // Whether somebody is suspected, and no accusation has been made yet.
  bool suspects() const { return suspect_.has_value(); }
  // Whether a rank is, by what this one has seen itself: further news would not change whom.
  bool suspects_a_rank() const { return suspects() && suspect_->rank != kNobody; }
  // The accusation, once the verdict is there or was waited for long enough. `has_left`: of a rank,
  // whether it has shut down.
  std::optional<Failure> Decide(absl::FunctionRef<bool(Rank)> has_left, Nanos now);
  void Clear() { suspect_.reset(); }

 private:
  static constexpr Rank kNobody = -1;
  struct Suspect {
    Rank rank;  // kNobody: whoever the verdicts name
    std::string how;
    Nanos since;
    Nanos give_up;
  };
  // Whose end the verdicts tell of, for a suspect who is nobody in particular.
  Rank FirstEnded(absl::FunctionRef<bool(Rank)> has_left) const;
  // Whose end ended `rank`; `last_ended`: the last on the way there of whom there is a verdict.
  Rank CulpritBehind(Rank rank, Rank* last_ended) const;
  bool IsNeighbour(Rank rank) const;

  const Rank self_;
  const int world_size_;
  const std::vector<Rank> neighbours_;
  const Verdicts* const verdicts_;
  std::optional<Suspect> suspect_;
};

// What another says of `self`. One that took this rank for lost, which was there all the time, is
// itself out of reach: the network may carry words in one direction only. Returns whether the two
// were swapped. `was_away`: this rank did not run for a while, and others may have missed it.
bool SwapAccuserAndAccused(Rank self, int world_size, bool was_away, Failure* failure);

}  // namespace rueda
