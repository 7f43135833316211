#include "ops/kernels/copy.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "test/ops/kernels/targets.h"

namespace rueda::kernels {
namespace {

using CopyTest = OnTarget;
INSTANTIATE_TEST_SUITE_P(Targets, CopyTest, testing::ValuesIn(Targets()), NameOfTarget);

TEST_P(CopyTest, CopiesEachByteAndNoOther) {
  std::vector<uint8_t> from(12'000), expected;
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 7 + i / 256);
  std::vector<size_t> sizes = {0, 1, 31, 2047};
  for (size_t size = kVectorCopyBytes; size < kVectorCopyBytes + 300; ++size) sizes.push_back(size);
  sizes.push_back(9'999);
  for (const size_t size : sizes) {
    for (const size_t to_offset : {0, 1, 16, 63, 64}) {
      for (const size_t from_offset : {0, 1, 16, 63}) {
        std::vector<uint8_t> to(12'000, 0xee);
        expected = to;
        std::copy_n(from.begin() + static_cast<int64_t>(from_offset), size,
                    expected.begin() + static_cast<int64_t>(to_offset));
        Copy(to.data() + to_offset, from.data() + from_offset, size);
        ASSERT_TRUE(to == expected) << size << " " << to_offset << " " << from_offset;
      }
    }
  }
}

}  // namespace
}  // namespace rueda::kernels
