// Small gradients that are reduced together. They are copied one behind another into one tensor's
// memory, while they are in the cache, so that a step needs one operation for all of them; when
// they have been reduced, parameters' gradients are views of it (what DistributedDataParallel calls
// gradient_as_bucket_view). Until then whoever writes to a gradient does not write to what is
// reduced.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <string>
#include <vector>

#include "bindings/torch/device.h"

namespace rueda::libtorch {

// Not thread-safe.
class GradientBucket {
 public:
  // For parameters of this type, on this device.
  GradientBucket(at::ScalarType type, at::Device device) : type_(type), device_(device) {}

  // Before Allocate. `name` is for errors and the layout.
  void Add(const at::Tensor& parameter, const std::string& name);
  // How much memory that takes.
  size_t bytes() const { return static_cast<size_t>(elements_) * at::elementSize(type_); }
  // Gets memory for all gradients, of zeros. What was there before lives as long as tensors use it.
  void Allocate();

  // Copies parameter i's gradient. Between steps: if somebody still uses one of an earlier step,
  // all of them get other memory. Throws when it isn't what the parameter was when it was added;
  // then it has to be left out.
  void Take(size_t i, const at::Tensor& gradient);
  // Zeros take its place: for sparse ones.
  void LeaveOut(size_t i);
  // Whether this step has done one or the other.
  bool Has(size_t i) const { return entries_[i].has; }
  bool IsLeftOut(size_t i) const { return entries_[i].left_out; }
  // What has become of parameter i's gradient, where it lies: a tensor with no history.
  at::Tensor View(size_t i) const { return ViewOf(memory_, entries_[i]); }
  // From now on gradients are those of the next step, and who holds this one's keeps them.
  void EndStep();
  // There may be better memory: the next step looks.
  void Move() { move_ = true; }
  // The current stream comes behind all that was done to the memory, and what is done to it from
  // now on behind the current stream.
  void OrderHere() { chain_.Use(memory_); }

  // All of it, in one dimension.
  const at::Tensor& memory() const { return memory_; }
  // Short, and different if any name, shape, stride or place differs, or which gradients are left
  // out.
  const std::string& layout();
  at::Device device() const { return device_; }

 private:
  struct Entry {
    std::string name;
    c10::SmallVector<int64_t, 4> sizes;
    c10::SmallVector<int64_t, 4> strides;
    int64_t begin;  // element of the memory
    size_t bytes;
    char* data = nullptr;  // on the CPU: where it begins
    bool has = false;      // in this step
    bool left_out = false;
  };
  void BeginStep();
  at::Tensor ViewOf(const at::Tensor& memory, const Entry& entry) const;
  void SetLeftOut(Entry* entry, bool left_out);

  const at::ScalarType type_;
  const at::Device device_;
  std::vector<Entry> entries_;
  int64_t elements_ = 0;
  at::Tensor memory_;
  StreamChain chain_;   // of those that use the memory
  bool begun_ = false;  // something of this step is in the memory
  bool move_ = false;   // to other memory, with the next step
  std::string layout_;  // empty: to be computed
};

}  // namespace rueda::libtorch
