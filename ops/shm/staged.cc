#include "ops/shm/staged.h"

#include <algorithm>
#include <cstring>

#include "ops/backend/timed.h"
#include "ops/kernels/reduce.h"

namespace rueda {
namespace {

// What is reduced and taken at a time.
constexpr size_t kStagedAtATime = 8 << 10;

}  // namespace

void StagedAlgorithm::Reset(const BucketOperation& operation) {
  operation_ = operation;
  element_bytes_ = DTypeSize(operation.dtype);
  pieces_.Reset(operation.pieces, element_bytes_);
  block_elements_ = static_cast<int64_t>(kBlockBytes / element_bytes_);
  blocks_ = (operation.elements + block_elements_ - 1) / block_elements_;
  step_ = 0;
  times_ = {};
  first_parity_ = group_->parity();
  phase_ = Phase::kFill;
  resident_.assign(group_->size(), nullptr);
}

void StagedAlgorithm::Start(const BucketOperation& operation) {
  Reset(operation);
}

void StagedAlgorithm::StageFirst(const BucketOperation& operation, bool resident) {
  Reset(operation);
  static const char kSomewhere = 0;
  if (resident) resident_[group_->self()] = &kSomewhere;  // TakeOver says where
  if (!group_->prepared()) Timed(operation_.timed, &times_.pack, [&] { Fill(0); });
}

void StagedAlgorithm::TakeOver(const BucketOperation& operation,
                               std::vector<const char*> resident) {
  operation_ = operation;
  resident_ = std::move(resident);
  phase_ = Phase::kWait;
}

Range StagedAlgorithm::BlockOf(int64_t block) const {
  const int64_t begin = block * block_elements_;
  return {begin, std::min(begin + block_elements_, operation_.elements)};
}

Range StagedAlgorithm::OwnSlice(Range block) const {
  return SliceOf(block, group_->self(), group_->size(), element_bytes_);
}

// Copies this rank's contribution to the block into its shared block.
void StagedAlgorithm::Fill(int64_t block) {
  const int self = group_->self();
  if (resident_[self] != nullptr || operation_.IsAbsent(self)) return;
  char* input = group_->own().input[(first_parity_ + block) & 1];
  const Range range = BlockOf(block);
  // A lone tensor's own slice is read where it is.
  const Range own = pieces_.single() ? OwnSlice(range) : Range{range.end, range.end};
  pieces_.Pack(range.begin, own.begin, input);
  pieces_.Pack(own.end, range.end,
               input + static_cast<size_t>(own.end - range.begin) * element_bytes_);
}

// Takes the other members' finished slices of the block.
void StagedAlgorithm::Collect(int64_t block) {
  const Range range = BlockOf(block);
  for (int i = 0; i < group_->size(); ++i) {
    if (i == group_->self()) continue;
    const Range slice = SliceOf(range, i, group_->size(), element_bytes_);
    const char* output = group_->member(i).area->output[(first_parity_ + block) & 1];
    pieces_.Unpack(slice.begin, slice.end,
                   output + static_cast<size_t>(slice.begin - range.begin) * element_bytes_);
  }
}

// Reduces this rank's slice of the block, and takes it while it is in the first-level cache.
void StagedAlgorithm::Reduce(int64_t block) {
  const Range range = BlockOf(block);
  const Range slice = OwnSlice(range);
  const int parity = static_cast<int>((first_parity_ + block) & 1);
  const int64_t hot = static_cast<int64_t>(kStagedAtATime / element_bytes_);
  for (int64_t begin = slice.begin; begin < slice.end; begin += hot) {
    ReducePart(range, {begin, std::min(begin + hot, slice.end)}, parity);
  }
}

void StagedAlgorithm::ReducePart(Range range, Range slice, int parity) {
  const size_t in_block = static_cast<size_t>(slice.begin - range.begin) * element_bytes_;
  const size_t in_tensor = static_cast<size_t>(slice.begin) * element_bytes_;
  sources_.clear();
  for (int i = 0; i < group_->size(); ++i) {
    if (operation_.IsAbsent(i)) continue;
    if (i == group_->self() && pieces_.single()) {
      sources_.push_back(static_cast<const char*>(operation_.pieces[0].input) + in_tensor);
    } else if (resident_[i] != nullptr) {
      sources_.push_back(resident_[i] + in_tensor);
    } else {
      sources_.push_back(group_->member(i).area->input[parity] + in_block);
    }
  }
  char* output = group_->own().output[parity] + in_block;
  kernels::Reduce(operation_.dtype, operation_.reduce_op, sources_, output, slice.size(),
                  operation_.scaling);
  pieces_.Unpack(slice.begin, slice.end, output);
}

void StagedAlgorithm::Arrive() {
  group_->Arrive(operation_.digest);
  phase_ = Phase::kWait;
}

absl::StatusOr<Progress> StagedAlgorithm::Advance() {
  switch (phase_) {
    case Phase::kFill:
      if (step_ < blocks_) Timed(operation_.timed, &times_.pack, [&] { Fill(step_); });
      Arrive();
      return Progress::kMoved;
    case Phase::kWait:
      if (!group_->AllArrived()) return Progress::kBlocked;
      if (step_ == 0) RUEDA_RETURN_IF_ERROR(group_->CheckDigests(operation_.digest));
      phase_ = Phase::kCollect;
      [[fallthrough]];
    case Phase::kCollect:
      if (step_ > 0) Timed(operation_.timed, &times_.unpack, [&] { Collect(step_ - 1); });
      if (step_ == blocks_) return Progress::kDone;
      phase_ = Phase::kReduce;
      return Progress::kMoved;
    case Phase::kReduce:
      Reduce(step_);
      ++step_;
      phase_ = Phase::kFill;
      return Progress::kMoved;
  }
  return absl::InternalError("unreachable");
}

}  // namespace rueda
