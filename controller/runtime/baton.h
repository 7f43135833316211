// The baton: whichever thread of a rank holds it turns the engine. One thread at a time; a thread
// that waits for something turns the engine itself until that has come, and whoever finds the baton
// taken sleeps meanwhile. While nobody waits it is the background thread's.
//
// The baton is given back by construction, whatever a turn does.
#pragma once

#include <atomic>
#include <thread>

#include "absl/functional/function_ref.h"
#include "controller/runtime/engine.h"
#include "controller/runtime/sleepers.h"
#include "controller/runtime/spin.h"

namespace rueda {

class Baton {
 public:
  // Both outlive this. `spin`: what its threads do before they sleep.
  Baton(Engine* engine, Sleepers* sleepers, const Spin& spin)
      : engine_(*engine), sleepers_(*sleepers), background_spin_(spin), waiter_spin_(spin) {}
  ~Baton() { StopBackground(); }
  Baton(const Baton&) = delete;
  Baton& operator=(const Baton&) = delete;

  // Makes the background thread. RESOURCE_EXHAUSTED: the system has none left.
  absl::Status StartBackground(Rank rank);
  // Ends it, if there is one.
  void StopBackground();

  // Any thread, but not in a turn (callbacks.h): turns the engine, or sleeps while another thread
  // does, until over() or the deadline. `request`, unless it is null, is woken for when it has
  // ended.
  void Await(const Request* request, Nanos deadline, absl::FunctionRef<bool()> over);

  // Something was queued for the engine, which sleeps or is busy with other things. `waits_soon`:
  // the caller is going to wait for it, and it may take kWaitSoon until somebody looks.
  void OnQueued(bool waits_soon);

 private:
  // The baton, for as long as this lives and has it.
  class Hold {
   public:
    explicit Hold(Baton* baton) : baton_(baton), held_(baton->TryTake()) {}
    ~Hold() {
      if (held_) baton_->GiveBack();
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    explicit operator bool() const { return held_; }

   private:
    Baton* const baton_;
    const bool held_;
  };

  bool TryTake();
  void GiveBack() noexcept;
  // `threads`: where a sleep counts as a wait; null: nowhere.
  void TurnUntil(absl::FunctionRef<bool()> over, Nanos deadline, WaitingThreads* threads);
  void Background();
  void WaitForBaton(Nanos* patience);
  bool BackgroundLooksSoon();

  Engine& engine_;
  Sleepers& sleepers_;
  Spin background_spin_;  // the background thread's
  Spin waiter_spin_;      // whoever holds the baton but the background thread

  enum : uint32_t { kFree = 0, kHeld = 1 };
  std::atomic<uint32_t> state_{kFree};
  // Until when the background thread sleeps if nobody rings; 0 while it is awake.
  std::atomic<Nanos> background_deadline_{0};
  std::atomic<bool> waits_soon_{false};  // since the background thread looked last
  std::atomic<bool> stopping_{false};
  std::thread background_;
};

}  // namespace rueda
