#include "ops/hierarchical/hierarchical_allreduce.h"

#include <algorithm>

#include "ops/backend/timed.h"
#include "ops/kernels/reduce.h"

namespace rueda {
namespace {

// What is converted at a time.
constexpr int64_t kNarrowedAtATime = 4 << 10;

}  // namespace

void HierarchicalAllreduce::Start(const BucketOperation& operation) {
  operation_ = operation;
  if (operation.kind == OpKind::kBarrier) operation_.reduce_op = ReduceOp::kSum;
  wire_ = kernels::WireOf(operation.dtype, operation.reduce_op, operation.scaling, split_.ranks());
  pieces_.Reset(operation.pieces, DTypeSize(operation.dtype));
  cut_ = MakeCut(limits_, operation.elements, DTypeSize(wire_.type), DTypeSize(operation.dtype));
  first_ = next_;
  next_ += static_cast<uint64_t>(cut_.blocks);
  filled_ = sent_ = taken_ = 0;
  times_ = {};
  status_ = ring_.Open();
  if (status_.ok() && HasStripe()) exchange_->Start(OperationOf());
}

CrossOperation HierarchicalAllreduce::OperationOf() const {
  CrossOperation cross;
  cross.cut = cut_;
  cross.first = first_;
  cross.wire = wire_;
  cross.reduce_op = operation_.reduce_op;
  cross.digest = operation_.digest;
  for (const std::vector<int>& members : split_.members) {
    cross.contributing.push_back(!std::all_of(
        members.begin(), members.end(), [&](int member) { return operation_.IsAbsent(member); }));
  }
  return cross;
}

absl::StatusOr<Progress> HierarchicalAllreduce::Advance() {
  RUEDA_RETURN_IF_ERROR(status_);
  if (exchange_ != nullptr) RUEDA_RETURN_IF_ERROR(exchange_->failure());
  RUEDA_ASSIGN_OR_RETURN(const bool moved, Step());
  if (taken_ == cut_.blocks) return Progress::kDone;
  return moved ? Progress::kMoved : Progress::kBlocked;
}

// What keeps the network busy goes first.
absl::StatusOr<bool> HierarchicalAllreduce::Step() {
  if (HasStripe() && sent_ < filled_) {
    RUEDA_ASSIGN_OR_RETURN(const bool sent, ReduceAndSend());
    if (sent) return true;
  }
  if (filled_ < cut_.blocks && filled_ - taken_ < static_cast<int64_t>(kRingBlocks)) {
    Fill();
    return true;
  }
  return Take();
}

// Puts what this rank brings to the next block where the others find it.
void HierarchicalAllreduce::Fill() {
  if (Shares() && !IsAbsent(split_.local)) {
    Timed(operation_.timed, &times_.pack,
          [&] { Bring(cut_.Block(filled_), ring_.own_input(Number(filled_))); });
  }
  ring_.Fill(Number(filled_), operation_.digest);
  ++filled_;
}

// Packs elements as they travel.
void HierarchicalAllreduce::Bring(Range range, char* to) {
  if (!wire_.widens()) {
    pieces_.Pack(range.begin, range.end, to);
    return;
  }
  if (narrow_ == nullptr) narrow_.reset(new char[kNarrowedAtATime * kernels::kNarrowBytesMax]);
  for (int64_t begin = range.begin; begin < range.end; begin += kNarrowedAtATime) {
    const int64_t end = std::min(begin + kNarrowedAtATime, range.end);
    pieces_.Pack(begin, end, narrow_.get());
    kernels::Widen(wire_, narrow_.get(),
                   to + static_cast<size_t>(begin - range.begin) * cut_.wire_bytes, end - begin);
  }
}

absl::StatusOr<bool> HierarchicalAllreduce::ReduceAndSend() {
  if (!exchange_->connected() || !ring_.AllFilled(Number(sent_))) return false;
  RUEDA_RETURN_IF_ERROR(ring_.CheckFilled(Number(sent_), operation_.digest));
  RUEDA_RETURN_IF_ERROR(ring_.Locate());
  const Range block = cut_.Block(sent_);
  const Range stripe = cut_.Stripe(sent_, split_.local);
  const int parts = cut_.direct ? 1 : cut_.hosts;
  for (int host = 0; host < parts; ++host) {
    ReducePart(block, cut_.Part(stripe, host), exchange_->PartAt(sent_, host));
  }
  RUEDA_RETURN_IF_ERROR(exchange_->Send(sent_));
  ++sent_;
  return true;
}

// Reduces what this host's members bring to a part, in rank order.
void HierarchicalAllreduce::ReducePart(Range block, Range part, char* to) {
  sources_.clear();
  const size_t offset = static_cast<size_t>(part.begin - block.begin) * cut_.wire_bytes;
  for (int local = 0; local < ring_.size(); ++local) {
    if (IsAbsent(local)) continue;
    if (!Shares()) Bring(part, to);
    sources_.push_back(Shares() ? ring_.input(local, Number(sent_)) + offset : to);
  }
  if (sources_.empty() || (!Shares() && wire_.before.none())) return;
  kernels::Reduce(wire_.type, operation_.reduce_op, sources_, to, part.size(), wire_.before);
}

absl::StatusOr<bool> HierarchicalAllreduce::Take() {
  const uint64_t number = Number(taken_);
  if (taken_ == filled_ || !ring_.AllFinished(number, cut_.stripes)) return false;
  RUEDA_RETURN_IF_ERROR(ring_.Locate());
  if (!IsAbsent(split_.local)) {
    Timed(operation_.timed, &times_.unpack, [&] {
      for (int i = 0; i < cut_.stripes; ++i) {
        const Range stripe = cut_.Stripe(taken_, i);
        pieces_.Unpack(stripe.begin, stripe.end, ring_.output(i, number));
      }
    });
  }
  ++taken_;
  return true;
}

}  // namespace rueda
