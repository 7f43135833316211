#include "ops/compression/scatter_reduce.h"

#include <algorithm>
#include <numeric>

#include "ops/compression/codec.h"

namespace rueda {

void ScatterReduce::AddRange(size_t operand, int64_t begin, int64_t elements) {
  if (elements == 0) return;
  ranges_.push_back({operand, begin, elements});
  bytes_.back() += CodedBytes(compressor_, elements);
}

// Whole blocks to each member, as equally as they come, and another member first for another
// tensor: small ones have less blocks than there are members.
void ScatterReduce::Cut() {
  ranges_.clear();
  first_.clear();
  bytes_.clear();
  for (int owner = 0; owner < members_; ++owner) {
    first_.push_back(ranges_.size());
    bytes_.push_back(0);
    for (size_t i = 0; i < args_.operands.size(); ++i) {
      const Operand& operand = args_.operands[i];
      if (!args_.shares.empty()) {
        const int64_t* const shares = &args_.shares[i * static_cast<size_t>(members_)];
        AddRange(i, std::accumulate(shares, shares + owner, int64_t{0}), shares[owner]);
        continue;
      }
      const int64_t blocks = (operand.elements + kCodecBlock - 1) / kCodecBlock;
      const int64_t part = static_cast<int64_t>((static_cast<uint64_t>(owner) + operand.identity) %
                                                static_cast<uint64_t>(members_));
      const auto begin_of = [&](int64_t k) {
        return std::min(blocks * k / members_ * kCodecBlock, operand.elements);
      };
      AddRange(i, begin_of(part), begin_of(part + 1) - begin_of(part));
    }
  }
  first_.push_back(ranges_.size());
}

absl::Status ScatterReduce::Start(const ReductionArgs& args) {
  args_ = args;
  compressor_ = args.compression.compressor;
  live_ = members_ - static_cast<int>(args.absent.size());
  Cut();
  const int64_t own = bytes_[static_cast<size_t>(self_)];
  RUEDA_RETURN_IF_ERROR(coded_.Reserve(std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0})));
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
    const Range& range = ranges_[range_];
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
      counts_.push_back(args_.IsAbsent(giver) ? 0 : bytes_[static_cast<size_t>(taker)]);
    }
  }
  if (!args_.IsAbsent(self_)) all = std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0});
  step_ = Step::kExchange;
  StartExchange(OpKind::kAlltoall, DType::kUInt8, {coded_.data(), received_.data(), all}, counts_);
}

// `at_` is in the first giver's.
void ScatterReduce::CombineSome(const Range& range, int64_t begin, int64_t count) {
  const int64_t own = bytes_[static_cast<size_t>(self_)];
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
                {sum_.data(), coded_.data(), bytes_[static_cast<size_t>(self_)]}, bytes_);
}

absl::StatusOr<Progress> ScatterReduce::Advance() {
  const auto own = static_cast<size_t>(self_);
  switch (step_) {
    case Step::kEncode:
      if (args_.IsAbsent(self_) ||
          ForSome(ranges_.size(), [&](auto... some) { EncodeSome(some...); })) {
        StartScatter();
      }
      return Progress::kMoved;
    case Step::kCombine:
      if (!ForSome(first_[own + 1], [&](auto... some) { CombineSome(some...); })) {
        return Progress::kMoved;
      }
      if (!args_.shares.empty()) return Progress::kDone;
      StartGather();
      return Progress::kMoved;
    case Step::kDecode:
      return ForSome(ranges_.size(),
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
    Begin(Step::kCombine, first_[own], received_.data());
  } else {
    Begin(Step::kDecode, 0, coded_.data());
  }
  return Progress::kMoved;
}

}  // namespace rueda
