#include "controller/rendezvous/hello_server.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controller/membership/rank_set.h"
#include "controller/protocol/codec.h"
#include "controller/rendezvous/meeting.h"

namespace rueda {

absl::StatusOr<wire::Hello> HelloIn(const Frame& frame) {
  wire::Hello hello;
  if (frame.type != FrameType::kHello) return absl::DataLossError("it did not say hello");
  RUEDA_RETURN_IF_ERROR(ParseMessage(frame.payload, &hello));
  return hello;
}

HelloServer::HelloServer(const wire::Hello& mine, int size) : hellos_(static_cast<size_t>(size)) {
  hellos_[0] = mine;
  for (Rank rank = 1; rank < size; ++rank) missing_.push_back(rank);
}

absl::Status HelloServer::Collect(const UniqueFd& door, const SessionScope& scope,
                                  const VerdictBoard* board, Nanos deadline) {
  const std::vector<Rank> others = missing_;
  Admission admission(others, scope, 0, &links_, board, [&](Link* from, const Frame& frame) {
    return Hear(&admission, from, frame);
  });
  absl::Status status;
  while (status.ok() && !missing_.empty()) {
    status = MonotonicNow() < deadline ? admission.Step(door, deadline) : TimeIsUp(admission);
  }
  if (!status.ok()) admission.HearOut(door);
  return status;
}

std::vector<std::unique_ptr<Link>> HelloServer::TakeLinks() {
  std::vector<std::unique_ptr<Link>> links;
  for (auto& [rank, link] : links_) links.push_back(std::move(link));
  links_.clear();
  return links;
}

absl::Status HelloServer::Hear(Admission* admission, Link* from, const Frame& frame) {
  if (frame.type == FrameType::kRoster) {  // why its host can't start
    wire::Roster roster;
    RUEDA_RETURN_IF_ERROR(ParseMessage(frame.payload, &roster));
    RUEDA_RETURN_IF_ERROR(ErrorOf(roster));
  }
  absl::StatusOr<wire::Hello> hello = HelloIn(frame);
  const absl::Status status =
      hello.ok() ? Take(admission, from, *std::move(hello)) : hello.status();
  if (status.ok()) return status;
  return StatusAt(absl::StrCat("rank ", from->peer(), " failed to start"), status);
}

// Of two the first stays.
absl::Status HelloServer::Take(Admission* admission, Link* from, wire::Hello hello) {
  const Rank rank = hello.rank();
  if (rank < 1 || rank >= static_cast<Rank>(hellos_.size())) {
    return absl::FailedPreconditionError(absl::StrCat("it says that it is rank ", rank));
  }
  const auto it = std::lower_bound(missing_.begin(), missing_.end(), rank);
  if (it != missing_.end() && *it == rank) {
    missing_.erase(it);
    hellos_[static_cast<size_t>(rank)] = std::move(hello);
  } else if (rank == from->peer()) {
    admission->Dismiss(rank, TwoAre(rank));
  } else {
    wire::Roster refusal = RosterOfError(absl::FailedPreconditionError(TwoAre(rank)));
    refusal.set_refused(rank);
    from->Send(FrameType::kRoster, refusal.SerializeAsString());
  }
  return absl::OkStatus();
}

absl::Status HelloServer::TimeIsUp(const Admission& admission) const {
  std::vector<Rank> away;
  std::copy_if(missing_.begin(), missing_.end(), std::back_inserter(away),
               [this](Rank rank) { return links_.count(rank) == 0; });
  if (!away.empty()) return admission.DidNotCome(away);
  return absl::DeadlineExceededError(
      absl::StrCat(RanksText(missing_), " connected, but did not say hello in time"));
}

}  // namespace rueda
