// What the backend does to tensors before the library has them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <string>
#include <vector>

namespace rueda::libtorch {

// Of an operation without one.
inline const std::string& NoName() {
  static const std::string none;
  return none;
}

// As the library moves it.
inline bool IsPlain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj();
}

inline at::Tensor ContiguousLike(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
}

inline at::Tensor Flat(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().reshape(-1);
}

// Torch's calls have lists, of which one element is used.
template <typename T>
const T& OnlyOne(const std::vector<T>& given, const char* what) {
  TORCH_CHECK_VALUE(given.size() == 1, what, ": one tensor, or list of them, was expected, not ",
                    given.size());
  return given.front();
}

}  // namespace rueda::libtorch
