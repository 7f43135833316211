// At rank 0 while a job starts: takes the hellos of all ranks, which each says for itself on one
// host, and one of a host for its neighbours on several (host_voice.h). Used by the thread that
// initializes.
#pragma once

#include <vector>

#include "controller/protocol/rueda.pb.h"
#include "controller/rendezvous/admission.h"

namespace rueda {

// The hello that a frame is. DATA_LOSS: it is something else.
absl::StatusOr<wire::Hello> HelloIn(const Frame& frame);

class HelloServer {
 public:
  // `mine`: rank 0's.
  HelloServer(const wire::Hello& mine, int size);

  // Waits until there is one of each rank. Then links() are those by which they came, also when not
  // all did. DEADLINE_EXCEEDED names the ranks of whom there is none; UNAVAILABLE one that was lost
  // again, as does what a voice says of its host.
  absl::Status Collect(const UniqueFd& door, const SessionScope& scope, const VerdictBoard* board,
                       Nanos deadline);

  std::vector<std::unique_ptr<Link>> TakeLinks();
  // By rank.
  std::vector<wire::Hello> TakeHellos() { return std::move(hellos_); }

 private:
  absl::Status Hear(Admission* admission, Link* from, const Frame& frame);
  absl::Status Take(Admission* admission, Link* from, wire::Hello hello);
  absl::Status TimeIsUp(const Admission& admission) const;

  std::vector<wire::Hello> hellos_;
  std::vector<Rank> missing_;  // ascending
  LinksByRank links_;
};

}  // namespace rueda
