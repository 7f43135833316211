#include "controller/failure/failure_detector.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rueda {

void FailureDetector::OnLinkLost(Rank rank, std::string how, bool same_host, Nanos now) {
  if (suspects_a_rank()) return;
  const Nanos patience = verdicts_->elastic() ? kElasticVerdictPatience
                         : same_host          ? kVerdictPatience
                                              : kRemoteVerdictPatience;
  suspect_ = Suspect{rank, std::move(how), now, now + patience};
}

void FailureDetector::OnLost(Rank rank, std::string how, Nanos now) {
  if (suspects_a_rank() && suspect_->rank != rank) return;
  suspect_ = Suspect{rank, std::move(how), now, now};
}

void FailureDetector::OnConnectionLost(std::string how, Nanos now) {
  if (!suspects()) suspect_ = Suspect{kNobody, std::move(how), now, now + kCulpritPatience};
}

Rank FailureDetector::FirstEnded(absl::FunctionRef<bool(Rank)> has_left) const {
  for (Rank rank = 0; rank < world_size_; ++rank) {
    if (!has_left(rank) && verdicts_->HowItEnded(rank).has_value()) return rank;
  }
  return kNobody;
}

// As far as the verdicts tell: a rank that has failed because of another says so. What it says
// itself may have been lost with its connection.
Rank FailureDetector::CulpritBehind(Rank rank, Rank* last_ended) const {
  for (int i = 0; i < world_size_; ++i) {
    if (!verdicts_->HowItEnded(rank).has_value()) break;
    *last_ended = rank;
    const Rank blamed = verdicts_->BlamedBy(rank);
    const bool is_another = blamed >= 0 && blamed < world_size_ && blamed != rank;
    if (!is_another || blamed == self_) break;
    rank = blamed;
  }
  return rank;
}

bool FailureDetector::IsNeighbour(Rank rank) const {
  return std::find(neighbours_.begin(), neighbours_.end(), rank) != neighbours_.end();
}

std::optional<Failure> FailureDetector::Decide(absl::FunctionRef<bool(Rank)> has_left, Nanos now) {
  if (!suspects()) return std::nullopt;
  // What others have said is looked at anew each time: what this rank sees itself counts for more,
  // and comes in by suspect_.
  Rank culprit = suspect_->rank;
  Rank last_ended = kNobody;
  const bool knows_all = verdicts_->KnowsAll();
  if (knows_all && culprit == kNobody) culprit = FirstEnded(has_left);
  if (knows_all && culprit != kNobody) culprit = CulpritBehind(culprit, &last_ended);
  std::optional<std::string> verdict;
  if (culprit != kNobody) verdict = verdicts_->HowItEnded(culprit);
  if (!verdict.has_value()) {
    // One of this host that ended would have been heard of: it was taken for lost by the other side
    // of a cut.
    const bool ran = last_ended != kNobody && IsNeighbour(culprit);
    const Nanos give_up = ran ? suspect_->since + kVerdictPatience : suspect_->give_up;
    const bool may_learn_more = culprit == kNobody || verdicts_->MayCome(culprit);
    if (may_learn_more && now < give_up) return std::nullopt;
  }
  Failure failure;
  failure.rank = culprit;
  failure.recoverable = true;
  failure.cause = suspect_->how;
  if (verdict.has_value()) {
    failure.cause = *std::move(verdict);
    if (verdicts_->BlamedBy(culprit) == self_) {
      absl::StrAppend(&failure.cause, ", having taken this rank for lost");
    }
  } else if (last_ended != kNobody) {  // nobody knows what became of the one that it blames
    failure.rank = last_ended;
    failure.cause = absl::StrCat(*verdicts_->HowItEnded(last_ended), ", having taken rank ",
                                 culprit, " for lost");
  }
  Clear();
  return failure;
}

bool SwapAccuserAndAccused(Rank self, int world_size, bool was_away, Failure* failure) {
  if (failure->rank != self || failure->accuser == self || was_away) return false;
  if (failure->accuser < 0 || failure->accuser >= world_size) return false;
  failure->cause = absl::StrCat("it took rank ", self, " for lost: ", failure->cause);
  failure->rank = failure->accuser;
  failure->accuser = self;
  return true;
}

}  // namespace rueda
