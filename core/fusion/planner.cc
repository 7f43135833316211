// PURE
#include "core/fusion/planner.h"

namespace rueda {
namespace {

// The same on every machine and in every process, unlike absl::Hash.
uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

constexpr uint64_t kEmptyBucket = 0x52554544;  // its digest is not 0

uint64_t With(uint64_t hash, const FusionInput& input) {
  return Mix(Mix(Mix(hash, input.identity), static_cast<uint64_t>(input.elements)),
             static_cast<uint64_t>(input.dtype));
}

uint32_t Digest(uint64_t hash) {
  return static_cast<uint32_t>(hash >> 32) | 1;
}

}  // namespace

uint32_t DigestOf(const FusionInput& input) {
  return Digest(With(kEmptyBucket, input));
}

Buckets PlanFusion(absl::Span<const FusionInput> batch, int64_t bucket_bytes_max) {
  Buckets buckets;
  uint64_t hash = 0;
  const FusionInput* open = nullptr;  // the open bucket's last tensor; none open when null
  for (size_t i = 0; i < batch.size(); ++i) {
    const FusionInput& input = batch[i];
    const int64_t bytes = input.elements * static_cast<int64_t>(DTypeSize(input.dtype));
    const bool joins = open != nullptr && open->fusable && input.fusable &&
                       open->fusion_key == input.fusion_key && open->dtype == input.dtype &&
                       bytes <= bucket_bytes_max - buckets.back().bytes();
    if (!joins) {
      buckets.push_back({.begin = i, .dtype = input.dtype});
      hash = kEmptyBucket;
    }
    Bucket& bucket = buckets.back();
    bucket.end = i + 1;
    bucket.elements += input.elements;
    hash = With(hash, input);
    bucket.digest = Digest(hash);
    open = &input;
  }
  return buckets;
}

}  // namespace rueda
