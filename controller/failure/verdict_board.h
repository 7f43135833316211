// Where the launcher writes how the ranks of the job ended, so that a rank that notices another's
// end can name the cause: a hang-up tells that a process is gone, its exit status tells why. And
// where a rank whose membership has failed writes whose fault that was, so that the launcher can
// tell causes from consequences; and its pid, which signals are for. Shared memory, inherited by
// all ranks of the host (RUEDA_AGENT_FD), and a bell (RUEDA_AGENT_BELL_FD), which the launcher
// rings once it has written.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controller/failure/failure_detector.h"
#include "core/base/clock.h"
#include "core/base/closed_in_child.h"
#include "core/base/ids.h"
#include "core/base/shared_memory.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace rueda {

class VerdictBoard : public Verdicts {
 public:
  struct Verdict {
    int pid = 0;
    int wait_status = 0;  // as waitpid gives it
  };

  // For the launcher. `size`: the number of ranks in the job.
  static absl::StatusOr<std::unique_ptr<VerdictBoard>> Create(int size);
  // For whoever inherited them: both stay open. `bell_fd` -1: without a bell. `slots`: in an
  // elastic job, whose board goes by slots, that of each rank of the membership; empty: they are
  // the ranks.
  static absl::StatusOr<std::unique_ptr<VerdictBoard>> Open(int fd, int bell_fd = -1,
                                                            std::vector<int32_t> slots = {});

  int fd() const { return memory_->fd(); }
  // An eventfd. Nobody forgets the rings: all ranks of the host watch it, for edges.
  int bell_fd() const { return bell_.get(); }
  // Writes, and rings.
  void Write(Rank rank, const Verdict& verdict);
  std::optional<Verdict> Read(Rank rank) const;
  // Another process begins in the slot.
  void Clear(Rank slot);
  // How often to look while somebody is waited for.
  static constexpr Nanos kLookAgain = 200 * kMillisecond;
  // While a job starts: an error (LostError) with how it ended, when the rank has; or the one that
  // it blames for that. Also if another process has begun in its slot since this was opened.
  absl::Status CheckThere(Rank rank) const;

  // Says that this process is the one of `rank`'s that takes part in the job: its signals are for
  // it. It may be a child of the one that was started, a script.
  void TakePart(Rank rank);
  // Its pid, in its own namespace; 0: nobody has said so. It may have ended since.
  int ProgramOf(Rank rank) const;

  // Whose fault it is that `rank` takes part no more: another's, or its own, also where it has left
  // in peace. -1: it takes part.
  void Blame(Rank rank, Rank culprit);

  // Verdicts. Any thread.
  std::optional<std::string> HowItEnded(Rank rank) const override;
  Rank BlamedBy(Rank rank) const override;
  bool elastic() const override { return !slots_.empty(); }

 private:
  VerdictBoard(std::shared_ptr<SharedMemory> memory, UniqueFd bell, std::vector<int32_t> slots);
  struct Entry {
    std::atomic<uint64_t> verdict;
    std::atomic<uint32_t> blamed;  // the culprit + 1; 0: none
    std::atomic<int32_t> program;  // its pid; 0: none yet
    std::atomic<uint32_t> begun;   // how often another process has in the slot
  };
  uint32_t BegunIn(Rank rank) const;
  // -1: there is none.
  int32_t SlotOf(Rank rank) const;
  Rank RankIn(int32_t slot) const;
  Entry* entry(Rank rank) const;

  const std::shared_ptr<SharedMemory> memory_;
  const UniqueFd bell_;
  const std::vector<int32_t> slots_;  // by rank; empty: the same
  std::vector<uint32_t> begun_;       // by rank, when this was opened
  ClosedInChild closed_in_child_;
};

}  // namespace rueda
