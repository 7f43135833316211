// PURE
#include "core/tensor/shape.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/limits.h"

namespace rueda {

absl::Status Shape::Validate(absl::Span<const int64_t> dims) {
  if (dims.size() > static_cast<size_t>(kDimsMax)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a tensor has ", dims.size(), " dimensions; at most ", kDimsMax, " are supported"));
  }
  int64_t elements = 1;
  for (const int64_t dim : dims) {
    if (dim < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("negative dimension in shape [", absl::StrJoin(dims, ", "), "]"));
    }
    if (dim == 0) continue;  // the product of the others must still be sane
    if (__builtin_mul_overflow(elements, dim, &elements)) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape [", absl::StrJoin(dims, ", "), "] has more than 2^63 elements"));
    }
  }
  // Bytes are counted in int64 too; the widest element has 16.
  if (elements > INT64_MAX / 16) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape [", absl::StrJoin(dims, ", "), "] has more than 2^63 bytes"));
  }
  return absl::OkStatus();
}

int64_t Shape::elements() const {
  int64_t elements = 1;
  for (const int64_t dim : dims_) elements *= dim;
  return elements;
}

Shape Shape::Row() const {
  return Shape(absl::MakeConstSpan(dims_).subspan(1));
}

std::string Shape::ToString() const {
  return absl::StrCat("[", absl::StrJoin(dims_, ", "), "]");
}

}  // namespace rueda
