#include "controller/failure/failure_detector.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace rueda {

void FailureDetector::OnLinkLost(Rank rank, std::string how, bool same_host, Nanos now) {
  if (suspects_a_rank()) return;
  suspect_ =
      Suspect{rank, std::move(how), now + (same_host ? kVerdictPatience : kRemoteVerdictPatience)};
}

void FailureDetector::OnSilence(Rank rank, std::string how, Nanos now) {
  OnLinkLost(rank, std::move(how), /*same_host=*/true, now);
}

void FailureDetector::OnConnectionLost(std::string how, Nanos now) {
  if (!suspects()) suspect_ = Suspect{kNobody, std::move(how), now + kCulpritPatience};
}

// Whose end ended `rank`, as far as the verdicts tell: a rank that has failed because of another
// says so. What it says itself may have been lost with its connection.
Rank FailureDetector::CulpritBehind(Rank rank) const {
  for (int i = 0; i < world_size_; ++i) {
    const Rank blamed = verdicts_->BlamedBy(rank);
    const bool is_another = blamed >= 0 && blamed < world_size_ && blamed != rank;
    if (!is_another || blamed == self_ || !verdicts_->HowItEnded(rank).has_value()) break;
    rank = blamed;
  }
  return rank;
}

std::optional<Failure> FailureDetector::Decide(absl::FunctionRef<bool(Rank)> has_left, Nanos now) {
  if (!suspects()) return std::nullopt;
  std::optional<std::string> verdict;
  const bool knows_all = verdicts_->KnowsAll();
  for (Rank rank = 0; knows_all && rank < world_size_ && !suspects_a_rank(); ++rank) {
    if (!has_left(rank) && verdicts_->HowItEnded(rank).has_value()) suspect_->rank = rank;
  }
  if (suspects_a_rank()) {
    if (knows_all) suspect_->rank = CulpritBehind(suspect_->rank);
    verdict = verdicts_->HowItEnded(suspect_->rank);
  }
  const bool may_learn_more = !suspects_a_rank() || verdicts_->MayCome(suspect_->rank);
  if (!verdict.has_value() && may_learn_more && now < suspect_->give_up) return std::nullopt;
  Failure failure;
  failure.rank = suspect_->rank;
  failure.recoverable = true;
  failure.cause = suspect_->how;
  if (verdict.has_value()) {
    failure.cause = *std::move(verdict);
    if (verdicts_->BlamedBy(suspect_->rank) == self_) {
      absl::StrAppend(&failure.cause, ", having taken this rank for lost");
    }
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
