// rueda_mem_alloc: memory in arenas, which outlive contexts. rueda_mem_open, rueda_mem_kept: blocks
// of neighbours' arenas, and of those who are gone, which outlive these.
#include <pthread.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "bindings/c/arguments.h"
#include "bindings/c/context.h"
#include "bindings/c/elastic.h"
#include "bindings/c/guard.h"
#include "controller/lanes/callbacks.h"
#include "core/base/limits.h"
#include "core/base/memory_limits.h"
#include "core/base/round_up.h"

namespace rueda::capi {
namespace {

constexpr Nanos kFreePatience = 10 * kSecond;

Mutex mutex;
struct Memory {
  std::map<std::pair<std::string, Rank>, std::weak_ptr<Arena>>
      arenas;                                             // the latest of each context
  std::map<void*, std::shared_ptr<Arena>> blocks;         // keep their arenas alive
  std::map<void*, std::shared_ptr<SharedMemory>> opened;  // of neighbours
  std::set<const void*> told;                             // blocks that neighbours may have opened
  // Of a forked child's parent.
  std::map<void*, std::shared_ptr<void>> inherited;
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
  Memory& known = Known();
  known.inherited.insert(known.blocks.begin(), known.blocks.end());
  known.inherited.insert(known.opened.begin(), known.opened.end());
  known.blocks.clear();
  known.opened.clear();
  known.arenas.clear();
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
  decltype(Memory::opened)::node_type closed;  // unmapped behind the lock
  {
    MutexLock lock(mutex);
    if (Known().inherited.contains(pointer)) return absl::OkStatus();
    if (const auto it = Known().opened.find(pointer); it != Known().opened.end()) {
      closed = Known().opened.extract(it);
      return absl::OkStatus();
    }
    const auto it = Known().blocks.find(pointer);
    if (it == Known().blocks.end()) {
      return absl::NotFoundError(
          "rueda_mem_free: this pointer is not from rueda_mem_alloc, rueda_mem_open or "
          "rueda_mem_kept");
    }
    arena = it->second;
  }
  const Nanos patience = InTurn() ? 0 : kFreePatience;
  RUEDA_RETURN_IF_ERROR(arena->WaitUntilSafe(MonotonicNow() + patience));
  bool was_told = false;
  {
    MutexLock lock(mutex);
    if (Known().blocks.erase(pointer) == 0) {
      return absl::NotFoundError("rueda_mem_free: another thread has freed this pointer");
    }
    was_told = Known().told.erase(pointer) > 0;
  }
  return arena->Free(pointer, was_told);
}

absl::Status Neighbours(const rueda_context* context, int32_t* ranks, size_t capacity,
                        size_t* count) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  const World& world = runtime->world();
  std::vector<Rank> others = world.topology.host_of(world.rank).ranks;
  std::erase(others, world.rank);
  return WriteRanks("rueda_neighbor_ranks", others, ranks, capacity, count);
}

absl::Status Offset(const void* pointer, uint64_t* offset) {
  if (offset == nullptr) return absl::InvalidArgumentError("rueda_mem_offset: `offset` is null");
  MutexLock lock(mutex);
  const auto it = Known().blocks.find(const_cast<void*>(pointer));
  if (it == Known().blocks.end()) {
    return absl::NotFoundError("rueda_mem_offset: this pointer is not from rueda_mem_alloc");
  }
  *offset = static_cast<uint64_t>(it->second->OffsetOf(pointer, 0));
  Known().told.insert(pointer);
  return absl::OkStatus();
}

// Those that a block lies in.
struct Pages {
  size_t offset;
  size_t bytes;
  size_t within;  // where the block begins in them
};
Pages PagesOf(size_t offset, size_t bytes) {
  const size_t within = offset % PageBytes();
  return {offset - within, RoundUp(std::max<size_t>(within + bytes, 1), PageBytes()), within};
}

// The block, until rueda_mem_free.
const void* Opened(std::shared_ptr<SharedMemory> block, const Pages& pages) {
  void* const at = block->data() + pages.within;
  MutexLock lock(mutex);
  Known().opened[at] = std::move(block);
  return at;
}

absl::Status Open(rueda_context* context, Rank rank, uint64_t offset, size_t bytes,
                  const void** pointer) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  if (pointer == nullptr) return absl::InvalidArgumentError("rueda_mem_open: `pointer` is null");
  *pointer = nullptr;
  const World& world = runtime->world();
  const int local = rank < 0 || rank >= world.size() ? -1 : world.LocalIndex(rank);
  if (local < 0 || rank == world.rank) {
    return absl::NotFoundError(absl::StrCat("rueda_mem_open: rank ", world.rank,
                                            " can't open memory of rank ", rank,
                                            ": it is not another rank of this host"));
  }
  const std::shared_ptr<SharedMemory>& memory =
      world.neighbourhood.arenas[static_cast<size_t>(local)];
  if (offset >= memory->bytes() || bytes > memory->bytes() - offset) {
    return absl::InvalidArgumentError(absl::StrCat("rueda_mem_open: ", bytes, " bytes at ", offset,
                                                   ": rank ", rank, " has ", memory->bytes(),
                                                   " bytes for such memory"));
  }
  // Of the block alone: neighbours' whole arenas would fill the address space in time.
  const Pages pages = PagesOf(offset, bytes);
  RUEDA_ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> block,
                         memory->MapAgain(pages.offset, pages.bytes));
  *pointer = Opened(std::move(block), pages);
  return absl::OkStatus();
}

// Of a context's own.
absl::StatusOr<std::string> KeptName(const char* function, const rueda_context& context,
                                     const char* name) {
  if (name == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(function, ": `name` is null"));
  }
  const RuntimeOptions& options = context.options;
  std::string whole = name;
  if (!options.context.empty()) {
    whole = absl::StrCat(options.context, "/", options.group_rank, "/", name);
  }
  if (whole.size() <= kKeptNameBytesMax) return whole;
  return absl::InvalidArgumentError(absl::StrCat(function, ": a name of ", whole.size(), " bytes; ",
                                                 kKeptNameBytesMax,
                                                 " are the most, its context's included"));
}

absl::Status Keep(rueda_context* context, const void* pointer, size_t bytes, const char* name,
                  uint64_t number, uint64_t oldest, uint64_t checksum) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  RUEDA_ASSIGN_OR_RETURN(std::string whole, KeptName("rueda_mem_keep", *context, name));
  std::shared_ptr<Arena> arena;
  {
    MutexLock lock(mutex);
    const auto it = Known().blocks.find(const_cast<void*>(pointer));
    if (it == Known().blocks.end()) {
      return absl::NotFoundError("rueda_mem_keep: this pointer is not from rueda_mem_alloc");
    }
    arena = it->second;
    Known().told.insert(pointer);
  }
  const int64_t offset = arena->OffsetOf(pointer, bytes);
  if (offset < 0) return absl::InvalidArgumentError("rueda_mem_keep: `bytes` is too much");
  const absl::StatusOr<AuthorityLink*> link = LinkOf(runtime->config());
  if (!link.ok()) return absl::OkStatus();  // nobody comes later
  wire::KeptPart part;
  part.set_name(std::move(whole));
  part.set_number(number);
  part.set_membership(runtime->world().membership);
  part.set_rank(runtime->rank());
  part.set_offset(static_cast<uint64_t>(offset));
  part.set_bytes(bytes);
  part.set_checksum(checksum);
  part.set_oldest(oldest);
  (*link)->Keep(std::move(part), arena->memory()->fd());
  return absl::OkStatus();
}

absl::Status Kept(rueda_context* context, const char* name, uint64_t number, uint64_t membership,
                  Rank rank, const void** pointer, size_t* bytes, uint64_t* checksum) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  RUEDA_ASSIGN_OR_RETURN(std::string whole, KeptName("rueda_mem_kept", *context, name));
  if (pointer == nullptr || bytes == nullptr || checksum == nullptr) {
    return absl::InvalidArgumentError(
        "rueda_mem_kept: `pointer`, `bytes` and `checksum` must not be null");
  }
  *pointer = nullptr;
  const absl::StatusOr<AuthorityLink*> link = LinkOf(runtime->config());
  if (!link.ok()) return absl::NotFoundError("rueda_mem_kept: this job is not elastic");
  wire::KeptPart wanted;
  wanted.set_name(std::move(whole));
  wanted.set_number(number);
  wanted.set_membership(membership);
  wanted.set_rank(rank);
  RUEDA_ASSIGN_OR_RETURN(const AuthorityLink::Kept kept, (*link)->Fetch(wanted));
  const uint64_t bytes_max = kNoLimit / 4;
  if (kept.part.offset() > bytes_max || kept.part.bytes() > bytes_max) {
    return absl::InvalidArgumentError("rueda_mem_kept: it has been told to be where no memory is");
  }
  const Pages pages = PagesOf(kept.part.offset(), kept.part.bytes());
  RUEDA_ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> block,
                         SharedMemory::MapRange(kept.memory, pages.offset, pages.bytes));
  *bytes = kept.part.bytes();
  *checksum = kept.part.checksum();
  *pointer = Opened(std::move(block), pages);
  return absl::OkStatus();
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

rueda_status rueda_neighbor_ranks(const rueda_context* context, int32_t* ranks, size_t capacity,
                                  size_t* count) {
  return rueda::capi::Guard(
      [&] { return rueda::capi::Neighbours(context, ranks, capacity, count); });
}

rueda_status rueda_mem_offset(const void* pointer, uint64_t* offset) {
  return rueda::capi::Guard([&] { return rueda::capi::Offset(pointer, offset); });
}

rueda_status rueda_mem_open(rueda_context* context, int32_t rank, uint64_t offset, size_t bytes,
                            const void** pointer) {
  return rueda::capi::Guard(
      [&] { return rueda::capi::Open(context, rank, offset, bytes, pointer); });
}

rueda_status rueda_mem_keep(rueda_context* context, const void* pointer, size_t bytes,
                            const char* name, uint64_t number, uint64_t oldest, uint64_t checksum) {
  return rueda::capi::Guard(
      [&] { return rueda::capi::Keep(context, pointer, bytes, name, number, oldest, checksum); });
}

rueda_status rueda_mem_kept(rueda_context* context, const char* name, uint64_t number,
                            uint64_t membership, int32_t rank, const void** pointer, size_t* bytes,
                            uint64_t* checksum) {
  return rueda::capi::Guard([&] {
    return rueda::capi::Kept(context, name, number, membership, rank, pointer, bytes, checksum);
  });
}

}  // extern "C"
