// Condition variables with a time limit, between threads.
#include "core/base/mutex.h"

#include <gtest/gtest.h>

#include <thread>

namespace rueda {
namespace {

TEST(CondVar, SaysThatTimeIsUp) {
  Mutex mutex;
  CondVar changed;
  MutexLock lock(mutex);
  while (changed.WaitFor(mutex, std::chrono::milliseconds(1))) {
  }
  EXPECT_FALSE(mutex.TryLock()) << "the caller holds it again";
}

// A limit that lies beyond what the clock can count is no limit; it must not wrap into the past.
TEST(CondVar, WaitsForeverWhenAskedTo) {
  Mutex mutex;
  CondVar changed;
  bool ready = false;
  bool timed_out = false;
  MutexLock lock(mutex);
  std::thread other([&] {
    MutexLock theirs(mutex);
    ready = true;
    changed.NotifyAll();
  });
  while (!ready) timed_out |= !changed.WaitFor(mutex, std::chrono::nanoseconds::max());
  EXPECT_FALSE(timed_out);
  mutex.Unlock();
  other.join();
  mutex.Lock();
}

}  // namespace
}  // namespace rueda
