#include "ops/compression/compressed_communicator.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "core/base/round_up.h"
#include "ops/compression/codec.h"
#include "ops/compression/power_sgd.h"
#include "ops/compression/scatter_reduce.h"
#include "ops/compression/top_k.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/reduce.h"

namespace rueda {
namespace {

// What one Advance loads or stores: some 100 us of work.
constexpr int64_t kElementsAtOnce = 64 << 10;
// Where a part begins in memory.
constexpr int64_t kAlignment = 16;

std::unique_ptr<Reduction> MakeReduction(Compressor compressor, Communicator* communicator,
                                         int members, int self) {
  if (compressor == Compressor::kTopK) return std::make_unique<TopK>(communicator, members, self);
  if (compressor == Compressor::kPowerSgd) {
    return std::make_unique<PowerSgd>(communicator, members, self);
  }
  return std::make_unique<ScatterReduce>(communicator, members, self);
}

// Calls it; what is remembered of tensors may be more than there is memory for.
template <typename Fn>
auto WithMemory(Fn fn) -> decltype(fn()) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory for what compression remembers of tensors");
  }
}

size_t IndexOf(Compressor compressor) {
  return compressor == Compressor::kTopK ? 1 : compressor == Compressor::kPowerSgd ? 2 : 0;
}

}  // namespace

void CompressedCommunicator::Start(const BucketOperation& operation) {
  operation_ = operation;
  started_at_ = 0;
  status_ = absl::OkStatus();
  if (!operation.compressed() || members_ == 1 || operation.elements == 0) return StartInner();
  if (operation.automatic) {
    started_at_ = MonotonicNow();
    if (operation.pieces[0].state->automatic.agrees()) return StartAgreement();
  }
  status_ = WithMemory([this] { return Begin(); });
}

void CompressedCommunicator::StartInner() {
  operation_.compression = Compression();
  step_ = Step::kInner;
  inner().Start(operation_);
}

// What the ranks have measured of each piece: the planner lets those agree together that are as
// far.
void CompressedCommunicator::StartAgreement() {
  times_.clear();
  for (const Piece& piece : operation_.pieces) {
    const auto times = piece.state->automatic.times();
    times_.insert(times_.end(), times.begin(), times.end());
  }
  piece_.input = piece_.output = times_.data();
  piece_.elements = static_cast<int64_t>(times_.size());
  BucketOperation sum;
  sum.kind = OpKind::kAllreduce;
  sum.dtype = DType::kFloat64;
  sum.reduce_op = ReduceOp::kSum;
  sum.pieces = {&piece_, 1};
  sum.elements = piece_.elements;
  sum.digest = operation_.digest;
  sum.sequence = operation_.sequence;
  step_ = Step::kAgree;
  inner().Start(sum);
}

void CompressedCommunicator::Agree() {
  constexpr size_t kEach = AutomaticChoice::kCandidates;
  for (size_t i = 0; i < operation_.pieces.size(); ++i) {
    CompressionState& state = *operation_.pieces[i].state;
    state.automatic.Decide(absl::MakeConstSpan(times_).subspan(i * kEach, kEach));
    if (state.automatic.choice() == Compressor::kNone) state.sent = state.sums = {};
  }
}

absl::Status CompressedCommunicator::Begin() {
  if (operation_.compression.none()) {
    StartInner();
    return absl::OkStatus();
  }
  RUEDA_RETURN_IF_ERROR(Connect());
  RUEDA_RETURN_IF_ERROR(PlanParts());
  step_ = Step::kLoad;
  part_ = 0;
  done_ = 0;
  return absl::OkStatus();
}

absl::Status CompressedCommunicator::Connect() {
  if (connect_ == nullptr) return absl::OkStatus();
  RUEDA_ASSIGN_OR_RETURN(levels_, std::exchange(connect_, nullptr)());
  if (levels_.across != nullptr) across_probe_ = levels_.across->silence_probe();
  return absl::OkStatus();
}

void CompressedCommunicator::AddPart(size_t piece, int64_t begin, int64_t elements,
                                     int64_t* offset) {
  if (elements == 0) return;
  parts_.push_back({piece, begin, elements, nullptr});
  *offset += RoundUp(elements, kAlignment);
}

// Stripes of whole blocks, as equal as they come; of PowerSGD whole tensors.
absl::Status CompressedCommunicator::PlanParts() {
  parts_.clear();
  first_part_.clear();
  stripe_begin_.clear();
  int64_t offset = 0;
  const int64_t count = stripes();
  for (int64_t stripe = 0; stripe < count; ++stripe) {
    first_part_.push_back(parts_.size());
    stripe_begin_.push_back(offset);
    for (size_t i = 0; i < operation_.pieces.size(); ++i) {
      const Piece& piece = operation_.pieces[i];
      const int64_t turn = static_cast<int64_t>((piece.identity + static_cast<uint64_t>(stripe)) %
                                                static_cast<uint64_t>(count));
      if (operation_.compression.compressor == Compressor::kPowerSgd) {
        AddPart(i, 0, turn == 0 ? piece.elements : 0, &offset);
        continue;
      }
      const int64_t blocks = (piece.elements + kCodecBlock - 1) / kCodecBlock;
      const int64_t begin = std::min(blocks * turn / count * kCodecBlock, piece.elements);
      const int64_t end = std::min(blocks * (turn + 1) / count * kCodecBlock, piece.elements);
      AddPart(i, begin, end - begin, &offset);
    }
  }
  first_part_.push_back(parts_.size());
  stripe_begin_.push_back(offset);
  // On one host float32 is reduced where the result goes.
  const bool in_place = !two_levels() && operation_.kind == OpKind::kAllreduce &&
                        operation_.dtype == DType::kFloat32 && !operation_.IsAbsent(self_);
  if (!in_place) RUEDA_RETURN_IF_ERROR(values_.Reserve(offset));
  offset = 0;
  for (Part& part : parts_) {
    part.values = in_place ? static_cast<float*>(operation_.pieces[part.piece].output)
                           : values_.data() + offset;
    offset += RoundUp(part.elements, kAlignment);
  }
  return absl::OkStatus();
}

void CompressedCommunicator::Load(const Part& part, int64_t begin, int64_t count) {
  float* const to = part.values + begin;
  const void* const input = operation_.pieces[part.piece].input;
  if (input == nullptr || operation_.IsAbsent(self_)) {
    std::fill_n(to, count, 0.0f);
    return;
  }
  const size_t bytes = DTypeSize(operation_.dtype);
  const char* const from =
      static_cast<const char*>(input) + static_cast<size_t>(part.begin + begin) * bytes;
  if (operation_.dtype != DType::kFloat32) {
    kernels::ToFloat32(operation_.dtype, from, to, count);
  } else if (from != reinterpret_cast<const char*>(to)) {
    kernels::Copy(to, from, static_cast<size_t>(count) * bytes);
  }
  if (operation_.scaling.prescale == 1) return;
  const auto factor = static_cast<float>(operation_.scaling.prescale);
  for (int64_t i = 0; i < count; ++i) to[i] *= factor;
}

// A reducescatter's output has this member's share alone.
void CompressedCommunicator::Store(const Part& part, int64_t begin, int64_t count) {
  const Piece& piece = operation_.pieces[part.piece];
  if (piece.output == nullptr || operation_.IsAbsent(self_)) return;
  int64_t share_begin = 0;
  int64_t share_end = piece.elements;
  if (operation_.kind == OpKind::kReducescatter) {
    const auto members = static_cast<size_t>(members_);
    const int64_t* const counts = &operation_.counts[part.piece * members];
    share_begin = std::accumulate(counts, counts + self_, int64_t{0});
    share_end = share_begin + counts[self_];
  }
  const int64_t from = std::max(part.begin + begin, share_begin);
  const int64_t to = std::min(part.begin + begin + count, share_end);
  if (from >= to) return;
  const float* const values = part.values + (from - part.begin);
  const size_t bytes = DTypeSize(operation_.dtype);
  char* const output =
      static_cast<char*>(piece.output) + static_cast<size_t>(from - share_begin) * bytes;
  if (operation_.dtype != DType::kFloat32) {
    kernels::FromFloat32(operation_.dtype, values, output, to - from);
  } else if (output != reinterpret_cast<const char*>(values)) {
    kernels::Copy(output, values, static_cast<size_t>(to - from) * bytes);
  }
}

// Loads or stores some more; returns whether that was all.
bool CompressedCommunicator::ForSomeParts(bool load) {
  for (int64_t left = kElementsAtOnce; part_ < parts_.size() && left > 0;) {
    const Part& part = parts_[part_];
    const int64_t count = std::min(left, part.elements - done_);
    load ? Load(part, done_, count) : Store(part, done_, count);
    left -= count;
    done_ += count;
    if (done_ < part.elements) continue;
    ++part_;
    done_ = 0;
  }
  return part_ == parts_.size();
}

// Adds up the host's values, each of the first members a stripe, or gathers the stripes' results.
void CompressedCommunicator::StartInside(OpKind kind) {
  const size_t members = levels_.hosts[static_cast<size_t>(levels_.host)].size();
  counts_.assign(members, 0);
  for (int stripe = 0; stripe < stripes(); ++stripe) {
    counts_[static_cast<size_t>(stripe)] =
        stripe_begin_[static_cast<size_t>(stripe) + 1] - stripe_begin_[static_cast<size_t>(stripe)];
  }
  const bool reduces = kind == OpKind::kReducescatter;
  piece_.input = reduces ? values_.data() : stripe_.data();
  piece_.output = reduces ? stripe_.data() : values_.data();
  piece_.elements = reduces ? stripe_begin_.back() : counts_[static_cast<size_t>(levels_.local)];
  BucketOperation operation;
  operation.kind = kind;
  operation.dtype = DType::kFloat32;
  operation.reduce_op = reduces ? ReduceOp::kSum : ReduceOp::kNone;
  operation.pieces = {&piece_, 1};
  operation.elements = stripe_begin_.back();
  operation.counts = counts_;
  operation.digest = operation_.digest;
  operation.sequence = operation_.sequence;
  step_ = reduces ? Step::kReduceInside : Step::kGatherInside;
  levels_.inside->Start(operation);
}

// Of this rank's stripe, between the hosts; or of everything, between all members.
absl::Status CompressedCommunicator::StartReduction() {
  step_ = Step::kReduce;
  operands_.clear();
  shares_.clear();
  // Top-k and PowerSGD give every member all of it.
  const bool shares = operation_.kind == OpKind::kReducescatter && !two_levels() &&
                      HasCodec(operation_.compression.compressor);
  const auto members = static_cast<size_t>(members_);
  const auto stripe = static_cast<size_t>(two_levels() ? levels_.local : 0);
  for (size_t i = first_part_[stripe]; i < first_part_[stripe + 1]; ++i) {
    const Part& part = parts_[i];
    const Piece& piece = operation_.pieces[part.piece];
    float* values = part.values;
    if (two_levels())
      values = stripe_.data() + (part.values - values_.data()) - stripe_begin_[stripe];
    operands_.push_back(
        {values, part.begin, part.elements, piece.rows, piece.identity, piece.state});
    if (!shares) continue;
    const auto counts = operation_.counts.subspan(part.piece * members, members);
    shares_.insert(shares_.end(), counts.begin(), counts.end());
  }
  ReductionArgs args;
  args.compression = operation_.compression;
  args.operands = operands_;
  args.absent = two_levels() ? absl::MakeConstSpan(absent_hosts_) : operation_.absent;
  args.shares = shares_;
  args.after = operation_.scaling.after();
  args.digest = operation_.digest;
  args.sequence = operation_.sequence;
  std::unique_ptr<Reduction>& reduction = reductions_[IndexOf(args.compression.compressor)];
  if (reduction == nullptr) {
    reduction = two_levels()
                    ? MakeReduction(args.compression.compressor, levels_.across.get(),
                                    static_cast<int>(levels_.hosts.size()), levels_.host)
                    : MakeReduction(args.compression.compressor, &inner(), members_, self_);
  }
  reduction_ = reduction.get();
  return reduction_->Start(args);
}

absl::Status CompressedCommunicator::AfterStep() {
  switch (step_) {
    case Step::kAgree:
      Agree();
      return Begin();
    case Step::kLoad:
      if (!two_levels()) return StartReduction();
      absent_hosts_.clear();
      for (size_t host = 0; host < levels_.hosts.size(); ++host) {
        const std::vector<int>& members = levels_.hosts[host];
        if (std::all_of(members.begin(), members.end(),
                        [&](int member) { return operation_.IsAbsent(member); })) {
          absent_hosts_.push_back(static_cast<int>(host));
        }
      }
      if (levels_.local < stripes()) {
        const auto stripe = static_cast<size_t>(levels_.local);
        RUEDA_RETURN_IF_ERROR(stripe_.Reserve(stripe_begin_[stripe + 1] - stripe_begin_[stripe]));
      }
      StartInside(OpKind::kReducescatter);
      return absl::OkStatus();
    case Step::kReduceInside:
      if (levels_.local < stripes()) return StartReduction();
      StartInside(OpKind::kAllgather);
      return absl::OkStatus();
    case Step::kReduce:
      if (two_levels()) {
        StartInside(OpKind::kAllgather);
        return absl::OkStatus();
      }
      break;
    default:
      break;
  }
  step_ = Step::kStore;
  part_ = 0;
  done_ = 0;
  return absl::OkStatus();
}

Progress CompressedCommunicator::Done() {
  if (started_at_ != 0) {
    const auto each = static_cast<double>(MonotonicNow() - started_at_) /
                      static_cast<double>(operation_.elements);
    for (const Piece& piece : operation_.pieces) {
      piece.state->automatic.Measured(
          static_cast<Nanos>(each * static_cast<double>(piece.elements)));
    }
  }
  return Progress::kDone;
}

absl::StatusOr<Progress> CompressedCommunicator::Advance() {
  RUEDA_RETURN_IF_ERROR(status_);
  return WithMemory([this] { return AdvanceStep(); });
}

absl::StatusOr<Progress> CompressedCommunicator::AdvanceStep() {
  Progress progress = Progress::kDone;
  switch (step_) {
    case Step::kInner: {
      RUEDA_ASSIGN_OR_RETURN(progress, inner().Advance());
      return progress == Progress::kDone ? Done() : progress;
    }
    case Step::kAgree: {
      RUEDA_ASSIGN_OR_RETURN(progress, inner().Advance());
      break;
    }
    case Step::kReduceInside:
    case Step::kGatherInside: {
      RUEDA_ASSIGN_OR_RETURN(progress, levels_.inside->Advance());
      break;
    }
    case Step::kReduce: {
      RUEDA_ASSIGN_OR_RETURN(progress, reduction_->Advance());
      break;
    }
    case Step::kLoad:
      if (!ForSomeParts(/*load=*/true)) return Progress::kMoved;
      break;
    case Step::kStore:
      return ForSomeParts(/*load=*/false) ? Done() : Progress::kMoved;
  }
  if (progress != Progress::kDone) return progress;
  RUEDA_RETURN_IF_ERROR(AfterStep());
  return Progress::kMoved;
}

std::optional<Silence> CompressedCommunicator::SilentMember() {
  if (across_probe_ != nullptr) {
    std::optional<Silence> silence = across_probe_->SilentMember();
    if (silence.has_value()) {
      const std::vector<int>& members = levels_.hosts[static_cast<size_t>(silence->member)];
      silence->member = members[static_cast<size_t>(levels_.local)];
      return silence;
    }
  }
  return inner_probe_ == nullptr ? std::nullopt : inner_probe_->SilentMember();
}

void CompressedCommunicator::Abort() {
  if (levels_.across != nullptr) levels_.across->Abort();
  inner().Abort();
}

}  // namespace rueda
