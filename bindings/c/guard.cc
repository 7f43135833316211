#include "bindings/c/guard.h"

#include <pthread.h>

#include <atomic>
#include <new>
#include <string>

namespace rueda::capi {
namespace {

thread_local std::string last_error;

std::atomic<int> fork_generation{0};

// Registered when the library is loaded.
[[maybe_unused]] const int registered = pthread_atfork(
    nullptr, nullptr, [] { fork_generation.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

rueda_status Report(const absl::Status& status) noexcept {
  if (__builtin_expect(status.ok(), 1)) return RUEDA_OK;
  try {
    last_error.assign(status.message().data(), status.message().size());
  } catch (const std::bad_alloc&) {
    last_error = "out of memory";  // there is room for this in any string
  }
  return static_cast<rueda_status>(status.code());
}

int ForkGeneration() {
  return fork_generation.load(std::memory_order_relaxed);
}

}  // namespace rueda::capi

extern "C" {

const char* rueda_last_error(void) {
  return rueda::capi::last_error.c_str();
}

uint32_t rueda_version(void) {
  return RUEDA_VERSION;
}

const char* rueda_status_name(rueda_status status) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  const int index = static_cast<int>(status);
  return index >= 0 && index <= RUEDA_UNAUTHENTICATED ? kNames[index] : "unknown status";
}

}  // extern "C"
