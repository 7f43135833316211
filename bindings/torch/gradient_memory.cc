#include "bindings/torch/gradient_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>

namespace rueda::libtorch {

// Blocks of a few sizes. Guarded by the allocator's mutex.
class GradientMemory::Pool {
 public:
  Pool(rueda_context* context, const std::vector<size_t>& sizes) : context_(context) {
    for (const size_t bytes : sizes) ++classes_[bytes].gradients;
  }
  ~Pool() { FreeIdle(); }

  // Null: not of a size that it serves, or no memory is left.
  void* Take(size_t bytes) {
    const auto it = classes_.find(bytes);
    if (retired_ || it == classes_.end() || getpid() != pid_) return nullptr;
    Class& blocks = it->second;
    void* block = nullptr;
    if (!blocks.idle.empty()) {
      block = blocks.idle.back();
      blocks.idle.pop_back();
    } else if (blocks.taken >= 2 * blocks.gradients ||
               rueda_mem_alloc(context_, bytes, &block) != RUEDA_OK) {
      return nullptr;  // some other tensors happen to have this size, or that was all there is
    }
    ++blocks.taken;
    return block;
  }
  void GiveBack(void* block, size_t bytes) {
    Class& blocks = classes_.at(bytes);
    --blocks.taken;
    blocks.idle.push_back(block);
    if (retired_) FreeIdle();
  }
  void Retire() {
    retired_ = true;
    FreeIdle();
  }

 private:
  struct Class {
    int gradients = 0;
    int taken = 0;
    std::vector<void*> idle;
  };

  // After a failure this waits for neighbours that may be writing; what they don't leave alone in
  // time is kept for good.
  void FreeIdle() {
    if (getpid() != pid_) return;  // a forked child shares the memory with its parent
    for (auto& [bytes, blocks] : classes_) {
      for (void* block : blocks.idle) (void)rueda_mem_free(block);
      blocks.idle.clear();
    }
  }

  rueda_context* const context_;
  const pid_t pid_ = getpid();
  std::map<size_t, Class> classes_;  // by size
  bool retired_ = false;
};

namespace {

// In front of torch's own for the CPU, from the first pool on and for good.
class ArenaAllocator : public c10::Allocator {
 public:
  static ArenaAllocator& Get() {
    static auto* allocator = new ArenaAllocator();  // tensors outlive every other object
    return *allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes >= least_.load(std::memory_order_relaxed)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const std::shared_ptr<GradientMemory::Pool>& pool : pools_) {
        if (void* block = pool->Take(bytes)) {
          blocks_[block] = {pool, bytes};
          return {block, block, &Delete, c10::Device(c10::DeviceType::CPU)};
        }
      }
    }
    return before_->allocate(bytes);
  }
  // Torch may free by it what either of the two has allocated.
  c10::DeleterFnPtr raw_deleter() const override {
    return before_->raw_deleter() == nullptr ? nullptr : &Delete;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  void Add(std::shared_ptr<GradientMemory::Pool> pool, size_t least) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pools_.push_back(std::move(pool));
    least_.store(std::min(least_.load(std::memory_order_relaxed), least),
                 std::memory_order_relaxed);
  }
  void Retire(const std::shared_ptr<GradientMemory::Pool>& pool) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase(pools_, pool);
    if (pools_.empty()) least_.store(SIZE_MAX, std::memory_order_relaxed);
    pool->Retire();
  }

 private:
  struct Block {
    std::shared_ptr<GradientMemory::Pool> pool;
    size_t bytes;
  };

  ArenaAllocator() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, /*priority=*/1); }

  static void Delete(void* pointer) {
    if (!Get().GiveBack(pointer)) Get().before_->raw_deleter()(pointer);
  }
  bool GiveBack(void* pointer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = blocks_.find(pointer);
    if (it == blocks_.end()) return false;
    it->second.pool->GiveBack(pointer, it->second.bytes);
    blocks_.erase(it);
    return true;
  }

  c10::Allocator* const before_;
  std::atomic<size_t> least_{SIZE_MAX};  // no pool serves less
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<std::shared_ptr<GradientMemory::Pool>> pools_;
  std::unordered_map<void*, Block> blocks_;  // that tensors use
};

}  // namespace

GradientMemory::GradientMemory(rueda_context* context, const std::vector<size_t>& sizes) {
  if (sizes.empty()) return;
  pool_ = std::make_shared<Pool>(context, sizes);
  ArenaAllocator::Get().Add(pool_, *std::min_element(sizes.begin(), sizes.end()));
}

GradientMemory::~GradientMemory() {
  if (pool_ != nullptr) ArenaAllocator::Get().Retire(pool_);
}

}  // namespace rueda::libtorch
