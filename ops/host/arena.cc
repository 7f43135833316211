#include "ops/host/arena.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/round_up.h"

namespace rueda {
namespace {

// Also of a machine that does not say how much it has.
constexpr size_t kMemoryBytesMin = 256u << 20;

}  // namespace

size_t ArenaBytesMax(size_t room, size_t other_bytes, int ranks) {
  if (room == kNoLimit) return kNoLimit;
  const size_t rest = room - std::min(room, other_bytes);
  return std::max(rest / 2 / static_cast<size_t>(ranks), kArenaBytesMin);
}

Arena::Arena(std::shared_ptr<SharedMemory> memory) : memory_(std::move(memory)) {
  free_[0] = memory_->bytes();
}

absl::StatusOr<std::shared_ptr<Arena>> Arena::Create(size_t bytes_max) {
  const auto pages = static_cast<size_t>(std::max<long>(sysconf(_SC_PHYS_PAGES), 0));
  const size_t memory = std::max(pages * PageBytes(), kMemoryBytesMin);
  const size_t limit = std::max(std::min(bytes_max, FileBytesMax()), kArenaBytesMin);
  const size_t bytes = std::min(memory, limit) / PageBytes() * PageBytes();
  RUEDA_ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> shared,
                         SharedMemory::Create("rueda-arena", bytes));
  return std::shared_ptr<Arena>(new Arena(std::move(shared)));
}

absl::StatusOr<void*> Arena::Allocate(size_t bytes) {
  if (bytes > memory_->bytes()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an arena has ", memory_->bytes(), " bytes; ", bytes, " were asked for"));
  }
  const size_t size = std::max(RoundUp(bytes, PageBytes()), PageBytes());
  MutexLock lock(mutex_);
  for (auto it = free_.begin(); it != free_.end(); ++it) {  // first fit
    const auto [offset, room] = *it;
    if (room < size) continue;
    memory_->Release(offset, size);  // what was left there
    RUEDA_RETURN_IF_ERROR(memory_->Reserve(offset, size));
    free_.erase(it);
    if (room > size) free_[offset + size] = room - size;
    used_[offset] = size;
    return memory_->data() + offset;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("no room for ", bytes, " bytes among the ", memory_->bytes(),
                   " of this rank's shared memory, which a limit on address space (ulimit -v) or "
                   "files (ulimit -f) may have made small"));
}

absl::Status Arena::Free(void* pointer, bool left) {
  const int64_t at = OffsetOf(pointer, 0);
  MutexLock lock(mutex_);
  const auto it = at < 0 ? used_.end() : used_.find(static_cast<size_t>(at));
  if (it == used_.end()) return absl::NotFoundError("this memory was not allocated here");
  size_t offset = it->first;
  size_t size = it->second;
  used_.erase(it);
  if (!left) memory_->Release(offset, size);
  // Join it with its neighbours.
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + size) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return absl::OkStatus();
    }
  }
  free_[offset] = size;
  return absl::OkStatus();
}

void Arena::AddGuard(Guard guard) {
  MutexLock lock(mutex_);
  guards_.push_back(std::move(guard));
}

absl::Status Arena::WaitUntilSafe(Nanos deadline) {
  constexpr timespec kPause = {0, 2 * kMillisecond};  // there is nothing to wait on but the clock
  while (true) {
    std::string who;
    {
      MutexLock lock(mutex_);
      std::erase_if(guards_, [&](const Guard& guard) {
        const std::string words = guard();
        if (who.empty()) who = words;
        return words.empty();
      });
    }
    if (who.empty()) return absl::OkStatus();
    if (MonotonicNow() >= deadline) {
      return absl::FailedPreconditionError(
          absl::StrCat("memory of a failed membership may still be written to: ", who));
    }
    nanosleep(&kPause, nullptr);
  }
}

bool Arena::InUse() const {
  MutexLock lock(mutex_);
  return !used_.empty();
}

}  // namespace rueda
