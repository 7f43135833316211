#include "bindings/torch/gradient_bucket.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "bindings/torch/fingerprint.h"
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
  entries_.push_back({.parameter = parameter,
                      .name = name,
                      .sizes = {like.sizes().begin(), like.sizes().end()},
                      .strides = {like.strides().begin(), like.strides().end()},
                      .begin = elements_,
                      .bytes = like.nbytes()});
  const int64_t unit = static_cast<int64_t>(kAlignment / at::elementSize(type_));
  elements_ += (parameter.numel() + unit - 1) / unit * unit;
}

// Not a view by autograd's rules, which zero_grad() could not detach.
at::Tensor GradientBucket::ViewOf(const at::Tensor& memory, const Entry& entry) const {
  at::Tensor view = at::empty({0}, memory.options());
  view.set_(memory.storage(), entry.begin, entry.sizes, entry.strides);
  // What changes all of it changes each of them.
  view.unsafeGetTensorImpl()->set_version_counter(memory.unsafeGetTensorImpl()->version_counter());
  return view;
}

// The same place in memory that has it, whatever has become of the view.
at::Tensor GradientBucket::Behind(const at::Tensor& memory, const Entry& entry) const {
  return memory.as_strided(entry.sizes, entry.strides, entry.begin);
}

void GradientBucket::Allocate() {
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  if (memory_.defined()) OrderHere();
  at::Tensor memory = at::zeros({elements_}, at::TensorOptions().dtype(type_).device(device_));
  std::vector<at::Tensor> views;
  for (const Entry& entry : entries_) views.push_back(ViewOf(memory, entry));
  // Nothing fails from here on.
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    std::swap(entry.view, views[i]);
    char* const before =
        std::exchange(entry.data, static_cast<char*>(memory.data_ptr()) +
                                      static_cast<size_t>(entry.begin) * at::elementSize(type_));
    if (!entry.taken) continue;
    if (device_.is_cpu()) {
      std::memcpy(entry.data, before, entry.bytes);
    } else {
      entry.view.copy_(Behind(memory_, entry));
    }
    at::Tensor& gradient = entry.parameter.mutable_grad();
    if (gradient.is_same(views[i])) gradient = entry.view;
  }
  memory_ = std::move(memory);
  OrderHere();
  move_ = false;
}

void GradientBucket::BeginStep() {
  if (begun_) return;
  // Somebody may hold tensors with the same storage.
  if (move_ || memory_.storage().use_count() > entries_.size() + 1) Allocate();
  begun_ = true;
}

void GradientBucket::EndStep() {
  begun_ = false;
  for (Entry& entry : entries_) entry.taken = false;
}

void GradientBucket::SetLeftOut(Entry* entry, bool left_out) {
  if (entry->left_out == left_out) return;
  entry->left_out = left_out;
  layout_.clear();
}

// Whoever gets hold of a gradient can give it other memory and other sizes.
bool GradientBucket::IsInPlace(const Entry& entry) const {
  const at::Tensor& view = entry.view;
  return view.storage().is_alias_of(memory_.storage()) && view.storage_offset() == entry.begin &&
         view.sizes() == c10::IntArrayRef(entry.sizes) &&
         view.strides() == c10::IntArrayRef(entry.strides);
}

void GradientBucket::Take(size_t i) {
  BeginStep();
  OrderHere();
  Entry& entry = entries_[i];
  at::Tensor& gradient = entry.parameter.mutable_grad();
  if (gradient.device() != device_ || gradient.scalar_type() != type_ ||
      gradient.sizes() != c10::IntArrayRef(entry.sizes)) {
    throw Error(RUEDA_FAILED_PRECONDITION,
                "'" + entry.name + "' is no longer on " + DeviceName(device_) +
                    ", or of the type and shape that it had " +
                    "when the DistributedOptimizer was made: make it again");
  }
  SetLeftOut(&entry, false);
  if (!IsInPlace(entry)) {
    const c10::InferenceMode no_inference(false);
    const at::NoGradGuard no_grad;
    entry.view = ViewOf(memory_, entry);
  }
  const size_t holders = gradient.is_same(entry.view) ? 2 : 1;
  if (!entry.taken && entry.view.use_count() > holders) Allocate();
  if (!gradient.is_same(entry.view)) {
    if (device_.is_cpu() && gradient.strides() == c10::IntArrayRef(entry.strides) &&
        !gradient.is_neg() && !gradient.is_conj()) {
      std::memcpy(entry.data, gradient.const_data_ptr(), entry.bytes);
    } else {
      const at::NoGradGuard no_grad;
      entry.view.copy_(gradient);
    }
    gradient = entry.view;
  }
  entry.taken = true;
}

void GradientBucket::LeaveOut(size_t i) {
  BeginStep();
  OrderHere();
  Entry& entry = entries_[i];
  SetLeftOut(&entry, true);
  entry.taken = false;
  if (device_.is_cpu()) {
    std::memset(entry.data, 0, entry.bytes);
  } else {
    Behind(memory_, entry).zero_();
  }
}

const std::string& GradientBucket::layout() {
  if (!layout_.empty()) return layout_;
  Fingerprint print;
  for (const Entry& entry : entries_) {
    print.Add(entry.name.data(), entry.name.size());
    for (const int64_t size : entry.sizes) print.Add(size);
    for (const int64_t stride : entry.strides) print.Add(stride);
    print.Add(entry.left_out ? -1 : entry.begin);
  }
  return layout_ = "layout " + std::to_string(print.value());
}

}  // namespace rueda::libtorch
