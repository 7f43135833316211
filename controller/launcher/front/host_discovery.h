// Which hosts an elastic job has, as a script or a file says: asked each second.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "controller/launcher/decide/host_list.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace rueda {

// Owner: the launcher process; its only thread. Nothing blocks but AskNow.
class HostDiscovery {
 public:
  // `command`: a shell's command line, which prints "HOST:SLOTS" or "HOST" a line. `slots`: of a
  // host that it says nothing else of; 0: it has to.
  HostDiscovery(std::string command, int slots) : command_(std::move(command)), slots_(slots) {}
  ~HostDiscovery();

  // For the first time. The error says what went wrong.
  absl::StatusOr<std::vector<HostSlots>> AskNow();

  void AddWaits(std::vector<pollfd>* waits);
  // What came of a question that has been answered since the last time.
  std::optional<absl::StatusOr<std::vector<HostSlots>>> Advance(absl::Span<const pollfd> waits,
                                                                Nanos now);
  // When Advance has something to do, if nothing is ready before.
  Nanos deadline() const { return asking() ? EndsAt() : ask_at_; }

 private:
  bool asking() const { return output_.valid(); }
  absl::Status Ask();
  // When all of its output is there.
  absl::StatusOr<std::vector<HostSlots>> Finish();
  bool ReadSome();
  Nanos EndsAt() const;
  void EndIfLate(Nanos now);

  const std::string command_;
  const int slots_;
  pid_t pid_ = 0;
  UniqueFd output_;
  std::string text_;
  Nanos ask_at_ = 0;
  Nanos asked_at_ = 0;
  size_t first_wait_ = 0;
};

}  // namespace rueda
