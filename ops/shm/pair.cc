#include "ops/shm/pair.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "ops/kernels/copy.h"

namespace rueda {
namespace {

constexpr size_t kHalfBytes = kBlockBytes / 2;
// Of a word of progress, the bits that count blocks; those above name the operation. The two are
// never more than two blocks apart, so the count may wrap around.
constexpr int kCountBits = 20;
constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;

}  // namespace

uint64_t PairAlgorithm::Word(uint64_t blocks) const {
  return (operation_.sequence << kCountBits) | (blocks & kCountMask);
}

// Whether the other's word says that it is done with that many blocks of this operation. It may be
// at a later one already, or not have begun this one.
bool PairAlgorithm::HasReached(uint64_t word, uint64_t blocks) const {
  const uint64_t operation = word & ~kCountMask;
  if (operation != Word(0)) return static_cast<int64_t>(operation - Word(0)) > 0;
  return ((word - blocks) & kCountMask) <= kCountMask / 2;
}

void PairAlgorithm::Start(const BucketOperation& operation) {
  operation_ = operation;
  bytes_ = static_cast<size_t>(operation.elements) * DTypeSize(operation.dtype);
  blocks_ =
      std::max<uint64_t>(1, (bytes_ + kHalfBytes - 1) / kHalfBytes);  // without data they meet
  block_ = 0;
  // Release: the other may read this in place of the last block's word, and the half is free then.
  Area& own = group_->own();
  if (sends()) {
    own.pair_parity = static_cast<uint32_t>(group_->parity());
    own.pair_digest = operation.digest;
    own.offered.store(Word(0), std::memory_order_release);
  } else {
    own.accepted.store(Word(0), std::memory_order_release);
  }
}

char* PairAlgorithm::HalfOf(uint64_t block) const {
  Area& area = *group_->member(operation_.root).area;
  return area.input[area.pair_parity & 1] + (block & 1) * kHalfBytes;
}

size_t PairAlgorithm::BytesOf(uint64_t block) const {
  return std::min(kHalfBytes, bytes_ - block * kHalfBytes);
}

absl::StatusOr<Progress> PairAlgorithm::Advance() {
  return sends() ? Send() : Receive();
}

absl::StatusOr<Progress> PairAlgorithm::Send() {
  const uint64_t accepted =
      group_->member(operation_.peer).area->accepted.load(std::memory_order_acquire);
  if (block_ == blocks_) {
    return HasReached(accepted, blocks_) ? Progress::kDone : Progress::kBlocked;
  }
  if (block_ >= 2 && !HasReached(accepted, block_ - 1)) return Progress::kBlocked;
  const char* const input = static_cast<const char*>(operation_.pieces[0].input);
  const size_t bytes = BytesOf(block_);
  if (bytes > 0) kernels::Copy(HalfOf(block_), input + block_ * kHalfBytes, bytes);
  group_->own().offered.store(Word(++block_), std::memory_order_release);
  group_->Wake(operation_.peer);
  return Progress::kMoved;
}

absl::StatusOr<Progress> PairAlgorithm::Receive() {
  const Area& sender = *group_->member(operation_.root).area;
  if (!HasReached(sender.offered.load(std::memory_order_acquire), block_ + 1)) {
    return Progress::kBlocked;
  }
  if (sender.pair_digest != operation_.digest) {
    return absl::InternalError(absl::StrCat("member ", operation_.root,
                                            " sends another layout than member ", group_->self(),
                                            " expects"));
  }
  char* const output = static_cast<char*>(operation_.pieces[0].output);
  const size_t bytes = BytesOf(block_);
  if (bytes > 0 && output != nullptr) {
    kernels::Copy(output + block_ * kHalfBytes, HalfOf(block_), bytes);
  }
  group_->own().accepted.store(Word(++block_), std::memory_order_release);
  group_->Wake(operation_.root);
  return block_ == blocks_ ? Progress::kDone : Progress::kMoved;
}

}  // namespace rueda
