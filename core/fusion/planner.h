// The fusion planner: which tensors of a closed batch share a bucket, and where in it each one
// lies. Every rank computes this for itself from the plan stream; the digest lets them check that
// they agree. PURE
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "core/tensor/dtype.h"

namespace rueda {

// One tensor of a batch, in plan order.
struct FusionInput {
  uint64_t identity;    // equal on all ranks: goes into the digest only
  uint64_t fusion_key;  // tensors of unequal keys never share a bucket
  bool fusable;         // false: a bucket of its own
  DType dtype;
  int64_t elements;
};

// Of these of the batch, in this order, densely packed.
struct Bucket {
  size_t begin = 0;
  size_t end = 0;
  DType dtype = DType::kUInt8;
  int64_t elements = 0;
  uint32_t digest = 0;

  int64_t bytes() const { return elements * static_cast<int64_t>(DTypeSize(dtype)); }
};

using Buckets = absl::InlinedVector<Bucket, 1>;

// The buckets of `batch`. A bucket holds neighbours of equal fusion key and dtype and at most
// `bucket_bytes_max` bytes, except that a tensor larger than that has a bucket of its own.
Buckets PlanFusion(absl::Span<const FusionInput> batch, int64_t bucket_bytes_max);

// The digest of a bucket that has this tensor alone.
uint32_t DigestOf(const FusionInput& input);

}  // namespace rueda
