// Where the launcher writes how the ranks of the job ended, so that a rank that notices another's
// end can name the cause: a hang-up tells that a process is gone, its exit status tells why. And
// where a rank whose epoch has failed writes whose fault that was, so that the launcher can tell
// causes from consequences. Shared memory, inherited by all ranks of the host (RUEDA_AGENT_FD).
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "controller/failure/failure_detector.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/base/shared_memory.h"
#include "core/base/status.h"

namespace rueda {

class VerdictBoard : public Verdicts {
 public:
  struct Verdict {
    int pid = 0;
    int wait_status = 0;  // as waitpid gives it
  };

  // For the launcher. `size`: the number of ranks in the job.
  static absl::StatusOr<std::unique_ptr<VerdictBoard>> Create(int size);
  // For a rank. `fd` stays open.
  static absl::StatusOr<std::unique_ptr<VerdictBoard>> Open(int fd);

  int fd() const { return memory_->fd(); }
  void Write(Rank rank, const Verdict& verdict);
  std::optional<Verdict> Read(Rank rank) const;
  // How often to look while somebody is waited for.
  static constexpr Nanos kLookAgain = 200 * kMillisecond;
  // While a job starts: an error (LostError) with how it ended, when the rank has; or the one that
  // it blames for that.
  absl::Status CheckThere(Rank rank) const;

  // `culprit` -1: nobody's, or nothing has failed.
  void Blame(Rank rank, Rank culprit);

  // Verdicts. Any thread.
  std::optional<std::string> HowItEnded(Rank rank) const override;
  Rank BlamedBy(Rank rank) const override;

 private:
  explicit VerdictBoard(std::shared_ptr<SharedMemory> memory) : memory_(std::move(memory)) {}
  struct Entry {
    std::atomic<uint64_t> verdict;
    std::atomic<uint64_t> blamed;  // the culprit + 1; 0: none
  };
  Entry* entry(Rank rank) const;

  const std::shared_ptr<SharedMemory> memory_;
};

}  // namespace rueda
