#include "core/base/seconds.h"

#include <gtest/gtest.h>

namespace rueda {
namespace {

TEST(Seconds, HaveOneDigitAfterThePoint) {
  EXPECT_EQ(Seconds(0), "0.0 s");
  EXPECT_EQ(Seconds(1'449 * kMillisecond), "1.4 s");
  EXPECT_EQ(Seconds(90 * kSecond), "90.0 s");
}

}  // namespace
}  // namespace rueda
