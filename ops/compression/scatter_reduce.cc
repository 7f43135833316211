#include "ops/compression/scatter_reduce.h"

#include <algorithm>

#include "ops/compression/codec.h"

namespace rueda {

absl::Status ScatterReduce::Start(const ReductionArgs& args) {
  args_ = args;
  compressor_ = args.compression.compressor;
  live_ = members_ - static_cast<int>(args.absent.size());
  sizes_.clear();
  for (const Operand& operand : args.operands) {
    sizes_.push_back({operand.elements, operand.identity});
  }
  ranges_.Cut(compressor_, sizes_, args.shares, members_);
  const int64_t own = ranges_.bytes()[static_cast<size_t>(self_)];
  RUEDA_RETURN_IF_ERROR(coded_.Reserve(ranges_.bytes_of_all()));
  RUEDA_RETURN_IF_ERROR(received_.Reserve(own * live_));
  RUEDA_RETURN_IF_ERROR(sum_.Reserve(own));
  RUEDA_RETURN_IF_ERROR(work_.Reserve(kElementsAtOnce));
  Begin(Step::kEncode, 0, coded_.data());
  return absl::OkStatus();
}

void ScatterReduce::Begin(Step step, size_t range, char* coded) {
  step_ = step;
  range_ = range;
  done_ = 0;
  at_ = coded;
}

// Calls fn(range, element that it goes on with, elements) for some of the elements of the ranges
// before `end`; moves on. Returns whether that was all.
template <typename Fn>
bool ScatterReduce::ForSome(size_t end, Fn fn) {
  for (int64_t left = kElementsAtOnce; range_ < end && left > 0;) {
    const Range& range = ranges_.all()[range_];
    const int64_t rest = range.elements - done_;
    const int64_t count = std::min(rest, std::max(left / kCodecBlock, int64_t{1}) * kCodecBlock);
    fn(range, done_, count);
    at_ += CodedBytes(compressor_, count);
    left -= count;
    done_ += count;
    if (done_ < range.elements) continue;
    ++range_;
    done_ = 0;
  }
  return range_ == end;
}

void ScatterReduce::EncodeSome(const Range& range, int64_t begin, int64_t count) {
  const Operand& operand = args_.operands[range.operand];
  float* const values = operand.values + range.begin + begin;
  if (!args_.Remembers(operand)) return Encode(compressor_, values, count, at_);
  float* const residual =
      operand.state->sent.Of(operand.begin, operand.elements) + range.begin + begin;
  for (int64_t i = 0; i < count; ++i) values[i] += residual[i];
  EncodeWithResidual(compressor_, values, count, at_, residual);
}

void ScatterReduce::StartScatter() {
  counts_.clear();
  int64_t all = 0;
  for (int giver = 0; giver < members_; ++giver) {
    for (int taker = 0; taker < members_; ++taker) {
      counts_.push_back(args_.IsAbsent(giver) ? 0 : ranges_.bytes()[static_cast<size_t>(taker)]);
    }
  }
  if (!args_.IsAbsent(self_)) all = ranges_.bytes_of_all();
  step_ = Step::kExchange;
  StartExchange(OpKind::kAlltoall, DType::kUInt8, {coded_.data(), received_.data(), all}, counts_);
}

// `at_` is in the first giver's.
void ScatterReduce::CombineSome(const Range& range, int64_t begin, int64_t count) {
  const int64_t own = ranges_.bytes()[static_cast<size_t>(self_)];
  float* const sum = work_.data();
  std::fill_n(sum, count, 0.0f);
  for (int giver = 0; giver < live_; ++giver) {
    DecodeAndAdd(compressor_, at_ + giver * own, count, sum);
  }
  for (int64_t i = 0; i < count; ++i) sum[i] = args_.Scaled(sum[i]);
  const Operand& operand = args_.operands[range.operand];
  if (!args_.shares.empty()) {
    std::copy_n(sum, count, operand.values + range.begin + begin);
    return;
  }
  char* const coded = sum_.data() + (at_ - received_.data());
  if (!args_.Remembers(operand)) return Encode(compressor_, sum, count, coded);
  float* const residual =
      operand.state->sums.Of(operand.begin + range.begin, range.elements) + begin;
  for (int64_t i = 0; i < count; ++i) sum[i] += residual[i];
  EncodeWithResidual(compressor_, sum, count, coded, residual);
}

void ScatterReduce::StartGather() {
  step_ = Step::kGather;
  StartExchange(OpKind::kAllgather, DType::kUInt8,
                {sum_.data(), coded_.data(), ranges_.bytes()[static_cast<size_t>(self_)]},
                ranges_.bytes());
}

absl::StatusOr<Progress> ScatterReduce::Advance() {
  switch (step_) {
    case Step::kEncode:
      if (args_.IsAbsent(self_) ||
          ForSome(ranges_.all().size(), [&](auto... some) { EncodeSome(some...); })) {
        StartScatter();
      }
      return Progress::kMoved;
    case Step::kCombine:
      if (!ForSome(ranges_.first(self_ + 1), [&](auto... some) { CombineSome(some...); })) {
        return Progress::kMoved;
      }
      if (!args_.shares.empty()) return Progress::kDone;
      StartGather();
      return Progress::kMoved;
    case Step::kDecode:
      return ForSome(ranges_.all().size(),
                     [&](const Range& range, int64_t begin, int64_t count) {
                       Decode(compressor_, at_, count,
                              args_.operands[range.operand].values + range.begin + begin);
                     })
                 ? Progress::kDone
                 : Progress::kMoved;
    case Step::kExchange:
    case Step::kGather:
      break;
  }
  RUEDA_ASSIGN_OR_RETURN(const Progress progress, communicator_.Advance());
  if (progress != Progress::kDone) return progress;
  if (step_ == Step::kExchange) {
    Begin(Step::kCombine, ranges_.first(self_), received_.data());
  } else {
    Begin(Step::kDecode, 0, coded_.data());
  }
  return Progress::kMoved;
}

}  // namespace rueda
