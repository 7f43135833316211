// The dimensions of a tensor. A value. PURE
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "core/base/status.h"

namespace rueda {

class Shape {
 public:
  Shape() = default;
  explicit Shape(absl::Span<const int64_t> dims) : dims_(dims.begin(), dims.end()) {}
  Shape(std::initializer_list<int64_t> dims) : dims_(dims) {}

  // INVALID_ARGUMENT: more than kDimsMax dimensions, a negative one, or more elements than int64
  // holds.
  static absl::Status Validate(absl::Span<const int64_t> dims);

  int rank() const { return static_cast<int>(dims_.size()); }
  int64_t dim(int i) const { return dims_[i]; }
  absl::Span<const int64_t> dims() const { return dims_; }
  // Product of the dimensions; 1 for a scalar. The shape is valid.
  int64_t elements() const;
  // The shape of one row: without its first dimension, which it must have.
  Shape Row() const;
  // "[3, 4]"; "[]" for a scalar.
  std::string ToString() const;

  friend bool operator==(const Shape&, const Shape&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Shape& shape) {
    return H::combine(std::move(h), shape.dims_);
  }

 private:
  absl::InlinedVector<int64_t, 4> dims_;
};

}  // namespace rueda
