// Refuses a test's process what it asks the system for: linked into a test program, whose own
// operator new, malloc, mmap, pthread_create and so on stand before the C++ and the C library's.
// Not under the sanitizers, which own some of these.
#pragma once

#include <utility>

namespace rueda::testing {

// Memory two ways: by operator new alone, which throws, or all that anybody allocates, the C
// library and others' code included.
enum class Refusable { kNew, kMalloc, kMmap, kThread, kEventfd, kMemfd, kSocket, kEpoll };
const char* NameOf(Refusable what);

// Whether this program can.
bool CanRefuse();

// From now on the n-th such call of any thread of this process fails, n from 0. Calls of threads
// that are exempt don't count.
void RefuseNth(Refusable what, int n);
void StopRefusing();
// How many such calls were counted since.
int CountedOf(Refusable what);
// Whether one was refused since.
bool WasRefused();
// Writes where the last one was, for the log of a program that ends of it. Async-signal-safe.
void PrintRefused(int fd);

// Of the calling thread; the default is no.
bool SetExempt(bool exempt);

// Calls fn for a thread that is exempt because it runs a test's own code: what fn asks for counts.
template <typename Fn>
auto Call(Fn fn) {
  const bool was = SetExempt(false);
  const auto result = fn();
  SetExempt(was);
  return result;
}

}  // namespace rueda::testing
