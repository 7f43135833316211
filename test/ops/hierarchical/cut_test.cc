#include "ops/hierarchical/cut.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace rueda {
namespace {

constexpr size_t kRingLimit = 2 << 20;

// Goes through all stripes and parts, which must be what the whole is divided into, in order.
void CheckWhole(const CutLimits& limits, int64_t elements, size_t wire_bytes, size_t result_bytes) {
  const Cut cut = MakeCut(limits, elements, wire_bytes, result_bytes);
  ASSERT_GE(cut.blocks, 1);
  int64_t at = 0;
  for (int64_t block = 0; block < cut.blocks; ++block) {
    const Range whole = cut.Block(block);
    ASSERT_LE(static_cast<size_t>(whole.size()) * wire_bytes, limits.block_bytes);
    for (int s = 0; s < cut.stripes; ++s) {
      const Range stripe = cut.Stripe(block, s);
      ASSERT_EQ(stripe.begin, at);
      ASSERT_LE(static_cast<size_t>(stripe.size()) * wire_bytes, limits.stripe_bytes);
      for (int host = 0; host < cut.hosts; ++host) {
        const Range part = cut.Part(stripe, host);
        ASSERT_LE(static_cast<size_t>(part.size()) * wire_bytes, limits.part_bytes);
        ASSERT_EQ(part.begin, cut.direct ? stripe.begin : at);
        if (!cut.direct || host + 1 == cut.hosts) at = part.end;
      }
      ASSERT_EQ(stripe.end, at);
    }
  }
  ASSERT_EQ(at, elements);
}

TEST(Cut, IsAllOfTheOperationAndFitsTheMemory) {
  for (const int hosts : {2, 3, 5, 64}) {
    for (const int stripes : {1, 2, 3, 16}) {
      for (const size_t block_bytes : {2 << 20, 4'096, 1'000'000}) {
        const CutLimits limits = LimitsFor(hosts, stripes, {block_bytes, block_bytes, 1 << 20});
        for (const int64_t elements :
             {0, 1, 2, 15, 16, 17, 300, 8'191, 8'192, 8'193, 40'000, 700'001}) {
          CheckWhole(limits, elements, 4, 4);
          CheckWhole(limits, elements, 4, 1);
          CheckWhole(limits, elements, 16, 16);
          CheckWhole(limits, elements, 1, 1);
          ASSERT_FALSE(HasFatalFailure())
              << hosts << " hosts, " << stripes << " stripes, blocks of " << block_bytes << ", "
              << elements << " elements";
        }
      }
    }
  }
}

TEST(Cut, MemoryDoesNotGrowWithHosts) {
  for (const int hosts : {2, 3, 10, 1'000}) {
    for (const int stripes : {1, 4, 16}) {
      const CutLimits limits = LimitsFor(hosts, stripes, kBlocksOverGloo);
      EXPECT_LE(limits.block_bytes, kRingLimit);
      EXPECT_LE(static_cast<size_t>(hosts - 1) * limits.part_bytes,
                limits.stripe_bytes + static_cast<size_t>(hosts) * 128 + (384 << 10) +
                    static_cast<size_t>(hosts) * 64)
          << hosts << " hosts, " << stripes << " stripes";
    }
  }
}

TEST(Cut, WhatIsSmallTakesOneTripOfOneMemberOfEachHost) {
  for (const int hosts : {2, 3, 8}) {
    const Cut cut = MakeCut(LimitsFor(hosts, 4, kBlocksOverGloo), 1'000, 4, 4);
    EXPECT_TRUE(cut.direct);
    EXPECT_EQ(cut.stripes, 1);
    EXPECT_EQ(cut.blocks, 1);
  }
}

TEST(Cut, WhatIsLargeIsSentOnceByAllMembersTogether) {
  const Cut two = MakeCut(LimitsFor(2, 4, kBlocksOverGloo), 10'000'000, 4, 4);
  EXPECT_TRUE(two.direct);
  EXPECT_EQ(two.stripes, 4);
  const Cut narrow = MakeCut(LimitsFor(2, 4, kBlocksOverGloo), 10'000'000, 4, 2);
  EXPECT_FALSE(narrow.direct) << "results are narrower than sums: they go reduced";
  EXPECT_FALSE(MakeCut(LimitsFor(3, 4, kBlocksOverGloo), 10'000'000, 4, 4).direct);
}

}  // namespace
}  // namespace rueda
