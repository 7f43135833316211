#include "ops/nccl/device_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "core/base/clock.h"

namespace rueda {
namespace {

TEST(DeviceThread, LooksWhileTasksKeepComing) {
  std::atomic<int> looks = 0;
  const Nanos deadline = MonotonicNow() + 20 * kSecond;  // for a thread that never looks
  std::function<void()> again;
  DeviceThread thread(
      kMillisecond, [] { return true; }, [&] { ++looks; });
  again = [&] {
    if (looks < 3 && MonotonicNow() < deadline) thread.Add(again);
  };
  thread.Add(again);
  ASSERT_TRUE(thread.Start().ok());
  while (looks < 3 && MonotonicNow() < deadline) SleepFor(kMillisecond);
  EXPECT_GE(looks, 3);
}

TEST(DeviceThread, DoesWhatWasAddedBeforeItEnds) {
  int done = 0;
  {
    DeviceThread thread(
        kSecond, [] { return false; }, [] {});
    for (int i = 0; i < 100; ++i) {
      thread.Add([&done, i] {
        if (done == i) ++done;
      });
    }
    ASSERT_TRUE(thread.Start().ok());
  }
  EXPECT_EQ(done, 100);
}

}  // namespace
}  // namespace rueda
