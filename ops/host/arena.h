// An arena: memory of one rank that its neighbours can read and write, so that tensors in it are
// reduced where they lie. Sparse and of fixed size; pages exist while they are allocated. It
// outlives memberships: the process hands it to each membership's neighbours again as long as
// something in it is in use.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/memory_limits.h"
#include "core/base/mutex.h"
#include "core/base/shared_memory.h"

namespace rueda {

// How large each of `ranks` neighbours' arenas may be where each of them may map `room` bytes
// more, `other_bytes` of them for something else. Half of what is left stays the program's. No less
// than kArenaBytesMin: whether there is room for that is asked beforehand. PURE
size_t ArenaBytesMax(size_t room, size_t other_bytes, int ranks);
inline constexpr size_t kArenaBytesMin = 16u << 20;

class Arena {
 public:
  // As large as the machine's memory, or smaller: at most `bytes_max`, and what a file may have.
  // What is not allocated costs nothing but address space.
  static absl::StatusOr<std::shared_ptr<Arena>> Create(size_t bytes_max = kNoLimit);

  // At least `bytes` bytes of zeros, aligned to a page. RESOURCE_EXHAUSTED when there is no room.
  absl::StatusOr<void*> Allocate(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // NOT_FOUND when `pointer` did not come from Allocate. `left`: to neighbours, who read there
  // until Allocate gives it out again.
  absl::Status Free(void* pointer, bool left = false) ABSL_LOCKS_EXCLUDED(mutex_);

  // Where [pointer, pointer + bytes) lies in the arena; -1: not, or not wholly, in it.
  int64_t OffsetOf(const void* pointer, size_t bytes) const {
    const char* at = static_cast<const char*>(pointer);
    if (at < memory_->data() || bytes > memory_->bytes()) return -1;
    const size_t offset = static_cast<size_t>(at - memory_->data());
    return offset <= memory_->bytes() - bytes ? static_cast<int64_t>(offset) : -1;
  }
  bool InUse() const ABSL_LOCKS_EXCLUDED(mutex_);

  // After a failed membership its ranks may still be writing here. A guard says who, for people; ""
  // once nobody can be.
  using Guard = std::function<std::string()>;
  void AddGuard(Guard guard) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until all guards are content. FAILED_PRECONDITION at `deadline`, naming who is in the
  // way.
  absl::Status WaitUntilSafe(Nanos deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<SharedMemory>& memory() const { return memory_; }

 private:
  explicit Arena(std::shared_ptr<SharedMemory> memory);

  const std::shared_ptr<SharedMemory> memory_;
  mutable Mutex mutex_;
  std::map<size_t, size_t> free_ ABSL_GUARDED_BY(mutex_);  // offset -> bytes, never adjacent
  std::map<size_t, size_t> used_ ABSL_GUARDED_BY(mutex_);
  std::vector<Guard> guards_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rueda
