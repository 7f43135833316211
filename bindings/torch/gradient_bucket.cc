#include "bindings/torch/gradient_bucket.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "rueda/rueda.hpp"

namespace rueda::libtorch {
namespace {

// Where each gradient begins: a cache line's.
constexpr size_t kAlignment = 64;

// FNV-1a (http://www.isthe.com/chongo/tech/comp/fnv/): the same on all ranks.
class Digest {
 public:
  void Add(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      value_ = (value_ ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
    }
  }
  void Add(int64_t number) { Add(&number, sizeof number); }
  std::string text() const {
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(value_));
    return hex;
  }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace

void GradientBucket::Add(const at::Tensor& parameter, const std::string& name) {
  entries_.push_back(
      {parameter, name, {parameter.sizes().begin(), parameter.sizes().end()}, elements_});
  const int64_t unit = static_cast<int64_t>(kAlignment / at::elementSize(type_));
  elements_ += (parameter.numel() + unit - 1) / unit * unit;
}

void GradientBucket::Allocate() {
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(type_).device(at::kCPU);
  memory_ = at::zeros({elements_}, options);
  for (Entry& entry : entries_) {
    // Not a view by autograd's rules, which zero_grad() could not detach.
    entry.view = at::empty({0}, options);
    entry.view.set_(memory_.storage(), entry.begin, entry.sizes);
    entry.data = static_cast<char*>(entry.view.mutable_data_ptr());
  }
}

void GradientBucket::BeginStep() {
  if (begun_) return;
  begun_ = true;
  // Others may hold a view, or a tensor with the same storage.
  const bool shared = memory_.storage().use_count() > entries_.size() + 1 ||
                      std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
                        const bool is_gradient = entry.parameter.grad().is_same(entry.view);
                        return entry.view.use_count() > (is_gradient ? 2u : 1u);
                      });
  if (shared) Allocate();
}

void GradientBucket::SetLeftOut(Entry* entry, bool left_out) {
  if (entry->left_out == left_out) return;
  entry->left_out = left_out;
  layout_.clear();
}

void GradientBucket::Take(size_t i) {
  BeginStep();
  Entry& entry = entries_[i];
  SetLeftOut(&entry, false);
  at::Tensor& gradient = entry.parameter.mutable_grad();
  if (gradient.is_same(entry.view)) return;
  if (!gradient.is_cpu() || gradient.scalar_type() != type_ ||
      gradient.sizes() != c10::IntArrayRef(entry.sizes)) {
    throw Error(RUEDA_FAILED_PRECONDITION,
                "'" + entry.name +
                    "' is no longer on the CPU, or of the type and shape that it had " +
                    "when the DistributedOptimizer was made: make it again");
  }
  if (gradient.is_contiguous() && !gradient.is_neg() && !gradient.is_conj()) {
    std::memcpy(entry.data, gradient.const_data_ptr(), gradient.nbytes());
  } else {
    const at::NoGradGuard no_grad;
    entry.view.copy_(gradient);
  }
  gradient = entry.view;
}

void GradientBucket::LeaveOut(size_t i) {
  BeginStep();
  Entry& entry = entries_[i];
  SetLeftOut(&entry, true);
  std::memset(entry.data, 0, entry.view.nbytes());
}

const std::string& GradientBucket::layout() {
  if (!layout_.empty()) return layout_;
  Digest digest;
  for (const Entry& entry : entries_) {
    digest.Add(entry.name.data(), entry.name.size());
    for (const int64_t size : entry.sizes) digest.Add(size);
    digest.Add(entry.left_out ? -1 : entry.begin);
  }
  return layout_ = "layout " + digest.text();
}

}  // namespace rueda::libtorch
