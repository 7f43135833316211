#include "ops/host/segment.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/limits.h"
#include "core/base/memory_limits.h"
#include "core/base/round_up.h"

namespace rueda {
namespace {

constexpr size_t kAreasPerSet = 2;  // for all ranks each: the second for low priority

// Of one communicator's areas, which are mapped by themselves, so they begin at a page.
size_t AreasBytes(int ranks) {
  return RoundUp(static_cast<size_t>(ranks) * sizeof(Area), kPageBytesMax);
}

}  // namespace

size_t Segment::MappedBytesFor(int ranks, size_t log_bytes, int sets) {
  const size_t n = static_cast<size_t>(ranks);
  return RoundUp(sizeof(Head), kPageBytesMax) + RoundUp(n * sizeof(RankPage), kPageBytesMax) +
         RoundUp(log_bytes, kPageBytesMax) +
         static_cast<size_t>(sets) * kAreasPerSet * AreasBytes(ranks);
}

size_t Segment::BytesFor(int ranks, size_t log_bytes) {
  return MappedBytesFor(ranks, log_bytes, kProcessSetsMax);
}

Segment::Segment(std::shared_ptr<SharedMemory> memory, int ranks, size_t log_bytes)
    : memory_(std::move(memory)), ranks_(ranks) {
  char* at = memory_->data();
  failure_ = &head().failure;
  at += RoundUp(sizeof(Head), kPageBytesMax);
  pages_ = reinterpret_cast<RankPage*>(at);
  at += RoundUp(static_cast<size_t>(ranks) * sizeof(RankPage), kPageBytesMax);
  log_ = at;
  head_bytes_ = MappedBytesFor(ranks, log_bytes, 0);
}

absl::StatusOr<Area*> Segment::Areas(SetId set, bool low_priority) const {
  const size_t bytes = AreasBytes(ranks_);
  const size_t index = static_cast<size_t>(set) * kAreasPerSet + (low_priority ? 1 : 0);
  const size_t offset = head_bytes_ + index * bytes;
  if (offset + bytes > memory_->bytes()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the shared memory of this host has room for ",
        (memory_->bytes() - head_bytes_) / bytes / kAreasPerSet,
        " process sets, as the limit on the size of a file (RLIMIT_FSIZE, ulimit -f) was small "
        "where it was made: raise it (ulimit -f unlimited)"));
  }
  RUEDA_ASSIGN_OR_RETURN(char* const areas, memory_->MapPart(offset, bytes));
  return reinterpret_cast<Area*>(areas);
}

absl::StatusOr<std::unique_ptr<Segment>> Segment::Create(int ranks, size_t log_bytes) {
  const size_t bytes =
      std::clamp(FileBytesMax(), MappedBytesFor(ranks, log_bytes, 1), BytesFor(ranks, log_bytes));
  RUEDA_ASSIGN_OR_RETURN(
      std::shared_ptr<SharedMemory> memory,
      SharedMemory::Create("rueda-control", bytes / kPageBytesMax * kPageBytesMax,
                           MappedBytesFor(ranks, log_bytes, 0)));
  std::unique_ptr<Segment> segment(new Segment(std::move(memory), ranks, log_bytes));
  segment->head().ranks = static_cast<uint64_t>(ranks);
  segment->head().log_bytes = log_bytes;
  return segment;
}

absl::StatusOr<std::unique_ptr<Segment>> Segment::Map(std::shared_ptr<SharedMemory> memory,
                                                      int ranks, size_t log_bytes) {
  if (memory->bytes() < MappedBytesFor(ranks, log_bytes, 1)) {
    return absl::InvalidArgumentError("the leader's control segment is too small");
  }
  std::unique_ptr<Segment> segment(new Segment(std::move(memory), ranks, log_bytes));
  const Head& head = segment->head();
  if (head.ranks != static_cast<uint64_t>(ranks) || head.log_bytes != log_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the leader's control segment is for ", head.ranks, " ranks and ", head.log_bytes,
        " bytes of log, and this host has ", ranks, " and needs ", log_bytes));
  }
  return segment;
}

void Segment::Fail(absl::string_view record) {
  uint32_t none = 0;
  if (!failure_->state.compare_exchange_strong(none, 1, std::memory_order_acq_rel)) return;
  failure_->bytes = static_cast<uint32_t>(std::min(record.size(), kFailureBytesMax));
  memcpy(failure_->record, record.data(), failure_->bytes);
  failure_->state.store(2, std::memory_order_release);
}

std::string Segment::failure() const {
  if (failure_->state.load(std::memory_order_acquire) != 2) return "";
  return std::string(failure_->record, std::min<size_t>(failure_->bytes, kFailureBytesMax));
}

}  // namespace rueda
