#include "examples/compare/memory_meter.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <dlfcn.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "rueda/rueda.h"

namespace compare {
namespace {

struct Meter {
  std::mutex mutex;
  // Guarded by mutex.
  int64_t live = 0, peak = 0, begin = 0;
  std::unordered_map<void*, size_t> arena;  // blocks
};

Meter& TheMeter() {
  static Meter* const meter = new Meter();  // tensors are freed while the program ends
  return *meter;
}

void Add(int64_t bytes) {
  Meter& meter = TheMeter();
  const std::lock_guard<std::mutex> lock(meter.mutex);
  meter.live += bytes;
  meter.peak = std::max(meter.peak, meter.live);
}

class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}
  c10::DataPtr allocate(size_t bytes) override {
    auto* const block = new Block{inner_->allocate(bytes), static_cast<int64_t>(bytes)};
    Add(block->bytes);
    return {block->memory.get(), block, &Free, at::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    inner_->copy_data(to, from, bytes);
  }

 private:
  struct Block {
    c10::DataPtr memory;
    int64_t bytes;
  };
  static void Free(void* context) {
    auto* const block = static_cast<Block*>(context);
    Add(-block->bytes);
    delete block;
  }
  c10::Allocator* const inner_;
};

}  // namespace

void StartMemoryMeter() {
  c10::SetCPUAllocator(new CountingAllocator(c10::GetCPUAllocator()), /*priority=*/1);
}

void ResetPeak() {
  Meter& meter = TheMeter();
  const std::lock_guard<std::mutex> lock(meter.mutex);
  meter.begin = meter.peak = meter.live;
}

int64_t PeakBytes() {
  Meter& meter = TheMeter();
  const std::lock_guard<std::mutex> lock(meter.mutex);
  return meter.peak - meter.begin;
}

}  // namespace compare

extern "C" __attribute__((visibility("default"))) rueda_status rueda_mem_alloc(
    rueda_context* context, size_t bytes, void** pointer) {
  static const auto next =
      reinterpret_cast<decltype(&rueda_mem_alloc)>(dlsym(RTLD_NEXT, "rueda_mem_alloc"));
  const rueda_status status = next(context, bytes, pointer);
  if (status != RUEDA_OK) return status;
  compare::Add(static_cast<int64_t>(bytes));
  const std::lock_guard<std::mutex> lock(compare::TheMeter().mutex);
  compare::TheMeter().arena[*pointer] = bytes;
  return status;
}

extern "C" __attribute__((visibility("default"))) rueda_status rueda_mem_free(void* pointer) {
  static const auto next =
      reinterpret_cast<decltype(&rueda_mem_free)>(dlsym(RTLD_NEXT, "rueda_mem_free"));
  size_t bytes = 0;
  {
    const std::lock_guard<std::mutex> lock(compare::TheMeter().mutex);
    const auto block = compare::TheMeter().arena.extract(pointer);
    if (!block.empty()) bytes = block.mapped();
  }
  compare::Add(-static_cast<int64_t>(bytes));
  return next(pointer);
}
