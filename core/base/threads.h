// How the library starts its threads, and what becomes of an exception there.
#pragma once

#include <functional>
#include <thread>

#include "core/base/status.h"

namespace rueda {

// Starts a thread that is shown as `name` (up to 15 characters) and whose log lines are marked as
// the caller's. Signals go to the program's own threads, but those of the thread's own faults
// (SIGSEGV, SIGABRT and such) come to it: the program's crash handlers see them. What `body` throws
// ends the program. RESOURCE_EXHAUSTED: "starting WHAT: ...".
absl::Status StartThread(absl::string_view what, const char* name, std::function<void()> body,
                         std::thread* thread);

// The exception that is being handled, as a status.
absl::Status CurrentException();

// What `fn` returns, which is a status or begins with one; what it throws, as a status.
template <typename Fn>
auto WithoutExceptions(Fn fn) -> decltype(fn()) {
  try {
    return fn();
  } catch (...) {
    return CurrentException();
  }
}

}  // namespace rueda
