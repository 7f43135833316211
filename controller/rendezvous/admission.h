// Lets the ranks of a job in, and nobody else, while anybody may knock. Used by the thread that
// initializes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "controller/bus/link.h"
#include "controller/failure/verdict_board.h"
#include "controller/rendezvous/refused_peers.h"
#include "core/base/clock.h"
#include "core/base/unique_fd.h"

namespace rueda {

// "two processes say that they are rank 3 of this job"
std::string TwoAre(Rank rank);

// How long those that wait at the door may take to come in, when all that they will get is an
// error: those that have come are there already.
inline constexpr Nanos kLastCall = 200 * kMillisecond;

using LinksByRank = std::map<Rank, std::unique_ptr<Link>>;

// Lets in those of `expected`, ascending, who connect and prove that they are that rank of the job.
// Others are refused: those that prove nothing within two seconds, that fail to, or that are
// too many at once; the log has at most a line a second of them. Of two processes of the job that
// say that they are the same rank the first stays; the other, and one that is none of `expected`,
// is told so (kRefused).
class Admission {
 public:
  // Takes a frame of one that has been let in. An error ends the step.
  using Hear = std::function<absl::Status(Link* from, const Frame& frame)>;

  // `links` gets those that were let in; what is in it from the start is looked after in the same
  // way. Without `hear` they are not read from. `board`, if there is one: of those who have ended,
  // and need not be waited for. All arguments outlive this.
  Admission(absl::Span<const Rank> expected, const SessionScope& scope, Rank self,
            LinksByRank* links, const VerdictBoard* board, Hear hear = nullptr);
  ~Admission();

  // Waits for something to happen, at most to `deadline`, and takes it. UNAVAILABLE: a rank that
  // had come was lost again, or one has ended.
  absl::Status Step(const UniqueFd& listener, Nanos deadline);

  // After an error: lets in who is proving itself or has knocked, so that it can be told, too.
  // Takes at most 1.5 s.
  void HearOut(const UniqueFd& listener);

  // Tells one that was let in why it can't stay.
  void Dismiss(Rank rank, const std::string& why);

  // DEADLINE_EXCEEDED: names the ranks, and how many others were refused.
  absl::Status DidNotCome(absl::Span<const Rank> ranks) const;

 private:
  struct Pending {
    std::unique_ptr<Link> link;
    Nanos since;
    Nanos turn;        // when it came to be its turn to say something
    std::string from;  // an address; empty: of this host
  };

  bool IsExpected(Rank rank) const;
  void NoteRefused(absl::string_view from, absl::string_view why);
  void Remove(size_t i);
  void DropLate(Nanos now);
  absl::Status LookAtBoard() const;
  absl::Status Attend(Rank rank, short revents);
  absl::Status PassOn(Rank rank);
  absl::Status HearStranger(size_t i);
  absl::Status Take(std::unique_ptr<Link> link, const std::string& from,
                    const absl::Status& status);
  void Refuse(std::unique_ptr<Link> link, const std::string& from, const std::string& why);
  absl::Status AcceptSome(const UniqueFd& listener);
  bool full() const;
  bool HasTooFewDescriptors() const;
  size_t First() const;
  Nanos RoomFrom() const;
  void MakeRoom(absl::string_view why);

  const absl::Span<const Rank> expected_;
  const SessionScope& scope_;
  const Rank self_;
  LinksByRank& links_;
  const VerdictBoard* const board_;
  const Hear hear_;
  std::vector<Pending> pending_;                // the oldest first
  std::map<std::string, size_t> pending_from_;  // how many, by address
  std::vector<std::unique_ptr<Link>> leaving_;  // refused, and told so
  RefusedPeers refused_peers_;
};

// Waits until all of `expected` have been let in; `admitted` then has those that came, also when
// not all did. DEADLINE_EXCEEDED names those that did not; UNAVAILABLE one that was lost again.
absl::Status AdmitRanks(const UniqueFd& listener, absl::Span<const Rank> expected,
                        const SessionScope& scope, Rank self, Nanos deadline, LinksByRank* admitted,
                        const VerdictBoard* board = nullptr);

}  // namespace rueda
