#include "ops/shm/direct.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/reduce.h"

namespace rueda {
namespace {

constexpr uint32_t kRegion = 1;  // an arena is one region

// What one Advance reduces, over all members: about 100 us of work.
constexpr size_t kChunkBytes = 1 << 20;
// What is stored into the other tensors while it is hot in the first-level cache.
constexpr size_t kReducedAtATime = 16 << 10;

}  // namespace

// Says where this rank's tensor lies, and fills the first block with what does not lie in its
// arena. Once that is prepared others may be reading both.
void DirectAlgorithm::Stage(const BucketOperation& operation) {
  Descriptor descriptor = {};
  const bool absent = operation.IsAbsent(group_->self());
  if (operation.pieces.size() == 1 && arena_ != nullptr && !absent) {
    const Piece& piece = operation.pieces[0];
    const size_t bytes = static_cast<size_t>(piece.elements) * DTypeSize(operation.dtype);
    const int64_t input = arena_->OffsetOf(piece.input, bytes);
    const int64_t output = piece.output == nullptr ? -1 : arena_->OffsetOf(piece.output, bytes);
    if (input >= 0) descriptor.input_region = kRegion;
    if (output >= 0) descriptor.output_region = kRegion;
    descriptor.input_offset = static_cast<uint64_t>(input);
    descriptor.output_offset = static_cast<uint64_t>(output);
  }
  staged_->StageFirst(operation, descriptor.input_region != 0);
  if (!group_->prepared()) group_->own().descriptor[group_->parity()] = descriptor;
}

void DirectAlgorithm::Prepare(const BucketOperation& operation) {
  Stage(operation);
  staged_->Forget();
  group_->ArriveEarly(operation.digest);
}

void DirectAlgorithm::Start(const BucketOperation& operation) {
  operation_ = operation;
  parity_ = group_->parity();
  Stage(operation);
  group_->Arrive(operation.digest);
  phase_ = Phase::kWaitForDescriptors;
}

absl::Status DirectAlgorithm::ReadDescriptors() {
  const size_t bytes = static_cast<size_t>(operation_.elements) * DTypeSize(operation_.dtype);
  inputs_.assign(group_->size(), nullptr);
  outputs_.clear();
  all_resident_ = true;
  for (int i = 0; i < group_->size(); ++i) {
    if (operation_.IsAbsent(i)) continue;
    const Descriptor descriptor = group_->member(i).area->descriptor[parity_];  // copied once
    const SharedMemory* arena = group_->member(i).arena.get();
    const auto place = [&](uint32_t region, uint64_t offset) -> absl::StatusOr<char*> {
      if (region == 0) return nullptr;
      if (region != kRegion || arena == nullptr || bytes > arena->bytes() ||
          offset > arena->bytes() - bytes) {
        return absl::InternalError(
            absl::StrCat("member ", i, " describes memory outside its arena"));
      }
      return arena->data() + offset;
    };
    RUEDA_ASSIGN_OR_RETURN(inputs_[i], place(descriptor.input_region, descriptor.input_offset));
    all_resident_ = all_resident_ && inputs_[i] != nullptr;
    if (!operation_.WantsResult(i)) continue;
    RUEDA_ASSIGN_OR_RETURN(char* const output,
                           place(descriptor.output_region, descriptor.output_offset));
    all_resident_ = all_resident_ && output != nullptr;
    outputs_.insert(i == group_->self() ? outputs_.begin() : outputs_.end(), output);
  }
  return absl::OkStatus();
}

void DirectAlgorithm::ReduceChunk() {
  const size_t element_bytes = DTypeSize(operation_.dtype);
  const int64_t chunk =
      static_cast<int64_t>(kChunkBytes / element_bytes / static_cast<size_t>(group_->size()));
  const int64_t hot = static_cast<int64_t>(kReducedAtATime / element_bytes);
  const int64_t end = std::min(rest_.end, rest_.begin + std::max(chunk, hot));
  while (rest_.begin < end) {
    const int64_t count = std::min(hot, end - rest_.begin);
    const size_t offset = static_cast<size_t>(rest_.begin) * element_bytes;
    sources_.clear();
    for (int i = 0; i < group_->size(); ++i) {
      if (!operation_.IsAbsent(i)) sources_.push_back(inputs_[i] + offset);
    }
    // Only this rank reads or writes this slice, whoever's tensor it is in.
    char* const first = outputs_[0] + offset;
    kernels::Reduce(operation_.dtype, operation_.reduce_op, sources_, first, count,
                    operation_.scaling);
    for (size_t i = 1; i < outputs_.size(); ++i) {
      kernels::Copy(outputs_[i] + offset, first, static_cast<size_t>(count) * element_bytes);
    }
    rest_.begin += count;
  }
}

absl::StatusOr<Progress> DirectAlgorithm::Advance() {
  switch (phase_) {
    case Phase::kWaitForDescriptors:
      if (!group_->AllArrived()) return Progress::kBlocked;
      RUEDA_RETURN_IF_ERROR(group_->CheckDigests(operation_.digest));
      RUEDA_RETURN_IF_ERROR(ReadDescriptors());
      if (!all_resident_) {
        staged_->TakeOver(operation_, inputs_);
        phase_ = Phase::kStaged;
        return Progress::kMoved;
      }
      rest_ = SliceOf({0, operation_.elements}, group_->self(), group_->size(),
                      DTypeSize(operation_.dtype));
      phase_ = Phase::kReduce;
      [[fallthrough]];
    case Phase::kReduce:
      if (rest_.size() > 0) {
        ReduceChunk();
        return Progress::kMoved;
      }
      group_->Arrive(operation_.digest);
      phase_ = Phase::kWaitForResults;
      return Progress::kMoved;
    case Phase::kWaitForResults:
      return group_->AllArrived() ? Progress::kDone : Progress::kBlocked;
    case Phase::kStaged:
      return staged_->Advance();
  }
  return absl::InternalError("unreachable");
}

}  // namespace rueda
