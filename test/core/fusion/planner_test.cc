// The fusion planner, over random batches with fixed seeds. Each test's own thread.
#include "core/fusion/planner.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

constexpr int64_t kLimit = 1'024;

std::vector<FusionInput> RandomBatch(std::mt19937* random) {
  std::vector<FusionInput> batch;
  const int size = static_cast<int>((*random)() % 12);
  for (int i = 0; i < size; ++i) {
    const auto dtype = static_cast<DType>((*random)() % 3 == 0 ? (*random)() % kDTypeCount : 6);
    const int64_t sizes[] = {0, 1, 7, 64, 100, 255, 256, 257, 1'023, 1'024, 1'025, 5'000};
    batch.push_back({(*random)() % 64, (*random)() % 6 == 0, (*random)() % 8 != 0, dtype,
                     sizes[(*random)() % std::size(sizes)]});
  }
  return batch;
}

Buckets Planned(absl::Span<const FusionInput> batch) {
  return PlanFusion(batch, kLimit);
}

int64_t BytesOf(const FusionInput& input) {
  return input.elements * static_cast<int64_t>(DTypeSize(input.dtype));
}

TEST(Fusion, PlacesEveryTensorOnceInOrderAndDensely) {
  for (uint32_t seed = 0; seed < 2'000; ++seed) {
    std::mt19937 random(seed);
    const std::vector<FusionInput> batch = RandomBatch(&random);
    size_t next = 0;
    for (const Bucket& bucket : Planned(batch)) {
      ASSERT_EQ(bucket.begin, next) << "seed " << seed;
      ASSERT_LT(bucket.begin, bucket.end) << "seed " << seed;
      int64_t elements = 0;
      for (; next < bucket.end; ++next) {
        ASSERT_EQ(batch[next].dtype, bucket.dtype) << "seed " << seed;
        elements += batch[next].elements;
      }
      ASSERT_EQ(bucket.elements, elements) << "seed " << seed;
    }
    ASSERT_EQ(next, batch.size()) << "seed " << seed;
  }
}

TEST(Fusion, KeepsWhatMustNotMeetApart) {
  for (uint32_t seed = 0; seed < 2'000; ++seed) {
    std::mt19937 random(seed);
    const std::vector<FusionInput> batch = RandomBatch(&random);
    for (const Bucket& bucket : Planned(batch)) {
      if (bucket.end - bucket.begin == 1) continue;
      ASSERT_LE(bucket.bytes(), kLimit) << "seed " << seed;
      for (size_t i = bucket.begin; i < bucket.end; ++i) {
        ASSERT_TRUE(batch[i].fusable) << "seed " << seed;
        ASSERT_EQ(batch[i].fusion_key, batch[bucket.begin].fusion_key) << "seed " << seed;
      }
    }
  }
}

// Greedy: a bucket ends only where the next tensor could not have joined it.
TEST(Fusion, EndsABucketOnlyWhereItMust) {
  for (uint32_t seed = 0; seed < 2'000; ++seed) {
    std::mt19937 random(seed);
    const std::vector<FusionInput> batch = RandomBatch(&random);
    const Buckets buckets = Planned(batch);
    for (size_t i = 0; i + 1 < buckets.size(); ++i) {
      const FusionInput& last = batch[buckets[i].end - 1];
      const FusionInput& next = batch[buckets[i + 1].begin];
      ASSERT_TRUE(!last.fusable || !next.fusable || last.fusion_key != next.fusion_key ||
                  last.dtype != next.dtype || buckets[i].bytes() + BytesOf(next) > kLimit)
          << "seed " << seed << ", bucket " << i;
    }
  }
}

TEST(Fusion, TheLimitIsIncluded) {
  const FusionInput half = {1, 0, true, DType::kUInt8, 512};
  const FusionInput more = {2, 0, true, DType::kUInt8, 513};
  EXPECT_EQ(Planned({half, half}).size(), 1u);
  EXPECT_EQ(Planned({half, more}).size(), 2u);
  const FusionInput huge = {3, 0, true, DType::kUInt8, INT64_MAX / 16};
  const FusionInput none = {4, 0, true, DType::kUInt8, 0};
  EXPECT_EQ(Planned({half, huge, half}).size(), 3u) << "a large tensor travels alone";
  EXPECT_EQ(Planned({huge, none}).size(), 2u) << "even past an empty one";
  EXPECT_EQ(Planned({none, half, none, half, none}).size(), 1u);
}

TEST(Fusion, NothingComesOfAnEmptyBatch) {
  EXPECT_TRUE(Planned({}).empty());
}

// What ranks compare instead of their layouts: who, how much, of which dtype, in which order.
std::string LayoutOf(const Bucket& bucket, absl::Span<const FusionInput> batch) {
  std::string layout;
  for (const FusionInput& input : batch.subspan(bucket.begin, bucket.end - bucket.begin)) {
    absl::StrAppend(&layout, input.identity, ":", static_cast<int>(input.dtype), ":",
                    input.elements, ",");
  }
  return layout;
}

TEST(Fusion, DigestsAreEqualExactlyWhenLayoutsAre) {
  std::map<std::string, uint32_t> digest_of;
  std::map<uint32_t, std::string> layout_of;
  for (uint32_t seed = 0; seed < 3'000; ++seed) {
    std::mt19937 random(seed);
    const std::vector<FusionInput> batch = RandomBatch(&random);
    for (const Bucket& bucket : Planned(batch)) {
      const std::string layout = LayoutOf(bucket, batch);
      ASSERT_NE(bucket.digest, 0u);
      ASSERT_EQ(digest_of.emplace(layout, bucket.digest).first->second, bucket.digest) << layout;
      ASSERT_EQ(layout_of.emplace(bucket.digest, layout).first->second, layout);
    }
  }
  EXPECT_GT(layout_of.size(), 3'000u) << "the batches vary";
}

// Ranks on other machines, with other builds, must come to the same number.
TEST(Fusion, TheDigestIsTheSameEverywhere) {
  const Buckets buckets = Planned({{1, 0, true, DType::kFloat32, 4},
                                   {2, 0, true, DType::kFloat32, 8},
                                   {3, 1, true, DType::kInt8, 1}});
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].digest, 1753417u);
  EXPECT_EQ(buckets[1].digest, 3812342223u);
}

TEST(Fusion, ATensorAloneHasTheDigestOfItsBucket) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    for (const FusionInput& input : RandomBatch(&random)) {
      EXPECT_EQ(Planned({&input, 1})[0].digest, DigestOf(input)) << seed;
    }
  }
}

}  // namespace
}  // namespace rueda
