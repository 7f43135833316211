// Whether the job is to stop, as all ranks agree: a scheduler's warning to any of them is one to
// all.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "bindings/c/context.h"
#include "bindings/c/elastic.h"
#include "bindings/c/guard.h"

namespace rueda::capi {
namespace {

// How often the file is looked for, which may be on a network.
constexpr Nanos kLookEvery = 100 * kMillisecond;

constexpr int kWarnings[] = {SIGTERM, SIGUSR1};

std::atomic<bool> was_warned{false};
struct sigaction previous[std::size(kWarnings)];

// Whoever had a handler before is called as well.
void OnWarning(int signal, siginfo_t* info, void* context) {
  was_warned.store(true, std::memory_order_relaxed);
  for (size_t i = 0; i < std::size(kWarnings); ++i) {
    if (kWarnings[i] != signal) continue;
    const struct sigaction& other = previous[i];
    if ((other.sa_flags & SA_SIGINFO) != 0) {
      other.sa_sigaction(signal, info, context);
    } else if (other.sa_handler != SIG_DFL && other.sa_handler != SIG_IGN) {
      other.sa_handler(signal);
    }
  }
}

void WatchSignals() {
  for (size_t i = 0; i < std::size(kWarnings); ++i) {
    struct sigaction own = {};
    own.sa_sigaction = &OnWarning;
    own.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigemptyset(&own.sa_mask);
    sigaction(kWarnings[i], nullptr, &previous[i]);  // before a signal may come
    sigaction(kWarnings[i], &own, &previous[i]);
  }
}

bool IsThere(const std::string& file) {
  static std::atomic<Nanos> look_at{0};
  const Nanos now = MonotonicNow();
  if (file.empty() || now < look_at.load(std::memory_order_relaxed)) return false;
  look_at.store(now + kLookEvery, std::memory_order_relaxed);
  return access(file.c_str(), F_OK) == 0;
}

int32_t ShouldStop(const rueda_context* context) {
  const absl::StatusOr<Call> runtime = RuntimeOf(context);
  if (!runtime.ok()) {
    Report(runtime.status());
    return -1;
  }
  static std::once_flag once;
  std::call_once(once, &WatchSignals);
  if (IsThere((*runtime)->config().stop_file)) was_warned.store(true, std::memory_order_relaxed);
  if (was_warned.load(std::memory_order_relaxed)) (*runtime)->Wish(kWishToStop);
  return ((*runtime)->agreed() & kWishToStop) != 0 ? 1 : 0;
}

}  // namespace
}  // namespace rueda::capi

extern "C" {

using namespace rueda;        // NOLINT: the definition below belongs to the C API
using namespace rueda::capi;  // NOLINT

int32_t rueda_should_stop(rueda_context* context) {
  return GuardOr(-1, [&] { return ShouldStop(context); });
}

}  // extern "C"
