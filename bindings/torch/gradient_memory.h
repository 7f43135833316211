// Lets large gradients, and the copies of them that are reduced, lie where neighbours can read and
// write them (rueda_mem_alloc). Autograd allocates a gradient like any other tensor; so this serves
// torch's CPU allocations of exactly the gradients' sizes, and leaves all others to the allocator
// that was there before.
//
// What is freed is kept for the next gradient of its size. Fresh memory costs a page fault every
// 4 KiB, which takes longer than the reduction.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "rueda/rueda.h"

namespace rueda::libtorch {

// Thread-safe.
class GradientMemory {
 public:
  // For gradients of these sizes, in bytes, one for each gradient.
  GradientMemory(rueda_context* context, const std::vector<size_t>& sizes);
  // Serves no more: what is freed from now on is not given to other tensors. What tensors still use
  // lives as long as they do.
  ~GradientMemory();
  GradientMemory(const GradientMemory&) = delete;
  GradientMemory& operator=(const GradientMemory&) = delete;

  // Gets the blocks that were missing since the last call, up to two for each gradient (some are
  // copied once by autograd). Only this call uses the context: tensors are allocated on any thread
  // at any time, also while the context is shut down. Returns whether it got any.
  bool Grow();
  // Whether a tensor whose memory begins there has it from such a pool.
  static bool Serves(const void* data);

  // Of one optimizer's gradients.
  class Pool;

 private:
  std::shared_ptr<Pool> pool_;
};

}  // namespace rueda::libtorch
