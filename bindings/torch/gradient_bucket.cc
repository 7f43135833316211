#include "bindings/torch/gradient_bucket.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>
#include <cstring>

#include "rueda/rueda.hpp"

namespace rueda::libtorch {
namespace {

// Where each gradient begins: a cache line's.
constexpr size_t kAlignment = 64;

}  // namespace

void GradientBucket::Add(const at::Tensor& parameter, const std::string& name) {
  // As the parameter lies, if it has no holes: that is what optimizers are fast with.
  const at::Tensor& like = parameter.is_non_overlapping_and_dense()
                               ? parameter
                               : at::empty(parameter.sizes(), parameter.options());
  entries_.push_back({.name = name,
                      .sizes = {like.sizes().begin(), like.sizes().end()},
                      .strides = {like.strides().begin(), like.strides().end()},
                      .begin = elements_,
                      .bytes = like.nbytes()});
  const int64_t unit = static_cast<int64_t>(kAlignment / at::elementSize(type_));
  elements_ += (parameter.numel() + unit - 1) / unit * unit;
}

// Not a view by autograd's rules, which zero_grad() could not detach.
at::Tensor GradientBucket::ViewOf(const at::Tensor& memory, const Entry& entry) const {
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  at::Tensor view = at::empty({0}, memory.options());
  view.set_(memory.storage(), entry.begin, entry.sizes, entry.strides);
  return view;
}

void GradientBucket::Allocate() {
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  if (memory_.defined()) OrderHere();
  memory_ = at::zeros({elements_}, at::TensorOptions().dtype(type_).device(device_));
  char* const data = static_cast<char*>(memory_.data_ptr());
  for (Entry& entry : entries_) {
    entry.data = data + static_cast<size_t>(entry.begin) * at::elementSize(type_);
  }
  OrderHere();
  move_ = false;
}

void GradientBucket::BeginStep() {
  if (begun_) return;
  // Gradients that were not set to none, or that somebody holds, have the same storage.
  if (move_ || memory_.storage().use_count() > 1) Allocate();
  begun_ = true;
}

void GradientBucket::EndStep() {
  begun_ = false;
  for (Entry& entry : entries_) entry.has = false;
}

void GradientBucket::SetLeftOut(Entry* entry, bool left_out) {
  entry->has = true;
  if (entry->left_out == left_out) return;
  entry->left_out = left_out;
  layout_.clear();
}

void GradientBucket::Take(size_t i, const at::Tensor& gradient) {
  BeginStep();
  OrderHere();
  Entry& entry = entries_[i];
  if (gradient.device() != device_ || gradient.scalar_type() != type_ ||
      gradient.sizes() != c10::IntArrayRef(entry.sizes)) {
    throw Error(RUEDA_FAILED_PRECONDITION,
                "'" + entry.name + "' is no longer on " + DeviceName(device_) +
                    ", or of the type and shape that it had " +
                    "when the DistributedOptimizer was made: make it again");
  }
  if (device_.is_cpu() && gradient.strides() == c10::IntArrayRef(entry.strides) &&
      !gradient.is_neg() && !gradient.is_conj()) {
    std::memcpy(entry.data, gradient.const_data_ptr(), entry.bytes);
  } else {
    const at::NoGradGuard no_grad;
    ViewOf(memory_, entry).copy_(gradient);
  }
  SetLeftOut(&entry, false);
}

void GradientBucket::LeaveOut(size_t i) {
  BeginStep();
  OrderHere();
  Entry& entry = entries_[i];
  SetLeftOut(&entry, true);
  if (device_.is_cpu()) {
    std::memset(entry.data, 0, entry.bytes);
  } else {
    ViewOf(memory_, entry).zero_();
  }
}

const std::string& GradientBucket::layout() {
  if (!layout_.empty()) return layout_;
  detail::Fingerprint print;
  for (const Entry& entry : entries_) {
    print.Add(entry.name.data(), entry.name.size());
    for (const int64_t size : entry.sizes) print.Add(size);
    for (const int64_t stride : entry.strides) print.Add(stride);
    print.Add(entry.left_out ? -1 : entry.begin);
  }
  return layout_ = "layout " + std::to_string(print.value());
}

}  // namespace rueda::libtorch
