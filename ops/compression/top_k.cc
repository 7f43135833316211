#include "ops/compression/top_k.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace rueda {
namespace {

// NaN counts as the largest: nobody must miss it.
float Magnitude(float value) {
  return value == value ? std::fabs(value) : std::numeric_limits<float>::infinity();
}

}  // namespace

int64_t ChosenOf(uint32_t share_per_million, int64_t elements) {
  return (elements * share_per_million + 999'999) / 1'000'000;
}

absl::Status TopK::Start(const ReductionArgs& args) {
  args_ = args;
  live_ = members_ - static_cast<int>(args.absent.size());
  entries_ = 0;
  for (const Operand& operand : args.operands) {
    for (int64_t begin = 0; begin < operand.elements; begin += kTopKChunk) {
      entries_ +=
          ChosenOf(args.compression.parameter, std::min(kTopKChunk, operand.elements - begin));
    }
  }
  RUEDA_RETURN_IF_ERROR(chosen_.Reserve(entries_));
  RUEDA_RETURN_IF_ERROR(received_.Reserve(entries_ * live_));
  step_ = Step::kChoose;
  operand_ = 0;
  begin_ = entry_ = 0;
  return absl::OkStatus();
}

// Of equals the first.
void TopK::Choose(const Operand& operand, int64_t begin, int64_t count, Entry* entries) {
  float* const values = operand.values + begin;
  float* residual = nullptr;
  if (args_.Remembers(operand)) {
    residual = operand.state->sent.Of(operand.begin, operand.elements) + begin;
    for (int64_t i = 0; i < count; ++i) values[i] += residual[i];
  }
  const int64_t chosen = ChosenOf(args_.compression.parameter, count);
  places_.resize(static_cast<size_t>(count));
  std::iota(places_.begin(), places_.end(), 0);
  const auto larger = [&](uint32_t a, uint32_t b) {
    const float first = Magnitude(values[a]), second = Magnitude(values[b]);
    return first != second ? first > second : a < b;
  };
  if (chosen < count) {
    std::nth_element(places_.begin(), places_.begin() + chosen, places_.end(), larger);
  }
  std::sort(places_.begin(), places_.begin() + chosen);
  // What is not finite would never go again.
  for (int64_t i = 0; residual != nullptr && i < count; ++i) {
    residual[i] = std::isfinite(values[i]) ? values[i] : 0;
  }
  for (int64_t i = 0; i < chosen; ++i) {
    const uint32_t place = places_[static_cast<size_t>(i)];
    entries[i] = {place, values[place]};
    if (residual != nullptr) residual[place] = 0;
  }
}

// What all members have chosen of a chunk; `entry`: where it begins in each one's.
absl::Status TopK::Add(const Operand& operand, int64_t begin, int64_t count, int64_t entry) {
  float* const values = operand.values + begin;
  std::fill_n(values, count, 0.0f);
  const int64_t chosen = ChosenOf(args_.compression.parameter, count);
  for (int giver = 0; giver < live_; ++giver) {
    const Entry* const entries = received_.data() + giver * entries_ + entry;
    for (int64_t i = 0; i < chosen; ++i) {
      if (entries[i].place >= count) {
        return absl::InternalError("a member has sent a place beyond the tensor's end");
      }
      values[entries[i].place] += entries[i].value;
    }
  }
  for (int64_t i = 0; i < count; ++i) values[i] = args_.Scaled(values[i]);
  return absl::OkStatus();
}

// Does the step for the next chunk; returns whether it was the last.
absl::StatusOr<bool> TopK::NextChunk() {
  while (operand_ < args_.operands.size() && begin_ == args_.operands[operand_].elements) {
    ++operand_;
    begin_ = 0;
  }
  if (operand_ == args_.operands.size()) return true;
  const Operand& operand = args_.operands[operand_];
  const int64_t count = std::min(kTopKChunk, operand.elements - begin_);
  if (step_ == Step::kChoose) {
    Choose(operand, begin_, count, chosen_.data() + entry_);
  } else {
    RUEDA_RETURN_IF_ERROR(Add(operand, begin_, count, entry_));
  }
  entry_ += ChosenOf(args_.compression.parameter, count);
  begin_ += count;
  return false;
}

absl::StatusOr<Progress> TopK::Advance() {
  if (step_ == Step::kExchange) {
    RUEDA_ASSIGN_OR_RETURN(const Progress progress, communicator_.Advance());
    if (progress != Progress::kDone) return progress;
    step_ = Step::kAdd;
    operand_ = 0;
    begin_ = entry_ = 0;
    return Progress::kMoved;
  }
  const bool absent = args_.IsAbsent(self_);
  bool done = absent && step_ == Step::kChoose;
  if (!done) {
    RUEDA_ASSIGN_OR_RETURN(done, NextChunk());
  }
  if (!done) return Progress::kMoved;
  if (step_ == Step::kAdd) return Progress::kDone;
  counts_.clear();
  const int64_t bytes = entries_ * static_cast<int64_t>(sizeof(Entry));
  for (int member = 0; member < members_; ++member) {
    counts_.push_back(args_.IsAbsent(member) ? 0 : bytes);
  }
  step_ = Step::kExchange;
  StartExchange(OpKind::kAllgather, DType::kUInt8,
                {chosen_.data(), received_.data(), absent ? 0 : bytes}, counts_);
  return Progress::kMoved;
}

}  // namespace rueda
