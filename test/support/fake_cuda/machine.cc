// FAKE: see machine.h.
#include "test/support/fake_cuda/machine.h"

#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"

// The table of memory is looked at by every task. For the thread sanitizer its lock must not order
// one stream's task behind another's, or it would miss what the library forgot to order.
#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace rueda::fake_cuda {
namespace {

class Unseen {
 public:
#if defined(__SANITIZE_THREAD__)
  Unseen() {
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unseen() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  }
#else
  Unseen() {}
#endif
};

constexpr int64_t kDeviceBytes = int64_t{16} << 30;
constexpr size_t kKeptBytes = size_t{64} << 20;  // of released memory
constexpr size_t kPage = 4096;

struct Block {
  size_t bytes;
  int32_t device;
  bool live;
};

struct Memory {
  Mutex mutex;
  std::map<uintptr_t, Block> blocks ABSL_GUARDED_BY(mutex);  // by their beginning
  std::deque<uintptr_t> released ABSL_GUARDED_BY(mutex);
  size_t released_bytes ABSL_GUARDED_BY(mutex) = 0;
  int64_t live_bytes ABSL_GUARDED_BY(mutex) = 0;
};

struct Wanted {
  std::string function;
  int32_t device;
  int32_t skip;
  Outcome outcome;
};

struct Machine {
  std::atomic<bool> failed[FAKE_CUDA_DEVICES_MAX] = {};
  Memory memory;

  Mutex mutex;
  std::string causes[FAKE_CUDA_DEVICES_MAX] ABSL_GUARDED_BY(mutex);
  std::vector<Wanted> wanted ABSL_GUARDED_BY(mutex);
  bool logging ABSL_GUARDED_BY(mutex) = false;
  std::vector<fake_cuda_call> log ABSL_GUARDED_BY(mutex);
};

Machine& machine() {
  return PerProcess<Machine>();
}

size_t WholePages(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

void DropOldest(Memory& memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(memory.mutex) {
  while (memory.released_bytes > kKeptBytes) {
    const auto block = memory.blocks.find(memory.released.front());
    memory.released.pop_front();
    memory.released_bytes -= WholePages(block->second.bytes);
    munmap(reinterpret_cast<void*>(block->first), WholePages(block->second.bytes));
    memory.blocks.erase(block);
  }
}

// The block that holds this address, released or not; null: none.
const std::pair<const uintptr_t, Block>* Find(Memory& memory, const void* pointer)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(memory.mutex) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto next = memory.blocks.upper_bound(address);
  if (next == memory.blocks.begin()) return nullptr;
  --next;
  return address - next->first < next->second.bytes ? &*next : nullptr;
}

std::string Hex(const void* pointer) {
  return absl::StrCat("0x", absl::Hex(reinterpret_cast<uintptr_t>(pointer)));
}

}  // namespace

Outcome Internal(std::string words) {
  return {absl::StatusCode::kInternal, std::move(words)};
}

Outcome InvalidArgument(std::string words) {
  return {absl::StatusCode::kInvalidArgument, std::move(words)};
}

int32_t Report(const Outcome& outcome, char* message) {
  if (!outcome.ok() && message != nullptr) {
    const size_t length = std::min<size_t>(outcome.words.size(), RUEDA_CUDA_MESSAGE_BYTES - 1);
    memcpy(message, outcome.words.data(), length);
    message[length] = 0;
  }
  return static_cast<int32_t>(outcome.code);
}

// ---- devices ----

int32_t CountDevices() {
  const char* const words = getenv("FAKE_CUDA_DEVICES");
  return words == nullptr ? 2 : std::clamp(atoi(words), 0, FAKE_CUDA_DEVICES_MAX);
}

Outcome CheckDevice(int32_t device) {
  if (device < 0 || device >= CountDevices()) {
    return InvalidArgument(absl::StrCat("there is no device ", device));
  }
  if (!machine().failed[device].load()) return {};
  MutexLock lock(machine().mutex);
  return Internal(machine().causes[device]);
}

void FailDevice(int32_t device, const std::string& words) {
  MutexLock lock(machine().mutex);
  if (machine().failed[device].load()) return;
  machine().causes[device] = words;
  machine().failed[device].store(true);
}

bool HasFailed(int32_t device) {
  return machine().failed[device].load(std::memory_order_relaxed);
}

// ---- memory ----

Outcome Allocate(int32_t device, size_t bytes, void** result) {
  *result = nullptr;
  if (bytes == 0) return {};  // as cudaMalloc
  const Outcome exhausted = {absl::StatusCode::kResourceExhausted,
                             absl::StrCat("out of memory: ", bytes, " bytes")};
  if (bytes > static_cast<size_t>(kDeviceBytes)) return exhausted;
  void* const fresh = mmap(nullptr, WholePages(bytes), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (fresh == MAP_FAILED) return exhausted;
  memset(fresh, 0xFF, bytes);
  const Unseen unseen;
  Memory& memory = machine().memory;
  MutexLock lock(memory.mutex);
  memory.blocks[reinterpret_cast<uintptr_t>(fresh)] = {bytes, device, true};
  memory.live_bytes += static_cast<int64_t>(bytes);
  *result = fresh;
  return {};
}

void Release(int32_t device, void* pointer) {
  if (pointer == nullptr) return;
  size_t bytes = 0;
  {
    const Unseen unseen;
    Memory& memory = machine().memory;
    MutexLock lock(memory.mutex);
    const auto block = memory.blocks.find(reinterpret_cast<uintptr_t>(pointer));
    if (block != memory.blocks.end() && block->second.live && block->second.device == device) {
      block->second.live = false;
      bytes = block->second.bytes;
      memory.live_bytes -= static_cast<int64_t>(bytes);
    }
  }
  if (bytes == 0) {
    return FailDevice(device, absl::StrCat("released what was not allocated: ", Hex(pointer)));
  }
  memset(pointer, 0xFD, bytes);
  const Unseen unseen;
  Memory& memory = machine().memory;
  MutexLock lock(memory.mutex);
  memory.released.push_back(reinterpret_cast<uintptr_t>(pointer));
  memory.released_bytes += WholePages(bytes);
  DropOldest(memory);
}

int32_t Locate(const void* pointer) {
  const Unseen unseen;
  Memory& memory = machine().memory;
  MutexLock lock(memory.mutex);
  const auto* const block = Find(memory, pointer);
  return block != nullptr && block->second.live ? block->second.device : -1;
}

int64_t LiveBytes() {
  const Unseen unseen;
  MutexLock lock(machine().memory.mutex);
  return machine().memory.live_bytes;
}

Outcome CheckRange(int32_t device, const void* pointer, size_t bytes, size_t alignment) {
  if (bytes == 0) return {};
  if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) {
    return Internal(absl::StrCat("a misaligned address: ", Hex(pointer)));
  }
  const Unseen unseen;
  Memory& memory = machine().memory;
  MutexLock lock(memory.mutex);
  const auto* const block = Find(memory, pointer);
  const char* why = nullptr;
  if (block == nullptr) {
    why = "this is no device memory";
  } else if (!block->second.live) {
    why = "this was released";
  } else if (block->second.device != device) {
    why = "this is another device's";
  } else if (bytes > block->second.bytes - (reinterpret_cast<uintptr_t>(pointer) - block->first)) {
    why = "it goes beyond the end of what was allocated";
  }
  if (why == nullptr) return {};
  return Internal(absl::StrCat("an illegal memory access was encountered: ", bytes, " bytes at ",
                               Hex(pointer), " by device ", device, ": ", why));
}

// ---- what a test wants ----

void FailNext(const std::string& function, int32_t device, int32_t skip, const Outcome& outcome) {
  MutexLock lock(machine().mutex);
  machine().wanted.push_back({function, device, skip, outcome});
}

Outcome TakeFailure(const std::string& function, int32_t device) {
  MutexLock lock(machine().mutex);
  std::vector<Wanted>& wanted = machine().wanted;
  for (auto it = wanted.begin(); it != wanted.end(); ++it) {
    if (it->function != function || (it->device != -1 && it->device != device)) continue;
    if (it->skip-- > 0) return {};
    Outcome outcome = std::move(it->outcome);
    wanted.erase(it);
    return outcome;
  }
  return {};
}

void ResetMachine() {
  MutexLock lock(machine().mutex);
  for (std::atomic<bool>& failed : machine().failed) failed.store(false);
  machine().wanted.clear();
  machine().logging = false;
  machine().log.clear();
}

void StartLog() {
  MutexLock lock(machine().mutex);
  machine().log.clear();
  machine().logging = true;
}

void Log(const fake_cuda_call& call) {
  MutexLock lock(machine().mutex);
  if (machine().logging) machine().log.push_back(call);
}

size_t LogSize() {
  MutexLock lock(machine().mutex);
  return machine().log.size();
}

fake_cuda_call LogEntry(size_t index) {
  MutexLock lock(machine().mutex);
  return machine().log.at(index);
}

}  // namespace rueda::fake_cuda
