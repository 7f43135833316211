// rueda_mem_alloc: memory in arenas, which outlive contexts.
#include <pthread.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "bindings/c/context.h"
#include "bindings/c/guard.h"
#include "controller/lanes/callbacks.h"

namespace rueda::capi {
namespace {

constexpr Nanos kFreePatience = 10 * kSecond;

Mutex mutex;
struct Memory {
  std::map<std::pair<std::string, Rank>, std::weak_ptr<Arena>>
      arenas;                                         // the latest of each context
  std::map<void*, std::shared_ptr<Arena>> blocks;     // keep their arenas alive
  std::map<void*, std::shared_ptr<Arena>> inherited;  // the blocks of a forked child's parent
};
Memory& Known() {
  static auto* memory = new Memory();  // outlives every other object
  return *memory;
}

// Registered when the library is loaded. A child can't reach the blocks, and to free one would zero
// its parent's.
void LockMutex() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  mutex.Lock();
}
void UnlockMutex() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  mutex.Unlock();
}
void LeaveToParent() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Known().inherited.merge(Known().blocks);
  Known().arenas.clear();
  mutex.Unlock();
}
[[maybe_unused]] const int registered_lock =
    pthread_atfork(&LockMutex, &UnlockMutex, &LeaveToParent);

absl::Status Allocate(rueda_context* context, size_t bytes, void** pointer) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  if (pointer == nullptr) return absl::InvalidArgumentError("rueda_mem_alloc: `pointer` is null");
  *pointer = nullptr;
  RUEDA_ASSIGN_OR_RETURN(*pointer, runtime->arena()->Allocate(bytes));
  MutexLock lock(mutex);
  Known().blocks[*pointer] = runtime->arena();
  Known().arenas[{context->options.context, context->options.group_rank}] = runtime->arena();
  return absl::OkStatus();
}

absl::Status Free(void* pointer) {
  if (pointer == nullptr) return absl::OkStatus();
  std::shared_ptr<Arena> arena;
  {
    MutexLock lock(mutex);
    if (Known().inherited.contains(pointer)) return absl::OkStatus();
    const auto it = Known().blocks.find(pointer);
    if (it == Known().blocks.end()) {
      return absl::NotFoundError("rueda_mem_free: this pointer is not from rueda_mem_alloc");
    }
    arena = it->second;
  }
  const Nanos patience = InTurn() ? 0 : kFreePatience;
  RUEDA_RETURN_IF_ERROR(arena->WaitUntilSafe(MonotonicNow() + patience));
  {
    MutexLock lock(mutex);
    if (Known().blocks.erase(pointer) == 0) {
      return absl::NotFoundError("rueda_mem_free: another thread has freed this pointer");
    }
  }
  return arena->Free(pointer);
}

}  // namespace

std::shared_ptr<Arena> ArenaFor(const std::string& context_name, Rank group_rank) {
  MutexLock lock(mutex);
  const auto it = Known().arenas.find({context_name, group_rank});
  if (it == Known().arenas.end()) return nullptr;
  std::shared_ptr<Arena> arena = it->second.lock();
  return arena != nullptr && arena->InUse() ? arena : nullptr;
}

}  // namespace rueda::capi

extern "C" {

rueda_status rueda_mem_alloc(rueda_context* context, size_t bytes, void** pointer) {
  return rueda::capi::Guard([&] { return rueda::capi::Allocate(context, bytes, pointer); });
}

rueda_status rueda_mem_free(void* pointer) {
  return rueda::capi::Guard([&] { return rueda::capi::Free(pointer); });
}

}  // extern "C"
