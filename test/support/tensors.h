// Short forms for tests: tensors over vectors, and blocking calls that return the status.
#pragma once

#include <gtest/gtest.h>

#include <complex>
#include <string>
#include <vector>

#include "rueda/rueda.h"

namespace rueda::testing {

template <typename T>
inline constexpr rueda_dtype kDTypeOf = {0, 0, 0};
template <>
inline constexpr rueda_dtype kDTypeOf<float> = {2, 32, 1};
template <>
inline constexpr rueda_dtype kDTypeOf<double> = {2, 64, 1};
template <>
inline constexpr rueda_dtype kDTypeOf<int32_t> = {0, 32, 1};
template <>
inline constexpr rueda_dtype kDTypeOf<int64_t> = {0, 64, 1};
template <>
inline constexpr rueda_dtype kDTypeOf<int8_t> = {0, 8, 1};
template <>
inline constexpr rueda_dtype kDTypeOf<uint8_t> = {1, 8, 1};
template <>
inline constexpr rueda_dtype kDTypeOf<int16_t> = {0, 16, 1};
template <>
inline constexpr rueda_dtype kDTypeOf<uint16_t> = {1, 16, 1};
template <>
inline constexpr rueda_dtype kDTypeOf<uint32_t> = {1, 32, 1};
template <>
inline constexpr rueda_dtype kDTypeOf<uint64_t> = {1, 64, 1};
template <>
inline constexpr rueda_dtype kDTypeOf<std::complex<float>> = {5, 64, 1};
template <>
inline constexpr rueda_dtype kDTypeOf<std::complex<double>> = {5, 128, 1};

// A rueda_tensor with its shape; the data is somebody else's.
class TensorOf {
 public:
  template <typename T>
  explicit TensorOf(std::vector<T>& data)
      : TensorOf(data.data(), {static_cast<int64_t>(data.size())}, kDTypeOf<T>) {}
  TensorOf(void* data, std::vector<int64_t> shape, rueda_dtype dtype) : shape_(std::move(shape)) {
    tensor_ = {data,  {RUEDA_CPU, 0}, static_cast<int32_t>(shape_.size()),
               dtype, shape_.data(),  nullptr,
               0};
  }
  TensorOf(const TensorOf&) = delete;
  const rueda_tensor* get() const { return &tensor_; }

 private:
  std::vector<int64_t> shape_;
  rueda_tensor tensor_;
};

inline rueda_operation Allreduce(const char* name, const rueda_tensor* tensor,
                                 rueda_reduce_op op = RUEDA_SUM) {
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_ALLREDUCE;
  operation.name = name;
  operation.input = tensor;
  operation.reduce_op = op;
  return operation;
}

inline rueda_operation Broadcast(const char* name, const rueda_tensor* tensor, int root) {
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_BROADCAST;
  operation.name = name;
  operation.input = tensor;
  operation.root = root;
  return operation;
}

inline rueda_operation Allgather(const char* name, const rueda_tensor* tensor) {
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_ALLGATHER;
  operation.name = name;
  operation.input = tensor;
  return operation;
}

inline rueda_operation OfKind(rueda_kind kind, const char* name, const rueda_tensor* input) {
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = kind;
  operation.name = name;
  operation.input = input;
  return operation;
}

inline rueda_operation Barrier(const char* name = nullptr) {
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_BARRIER;
  operation.name = name;
  return operation;
}

// Submits and waits without a limit.
inline rueda_status Execute(rueda_context* context, const rueda_operation& operation) {
  return rueda_execute(context, &operation, 1, RUEDA_FOREVER, nullptr);
}

// The same, and takes the result; free it with rueda_result_free.
inline rueda_result ExecuteAndTake(rueda_context* context, const rueda_operation& operation) {
  rueda_handle handle = 0;
  EXPECT_EQ(rueda_execute(context, &operation, 1, RUEDA_FOREVER, &handle), RUEDA_OK)
      << rueda_last_error();
  rueda_result result = RUEDA_RESULT_INIT;
  EXPECT_EQ(rueda_result_take(context, handle, 0, &result), RUEDA_OK) << rueda_last_error();
  EXPECT_EQ(rueda_release(context, handle), RUEDA_OK);
  return result;
}

}  // namespace rueda::testing
