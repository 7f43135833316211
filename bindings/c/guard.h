// What every exported function goes through: nothing is thrown across the C API, and the last error
// of each thread is kept. A lint, test/lint/guards.py, holds that none goes without.
#pragma once

#include "core/base/threads.h"
#include "rueda/rueda.h"

namespace rueda::capi {

// Keeps the message for rueda_last_error and returns the code.
rueda_status Report(const absl::Status& status) noexcept;

// How many forks lie between this process and the one that loaded the library. What was made in
// another generation can't be used: its threads are not here.
int ForkGeneration();

// Runs fn() -> T. After an exception, which is the last error then, it is `otherwise`.
template <typename T, typename Fn>
T GuardOr(T otherwise, Fn fn) noexcept {
  try {
    return fn();
  } catch (...) {
    Report(CurrentException());
    return otherwise;
  }
}

// Runs fn() -> absl::Status.
template <typename Fn>
rueda_status Guard(Fn fn) noexcept {
  try {
    return Report(fn());
  } catch (...) {
    return Report(CurrentException());
  }
}

}  // namespace rueda::capi
