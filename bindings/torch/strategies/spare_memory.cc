#include "bindings/torch/strategies/spare_memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

namespace rueda::libtorch {

at::Tensor ArenaZeros(rueda_context* context, int64_t elements, at::ScalarType type) {
  // Else what is gathered for an evaluation could not be written to in training.
  const c10::InferenceMode no_inference(false);
  const size_t bytes = static_cast<size_t>(elements) * at::elementSize(type);
  void* memory = nullptr;
  const auto options = at::TensorOptions().dtype(type).device(at::kCPU);
  if (rueda_mem_alloc(context, bytes, &memory) != RUEDA_OK) return at::zeros({elements}, options);
  return at::from_blob(
      memory, {elements}, [](void* block) { rueda_mem_free(block); }, options);
}

at::Tensor SpareMemory::Get(int64_t elements, at::ScalarType type) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto best = spare_.end();
    for (auto it = spare_.begin(); it != spare_.end(); ++it) {
      if (it->scalar_type() != type || it->numel() < elements || it->numel() > 2 * elements)
        continue;
      if (best == spare_.end() || it->numel() < best->numel()) best = it;
    }
    if (best != spare_.end()) {
      at::Tensor memory = std::move(*best);
      spare_.erase(best);
      return memory;
    }
    // What is not of use makes room for what is taken in its place.
    if (!spare_.empty()) spare_.erase(spare_.begin());
  }
  return ArenaZeros(context_, elements, type);
}

void SpareMemory::Put(at::Tensor memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (count_max_ == 0) return;
  if (spare_.size() == count_max_) spare_.erase(spare_.begin());
  spare_.push_back(std::move(memory));
}

}  // namespace rueda::libtorch
