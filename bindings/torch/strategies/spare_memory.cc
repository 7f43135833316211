#include "bindings/torch/strategies/spare_memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "rueda/rueda.hpp"

namespace rueda::libtorch {

at::Tensor ArenaZeros(rueda_context* context, int64_t elements, at::ScalarType type,
                      at::Device device) {
  // Else what is gathered for an evaluation could not be written to in training.
  const c10::InferenceMode no_inference(false);
  const size_t bytes = static_cast<size_t>(elements) * at::elementSize(type);
  void* memory = nullptr;
  const auto options = at::TensorOptions().dtype(type).device(device);
  if (!device.is_cpu() || rueda_mem_alloc(context, bytes, &memory) != RUEDA_OK) {
    return at::zeros({elements}, options);
  }
  return at::from_blob(
      memory, {elements}, [](void* block) { detail::FreeShared(block); }, options);
}

at::Tensor SpareMemory::Get(int64_t elements, at::ScalarType type, at::Device device) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto best = spare_.end();
    for (auto it = spare_.begin(); it != spare_.end(); ++it) {
      const at::Tensor& memory = it->memory;
      if (memory.scalar_type() != type || memory.device() != device || memory.numel() < elements ||
          memory.numel() > 2 * elements) {
        continue;
      }
      if (best == spare_.end() || memory.numel() < best->memory.numel()) best = it;
    }
    if (best != spare_.end()) {
      const Spare spare = std::move(*best);
      spare_.erase(best);
      const std::optional<c10::Stream> now = CurrentStream(device);
      if (now != spare.stream) {
        Order(*now, *spare.stream);
        KeepFor(spare.memory, *now);
      }
      return spare.memory;
    }
    // What is not of use makes room for what is taken in its place.
    if (!spare_.empty()) spare_.erase(spare_.begin());
  }
  return ArenaZeros(context_, elements, type, device);
}

void SpareMemory::Put(at::Tensor memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (count_max_ == 0) return;
  if (spare_.size() == count_max_) spare_.erase(spare_.begin());
  const std::optional<c10::Stream> stream = CurrentStream(memory.device());
  spare_.push_back({std::move(memory), stream});
}

}  // namespace rueda::libtorch
