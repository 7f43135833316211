#include "ops/kernels/adasum.h"

#include "core/base/check.h"
#include "ops/kernels/reduce.h"
#include "ops/kernels/vectors.h"

namespace rueda::kernels {

void AddProducts(DType dtype, absl::Span<const void* const> vectors, int64_t count,
                 double* products) {
  RUEDA_CHECK(CheckReducible(dtype, ReduceOp::kAdasum).ok()) << DTypeName(dtype);
  RUEDA_CHECK(count >= 0) << count;
  AddVectorProducts(dtype, vectors, static_cast<size_t>(count), products);
}

void Combine(DType dtype, absl::Span<const void* const> sources, absl::Span<const double> factors,
             void* destination, int64_t count) {
  RUEDA_CHECK(CheckReducible(dtype, ReduceOp::kAdasum).ok()) << DTypeName(dtype);
  RUEDA_CHECK(!sources.empty() && sources.size() == factors.size());
  RUEDA_CHECK(count >= 0) << count;
  ReduceVectors(dtype, ReduceOp::kSum,
                {sources.data(), sources.size(), destination, static_cast<size_t>(count), Scaling(),
                 factors.data()});
}

}  // namespace rueda::kernels
