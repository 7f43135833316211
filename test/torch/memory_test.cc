// How much memory training takes: every byte that torch allocates for tensors on the CPU, and every
// byte of rueda_mem_alloc, where strategies keep shares and buckets.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <dlfcn.h>
#include <torch/torch.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "rueda/strategy.hpp"
#include "test/torch/ranks.h"
#include "test/torch/strategies.h"

namespace {

// Thread-safe.
class Meter {
 public:
  void Add(int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  // From now on.
  void Begin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    begin_ = peak_ = live_;
  }
  double peak() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<double>(peak_ - begin_);
  }

 private:
  std::mutex mutex_;
  int64_t live_ = 0, peak_ = 0, begin_ = 0;
};

Meter& TheMeter() {
  static Meter* const meter = new Meter();
  return *meter;
}

class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}
  c10::DataPtr allocate(size_t bytes) override {
    auto* const block = new Block{inner_->allocate(bytes), static_cast<int64_t>(bytes)};
    TheMeter().Add(block->bytes);
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
    TheMeter().Add(-block->bytes);
    delete block;
  }
  c10::Allocator* const inner_;
};

std::mutex arena_mutex;
std::unordered_map<void*, size_t> arena_blocks;

}  // namespace

// In place of the library's, which the adapter calls otherwise.
extern "C" __attribute__((visibility("default"))) rueda_status rueda_mem_alloc(
    rueda_context* context, size_t bytes, void** pointer) {
  static const auto real =
      reinterpret_cast<decltype(&rueda_mem_alloc)>(dlsym(RTLD_NEXT, "rueda_mem_alloc"));
  const rueda_status status = real(context, bytes, pointer);
  if (status != RUEDA_OK) return status;
  const std::lock_guard<std::mutex> lock(arena_mutex);
  arena_blocks[*pointer] = bytes;
  TheMeter().Add(static_cast<int64_t>(bytes));
  return status;
}

extern "C" __attribute__((visibility("default"))) rueda_status rueda_mem_free(void* pointer) {
  static const auto real =
      reinterpret_cast<decltype(&rueda_mem_free)>(dlsym(RTLD_NEXT, "rueda_mem_free"));
  {
    const std::lock_guard<std::mutex> lock(arena_mutex);
    const auto it = arena_blocks.find(pointer);
    if (it != arena_blocks.end()) {
      TheMeter().Add(-static_cast<int64_t>(it->second));
      arena_blocks.erase(it);
    }
  }
  return real(pointer);
}

namespace {

namespace hvd = rueda::libtorch;
using namespace rueda::test;

// 24 layers with 2048 x 2048 weights: 100 million parameters.
constexpr int kLayers = 24;
constexpr int64_t kWidth = 2048;

torch::nn::Sequential MakeNet() {
  torch::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) {
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth)));
    net->push_back(torch::nn::Tanh());
  }
  return net;
}

torch::Tensor LossOf(const torch::Tensor& output) {
  return output.square().mean();
}

double PeakOfOneProcess() {
  TheMeter().Begin();
  torch::nn::Sequential net = MakeNet();
  torch::optim::Adam adam(net->parameters(), 1e-4);
  LossOf(net->forward(torch::ones({2, kWidth}))).backward();
  adam.step();
  return TheMeter().peak();
}

double PeakOf(const std::string& name, const hvd::StrategyOptions& options, int steps) {
  TheMeter().Begin();
  torch::nn::Sequential net = MakeNet();
  torch::optim::Adam adam(net->parameters(), 1e-4);
  const auto strategy = hvd::make_strategy(name, net, adam, options);
  for (int step = 0; step < steps; ++step) {
    strategy->zero_grad();
    strategy->backward(LossOf(strategy->forward(torch::ones({2, kWidth}))));
    strategy->step();
  }
  return TheMeter().peak();
}

// Beginning with the whole model that each rank makes.
RANKS_TEST(Memory, FsdpTakesThreeFifthsOfOneProcessOnTwoRanks, 2) {
  torch::set_num_threads(1);
  c10::SetCPUAllocator(new CountingAllocator(c10::GetCPUAllocator()), /*priority=*/1);
  const double alone = PeakOfOneProcess();
  EXPECT_GT(alone, 4 * 4.0 * kLayers * kWidth * kWidth) << "parameters, gradients, two moments";
  const double fsdp = PeakOf("fsdp", {}, 2) / alone;
  // What the bound is for: parameters that are not shared out don't keep it.
  const double stage2 = PeakOf("sharded", {.zero_stage = 2}, 1) / alone;
  const double stage1 = PeakOf("sharded", {.zero_stage = 1}, 1) / alone;
  std::printf("of one process's %.0f MB: fsdp %.3f, stage 2 %.3f, stage 1 %.3f\n", alone / 1e6,
              fsdp, stage2, stage1);
  EXPECT_LE(fsdp, 0.6);
  EXPECT_GT(fsdp, 0.5) << "nothing was counted";
  EXPECT_GT(stage2, 0.6);
  EXPECT_LT(stage2, stage1);
}

}  // namespace
