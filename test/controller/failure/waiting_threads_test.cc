#include "controller/failure/waiting_threads.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <optional>
#include <thread>
#include <utility>

namespace rueda {
namespace {

// Whether it comes true. The kernel wakes who joins a thread a moment before that is gone.
bool Comes(const std::function<bool()>& what) {
  const Nanos end = MonotonicNow() + 5'000 * kMillisecond;
  while (!what()) {
    if (MonotonicNow() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// Does what it is told, one thing after another.
class Worker {
 public:
  ~Worker() { End(); }
  void Do(std::function<void()> what) {
    std::promise<void> done;
    {
      MutexLock lock(mutex_);
      next_ = [&] {
        what();
        done.set_value();
      };
      changed_.NotifyAll();
    }
    done.get_future().wait();
  }
  void End() {
    if (!thread_.joinable()) return;
    {
      MutexLock lock(mutex_);
      ends_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> what;
      {
        MutexLock lock(mutex_);
        while (!ends_ && next_ == nullptr) changed_.Wait(mutex_);
        if (ends_) return;
        what = std::exchange(next_, nullptr);
      }
      what();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::function<void()> next_;
  bool ends_ = false;
  std::thread thread_{[this] { Run(); }};
};

constexpr Nanos kLater = WaitingThreads::kBetweenSlices + kSecond;

TEST(WaitingThreads, KnowsWhoIsInsideAndSinceWhen) {
  WaitingThreads threads;
  EXPECT_EQ(threads.StateAt(MonotonicNow()).since, kForever);
  const Nanos before = MonotonicNow();
  std::optional<WaitingThreads::Inside> inside;
  inside.emplace(&threads, kForever);
  EXPECT_EQ(threads.inside(), 1);
  WaitingThreads::State state = threads.StateAt(MonotonicNow());
  EXPECT_GE(state.since, before);
  EXPECT_LE(state.since, MonotonicNow());
  EXPECT_EQ(state.changes_at, kForever);
  EXPECT_FALSE(state.waiter_left.has_value());
  inside.reset();
  EXPECT_EQ(threads.inside(), 0);
  state = threads.StateAt(MonotonicNow() + kLater);
  EXPECT_EQ(state.since, kForever);
  EXPECT_TRUE(state.waiter_left.has_value());
}

// Python waits in slices, to hear signals in between.
TEST(WaitingThreads, SlicesAreOneWait) {
  WaitingThreads threads;
  const Nanos before = MonotonicNow();
  Nanos first = 0;
  for (int slice = 0; slice < 3; ++slice) {
    const Nanos until = MonotonicNow() + kMillisecond;
    {
      const WaitingThreads::Inside inside(&threads, until);
      const WaitingThreads::State state = threads.StateAt(MonotonicNow());
      if (slice == 0) first = state.since;
      EXPECT_EQ(state.since, first);
      EXPECT_EQ(state.changes_at, until + WaitingThreads::kBetweenSlices);
    }
    const Nanos left = MonotonicNow();
    if (left - before > WaitingThreads::kBetweenSlices / 2) GTEST_SKIP() << "a busy machine";
    EXPECT_EQ(threads.StateAt(left).since, first) << "between two slices";
  }
}

TEST(WaitingThreads, AWaitOfNothingDoesNotCount) {
  const WaitingThreads::Inside inside(nullptr, kForever);
}

TEST(WaitingThreads, ThreadsOutsideAreKnownAsLongAsTheyLive) {
  WaitingThreads threads;
  Worker submits, waits;
  submits.Do([&] { threads.NoteSubmission(); });
  EXPECT_TRUE(threads.StateAt(MonotonicNow()).other_outside);
  waits.Do([&] { const WaitingThreads::Inside inside(&threads, kForever); });
  const Nanos later = MonotonicNow() + kLater;
  EXPECT_TRUE(threads.StateAt(later).waiter_left.has_value());
  submits.End();
  EXPECT_TRUE(Comes([&] { return !threads.StateAt(later).other_outside; }));
  waits.End();
  EXPECT_TRUE(Comes([&] { return !threads.StateAt(later).waiter_left.has_value(); }));
}

TEST(WaitingThreads, WhoWaitsForOthersIsNotOutside) {
  WaitingThreads threads;
  { const WaitingThreads::Inside inside(&threads, kForever); }
  Worker other;
  threads.SetWaitsOutside(true);
  other.Do([&] {
    const WaitingThreads::Inside inside(&threads, kForever);
    const WaitingThreads::State state = threads.StateAt(MonotonicNow() + kLater);
    EXPECT_NE(state.since, kForever);
    EXPECT_FALSE(state.waiter_left.has_value());
  });
  other.End();
  {
    const WaitingThreads::Inside inside(&threads, kForever);
    EXPECT_NE(threads.StateAt(MonotonicNow()).since, kForever) << "it waits itself, after all";
  }
  const Nanos back = MonotonicNow();
  threads.SetWaitsOutside(false);
  const WaitingThreads::State state = threads.StateAt(MonotonicNow() + kLater);
  ASSERT_TRUE(state.waiter_left.has_value());
  EXPECT_GE(*state.waiter_left, back) << "it has been waiting until now";
}

TEST(WaitingThreads, AWaitThatNeverSleptIsOneToo) {
  WaitingThreads threads;
  Worker waits;
  waits.Do([&] {
    threads.NoteSubmission();
    threads.NoteWait();
  });
  const WaitingThreads::State state = threads.StateAt(MonotonicNow() + kLater);
  EXPECT_TRUE(state.waiter_left.has_value());
  EXPECT_FALSE(state.other_outside);
  EXPECT_EQ(state.since, kForever);
}

TEST(WaitingThreads, OfTheLibrarysOwnThreadsOnlyWaitsCount) {
  WaitingThreads threads;
  Worker callbacks;
  callbacks.Do([&] {
    WaitingThreads::ExemptThisThread();
    threads.NoteSubmission();
    threads.NoteWait();
    const WaitingThreads::Inside inside(&threads, kForever);
    EXPECT_NE(threads.StateAt(MonotonicNow()).since, kForever);
  });
  const WaitingThreads::State state = threads.StateAt(MonotonicNow() + kLater);
  EXPECT_EQ(state.since, kForever);
  EXPECT_FALSE(state.waiter_left.has_value());
  EXPECT_FALSE(state.other_outside);
}

TEST(WaitingThreads, EachContextKnowsItsOwn) {
  WaitingThreads one, other;
  for (int turn = 0; turn < 2; ++turn) {
    one.NoteSubmission();
    EXPECT_TRUE(one.StateAt(MonotonicNow()).other_outside);
    EXPECT_EQ(other.StateAt(MonotonicNow()).other_outside, turn > 0);
    other.NoteSubmission();
    EXPECT_TRUE(other.StateAt(MonotonicNow()).other_outside);
  }
}

TEST(WaitingThreads, ManyThatCameAndWentAreForgotten) {
  WaitingThreads threads;
  for (int i = 0; i < 300; ++i) std::thread([&] { threads.NoteSubmission(); }).join();
  EXPECT_FALSE(threads.StateAt(MonotonicNow()).other_outside);
}

}  // namespace
}  // namespace rueda
