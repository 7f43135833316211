// While a job on several hosts starts, the rank of a host that comes first speaks for all of them:
// it alone connects to rank 0, passes the others' hellos on, and the answer back. Used by the
// thread that initializes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/protocol/rueda.pb.h"
#include "controller/rendezvous/admission.h"

namespace rueda {

class HostVoice {
 public:
  // Adds to the hello of a rank of this host what that does not know.
  using Complete = std::function<absl::Status(wire::Hello* hello)>;

  // `board`: see Admission. All outlive this.
  HostVoice(const SessionScope& scope, Rank self, int size, const VerdictBoard* board,
            Complete complete);

  // Whom the ranks of a host meet (MeetingSocketName), and which rank it is in a handshake: who
  // comes to it does not know that. PURE
  static std::string NameOf(const std::string& host_id) { return "voice of " + host_id; }
  static Rank PeerNumber(int size) { return size; }

  // Rank 0's answer, which those that have come to `door` have been told by then. `up`: to rank 0;
  // `mine`: complete. Without an answer until `deadline` an error, which they are told too.
  absl::StatusOr<wire::Roster> Speak(const UniqueFd& door, std::unique_ptr<Link> up,
                                     const wire::Hello& mine, Nanos deadline);

  // Rank 0 can't be reached: tells those that wait at the door.
  void CallOff(const UniqueFd& door, const absl::Status& why);

 private:
  absl::Status Hear(Admission* admission, Link* from, const Frame& frame);
  absl::Status HearRoot(Admission* admission, const Frame& frame);
  absl::Status HearNeighbour(Admission* admission, Link* from, const Frame& frame);
  absl::Status PassHelloOn(Admission* admission, Rank rank, const Frame& frame);
  wire::Roster AnswerTo(const absl::Status& error, Nanos deadline);
  absl::Status Tell(const wire::Roster& roster, Nanos deadline);

  const SessionScope& scope_;
  const Rank self_;
  const int size_;
  const VerdictBoard* const board_;
  const Complete complete_;
  std::vector<Rank> ranks_;  // of the job, but for rank 0
  LinksByRank links_;        // of them those of this host; and of rank 0
  std::optional<wire::Roster> answer_;
};

}  // namespace rueda
