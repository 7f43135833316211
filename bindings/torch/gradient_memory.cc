#include "bindings/torch/gradient_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace rueda::libtorch {
namespace {

// Whether others may still be writing to what was being reduced: the membership has failed, and a
// rank that has not noticed goes on for a while. After the context's end rueda_mem_free waits for
// that.
bool MayBeWritten(rueda_context* context) {
  rueda_error error = RUEDA_ERROR_INIT;
  return rueda_context_error(context, &error) == RUEDA_OK && error.code != RUEDA_OK;
}

}  // namespace

// Blocks of a few sizes. Guarded by the allocator's mutex.
class GradientMemory::Pool {
 public:
  Pool(rueda_context* context, const std::vector<size_t>& sizes) : context_(context) {
    for (const size_t bytes : sizes) ++classes_[bytes].gradients;
  }

  rueda_context* context() const { return context_; }

  // Null: not of a size that it serves, or none is left.
  void* Take(size_t bytes) {
    const auto it = classes_.find(bytes);
    if (it == classes_.end() || getpid() != pid_) return nullptr;
    Class& blocks = it->second;
    if (blocks.idle.empty()) {
      ++blocks.missed;
      return nullptr;
    }
    void* const block = blocks.idle.back();
    blocks.idle.pop_back();
    return block;
  }
  // Gives what has to be freed: the block, once the pool has retired.
  std::vector<void*> GiveBack(void* block, size_t bytes) {
    if (getpid() != pid_) return {};  // the parent's: a forked child has no such memory
    if (retired_) return {block};
    classes_.at(bytes).idle.push_back(block);
    return {};
  }
  std::vector<void*> Retire() {
    retired_ = true;
    std::vector<void*> idle;
    for (auto& [bytes, blocks] : classes_) {
      idle.insert(idle.end(), blocks.idle.begin(), blocks.idle.end());
      blocks.idle.clear();
    }
    return getpid() == pid_ ? idle : std::vector<void*>();
  }

  // By size: how many blocks to get. They count as there from now on.
  std::vector<std::pair<size_t, int>> TakeWishes() {
    std::vector<std::pair<size_t, int>> wishes;
    for (auto& [bytes, blocks] : classes_) {
      const int more = std::min(std::exchange(blocks.missed, 0), 2 * blocks.gradients - blocks.all);
      if (more <= 0) continue;
      blocks.all += more;
      wishes.emplace_back(bytes, more);
    }
    return wishes;
  }

 private:
  struct Class {
    int gradients = 0;
    int all = 0;     // blocks of this size
    int missed = 0;  // how often there was none
    std::vector<void*> idle;
  };

  rueda_context* const context_;
  const pid_t pid_ = getpid();
  std::map<size_t, Class> classes_;  // by size
  bool retired_ = false;
};

namespace {

using Pool = GradientMemory::Pool;

// In front of torch's own for the CPU, from the first pool on and for good.
class ArenaAllocator : public c10::Allocator {
 public:
  static ArenaAllocator& Get() {
    static auto* allocator = new ArenaAllocator();  // tensors outlive every other object
    return *allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes >= least_.load(std::memory_order_relaxed)) {
      // Ranks that are threads have a pool each.
      const rueda_context* const current = rueda_current_context();
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const std::shared_ptr<Pool>& pool : pools_) {
        if (current != nullptr && pool->context() != current) continue;
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

  // The context is in use, so whatever was in doubt after an earlier membership's failure is safe
  // now: a new membership waits for that.
  void Add(std::shared_ptr<Pool> pool, size_t least) {
    std::vector<void*> doubtful;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      pools_.push_back(std::move(pool));
      least_.store(std::min(least_.load(std::memory_order_relaxed), least),
                   std::memory_order_relaxed);
      doubtful.swap(doubtful_);
    }
    Free(doubtful, nullptr);
  }
  void Retire(const std::shared_ptr<Pool>& pool) {
    std::vector<void*> idle;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      std::erase(pools_, pool);
      if (pools_.empty()) least_.store(SIZE_MAX, std::memory_order_relaxed);
      idle = pool->Retire();
    }
    Free(idle, pool->context());
  }
  bool Serves(const void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return blocks_.contains(const_cast<void*>(data));
  }
  bool Grow(const std::shared_ptr<Pool>& pool) {
    bool grown = false;
    std::vector<std::pair<size_t, int>> wishes;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      wishes = pool->TakeWishes();
    }
    for (const auto& [bytes, count] : wishes) {
      for (int i = 0; i < count; ++i) {
        void* block = nullptr;
        if (rueda_mem_alloc(pool->context(), bytes, &block) != RUEDA_OK) break;  // there is no more
        const std::lock_guard<std::mutex> lock(mutex_);
        pool->GiveBack(block, bytes);
        grown = true;
      }
    }
    return grown;
  }

 private:
  struct Block {
    std::shared_ptr<Pool> pool;
    size_t bytes;
  };

  ArenaAllocator() : before_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(this, /*priority=*/1);
    // A child goes on with the mutex as it was.
    pthread_atfork([] { Get().mutex_.lock(); }, [] { Get().mutex_.unlock(); },
                   [] { Get().mutex_.unlock(); });
  }

  static void Delete(void* pointer) {
    if (!Get().GiveBack(pointer)) Get().before_->raw_deleter()(pointer);
  }
  bool GiveBack(void* pointer) {
    Block block;
    std::vector<void*> retired;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto it = blocks_.find(pointer);
      if (it == blocks_.end()) return false;
      block = std::move(it->second);
      blocks_.erase(it);
      retired = block.pool->GiveBack(pointer, block.bytes);
    }
    Free(retired, block.pool->context());
    return true;
  }

  // Without the mutex. What others may be writing to is kept until a next membership has begun.
  void Free(const std::vector<void*>& blocks, rueda_context* context) {
    if (blocks.empty()) return;
    size_t freed = 0;
    if (context == nullptr || !MayBeWritten(context)) {
      while (freed < blocks.size() && rueda_mem_free(blocks[freed]) == RUEDA_OK) ++freed;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    doubtful_.insert(doubtful_.end(), blocks.begin() + static_cast<std::ptrdiff_t>(freed),
                     blocks.end());
  }

  c10::Allocator* const before_;
  std::atomic<size_t> least_{SIZE_MAX};  // no pool serves less
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<std::shared_ptr<Pool>> pools_;
  std::unordered_map<void*, Block> blocks_;  // that tensors use
  std::vector<void*> doubtful_;              // nobody's, and others may be writing to them
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

bool GradientMemory::Serves(const void* data) {
  return ArenaAllocator::Get().Serves(data);
}

bool GradientMemory::Grow() {
  return pool_ != nullptr && ArenaAllocator::Get().Grow(pool_);
}

}  // namespace rueda::libtorch
