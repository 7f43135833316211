// The first cause of a membership's end: who was lost, how, and what it was doing. One record,
// carried by every error that follows from it.
#pragma once

#include <memory>
#include <string>

#include "core/base/ids.h"
#include "core/base/status.h"

namespace rueda {

// How a rank's process ended that had not left, from waitpid's status.
std::string EndText(int wait_status);

struct Failure {
  Rank rank = -1;     // -1: nobody in particular
  Rank accuser = -1;  // the one that took it for lost; -1: unknown
  Rank culprit = -1;  // whose doing it is, where nobody was lost: it aborted the job, say
  int pid = 0;
  std::string host;
  std::string cause;      // "killed by signal 9 (SIGKILL)"
  std::string operation;  // what the rank was doing: "allreduce"; empty when unknown
  Rank awaiter = -1;      // or what this one was doing, which waited for it; -1: the rank itself
  std::string tensor;
  uint64_t membership = 0;
  bool recoverable = false;  // a new membership without the lost rank could go on

  // Who was lost, or whose doing it is; -1: nobody in particular.
  Rank whose() const { return rank >= 0 ? rank : culprit; }
  // "rank 2 (host vm, pid 4711) was lost: killed by signal 9 (SIGKILL), during allreduce 'g';
  // membership 1"; ", while rank 0 awaited it in allreduce 'g'".
  std::string ToString() const;
  // Always ABORTED: whoever waited may reset, whatever the cause.
  absl::Status ToStatus() const { return absl::AbortedError(ToString()); }
};
using FailurePtr = std::shared_ptr<const Failure>;

std::string EncodeFailure(const Failure& failure);
// A record that can't be read still ends the membership: then the cause says so.
Failure DecodeFailure(absl::string_view record);

}  // namespace rueda
