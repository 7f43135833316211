#include "controller/runtime/baton.h"

#include <algorithm>
#include <optional>

#include "core/base/log.h"
#include "core/base/threads.h"
#include "core/trace/recorder.h"

namespace rueda {
namespace {

// How long the background thread sleeps between two tries to take the baton: at first, and later.
constexpr Nanos kPatienceAtFirst = kMillisecond;
constexpr Nanos kPatienceMax = 16 * kMillisecond;
// How long an operation whose caller is going to wait is left to the wait.
constexpr Nanos kWaitSoon = 10 * kMillisecond;

}  // namespace

absl::Status Baton::StartBackground(Rank rank) {
  return StartThread(
      "the engine's thread", "rueda-engine",
      [this, rank] {
        SetLogRank(rank);
        Background();
      },
      &background_);
}

void Baton::StopBackground() {
  if (!background_.joinable()) return;
  stopping_.store(true, std::memory_order_release);
  engine_.RingBackground();
  background_.join();
}

bool Baton::TryTake() {
  uint32_t free = kFree;
  if (!state_.compare_exchange_strong(free, kHeld, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
    return false;
  }
  engine_.SetSleep(Sleep::kAwake);
  engine_.Refresh();
  return true;
}

// From now on it is the background thread that neighbours ring; it is parked, or about to be.
void Baton::GiveBack() noexcept {
  engine_.SetSleep(Sleep::kBackground);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const Nanos deadline = engine_.CheckDeadlines();
  const bool work = engine_.CollectWork();
  state_.store(kFree, std::memory_order_seq_cst);
  if (sleepers_.any() && sleepers_.WakeOne()) return;
  // The background thread may sleep past what has become due since.
  const bool earlier = deadline < background_deadline_.load(std::memory_order_seq_cst);
  if (work || earlier) engine_.RingBackground();
}

void Baton::Await(const Request* request, Nanos deadline, absl::FunctionRef<bool()> over) {
  WaitingThreads* const threads = request == nullptr ? nullptr : &engine_.waiting_threads();
  bool called = false;
  while (!over()) {
    if (const Hold hold(this); hold) {
      called = false;
      TurnUntil(over, deadline, threads);
    } else {
      // The holder may be asleep, and not know of what this thread has queued.
      engine_.WakeSelf();
      const WaitingThreads::Inside inside(threads, deadline);
      called = sleepers_.Sleep(request, deadline, [&] {
        return over() || state_.load(std::memory_order_relaxed) == kFree;
      });
    }
    if (deadline != kForever && MonotonicNow() >= deadline) break;
  }
  // Called to take the baton, but done waiting: there may be work left, and nobody else was told.
  if (called && !sleepers_.WakeOne()) engine_.RingBackground();
}

// The baton in hand. The deadline is looked at while the engine moves, too: a turn takes a piece of
// work, and a flood of them is no reason to wait longer.
void Baton::TurnUntil(absl::FunctionRef<bool()> over, Nanos deadline, WaitingThreads* threads) {
  std::optional<WaitingThreads::Inside> inside;  // from the first sleep on
  waiter_spin_.Reset();
  while (!over()) {
    if (engine_.Turn()) {
      waiter_spin_.Reset();
      if (deadline != kForever && MonotonicNow() >= deadline) return;
      continue;
    }
    if (over()) return;
    if (waiter_spin_.Again()) continue;
    engine_.Refresh();
    engine_.BeforeSleep();
    if (!inside.has_value()) inside.emplace(threads, deadline);
    const Nanos until = std::min(deadline, engine_.CheckDeadlines());
    if (MonotonicNow() >= deadline) return;
    engine_.SetSleep(Sleep::kWaiter);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!engine_.LastTurn() && !over()) {
      trace::Record(trace::Event::kSleep, 0, 2);
      engine_.wait_point().Sleep(WaitPoint::Sleeper::kWaiter, until);
      trace::Record(trace::Event::kWake, 0, 2);
      engine_.SocketsMayBeReady();
    }
    engine_.SetSleep(Sleep::kAwake);
    engine_.Refresh();
    waiter_spin_.Reset();
  }
}

void Baton::OnQueued(bool waits_soon) {
  if (!waits_soon || !BackgroundLooksSoon()) engine_.WakeSelf();
}

// Asks the background thread to look every kWaitSoon, as long as somebody asks. False: it does not
// yet.
bool Baton::BackgroundLooksSoon() {
  waits_soon_.store(true, std::memory_order_seq_cst);
  const Nanos deadline = background_deadline_.load(std::memory_order_seq_cst);
  return deadline != 0 && deadline <= MonotonicNow() + kWaitSoon;
}

// The background thread was rung while another thread holds the baton. That one does what there is
// to do, as a rule; but what came when it was about to leave it may not have seen, so there must be
// a turn of this thread's. Leaving the baton wakes nobody for that: in a row of blocking calls this
// thread would be woken by each, and come too late each time.
void Baton::WaitForBaton(Nanos* patience) {
  // An operation whose caller said that it waits soon, and does not, is the holder's to begin; the
  // holder may be asleep.
  if (engine_.HasSubmissions()) engine_.WakeSelf();
  engine_.wait_point().SleepOnBell(WaitPoint::Sleeper::kBackground, MonotonicNow() + *patience);
  *patience = std::min(2 * *patience, kPatienceMax);
}

void Baton::Background() {
  WaitingThreads::ExemptThisThread();
  Nanos patience = kPatienceAtFirst;
  while (!stopping_.load(std::memory_order_acquire)) {
    engine_.ReportFailure();
    if (!TryTake()) {
      WaitForBaton(&patience);
      continue;
    }
    engine_.SocketsMayBeReady();
    background_spin_.Reset();
    Nanos deadline = kForever;
    bool to_a_waiter = false;
    while (true) {
      if (engine_.Turn()) {
        background_spin_.Reset();
        continue;
      }
      // A waiter would rather turn the engine itself than be woken when its operation is done.
      to_a_waiter = sleepers_.any();
      if (to_a_waiter) break;
      if (engine_.CollectWork() && background_spin_.Again()) continue;
      engine_.BeforeSleep();
      deadline = engine_.CheckDeadlines();
      engine_.SetSleep(Sleep::kBackground);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (!engine_.LastTurn()) break;
      engine_.SetSleep(Sleep::kAwake);
      background_spin_.Reset();
    }
    engine_.SetSleep(Sleep::kBackground);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (waits_soon_.exchange(false, std::memory_order_seq_cst)) {
      deadline = std::min(deadline, MonotonicNow() + kWaitSoon);
    }
    background_deadline_.store(deadline, std::memory_order_seq_cst);
    state_.exchange(kFree, std::memory_order_seq_cst);
    const bool called = sleepers_.any() && sleepers_.WakeOne();
    if (stopping_.load(std::memory_order_acquire)) return;
    if (to_a_waiter && !called) continue;  // it has left; what came meanwhile rang nobody
    patience = kPatienceAtFirst;
    trace::Record(trace::Event::kSleep, 0, 1);
    engine_.wait_point().Sleep(WaitPoint::Sleeper::kBackground, deadline);
    background_deadline_.store(0, std::memory_order_release);
    trace::Record(trace::Event::kWake, 0, 1);
  }
}

}  // namespace rueda
