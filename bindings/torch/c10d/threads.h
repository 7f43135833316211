// Threads for what may wait for operations of this process, and a clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace rueda::libtorch {

// Soon, on a thread of its own: as many as there is to do at once. Must not throw. Threads stay,
// and are used again; at the program's end they are left where they are.
void RunSoon(std::function<void()> task);

// Whether what was to run soon has run within `limit`.
bool AwaitTasks(std::chrono::milliseconds limit);

// As RunSoon, once it is time; unless it is cancelled before, by the number that this returns.
uint64_t RunAt(std::chrono::steady_clock::time_point when, std::function<void()> task);
// Nothing if it runs already, or has run.
void Cancel(uint64_t number);

}  // namespace rueda::libtorch
