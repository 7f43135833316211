// Tests whose body runs in several processes, each a rank of one job. The test program starts
// itself again, with the launcher's variables and a filter for the one test: torch's threads don't
// outlive a fork, so every rank begins with an exec.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "rueda/rueda.hpp"

namespace rueda::test {

// The status and message of the error that fn throws; RUEDA_OK when it throws none.
template <typename Fn>
rueda_status StatusOf(Fn fn, std::string* message = nullptr) {
  try {
    fn();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.status();
  }
  return RUEDA_OK;
}

using Variables = std::vector<std::pair<std::string, std::string>>;

// In the test's first process: runs the current test in `ranks` processes and fails, with their
// output, if one of them fails. In such a process: init, `body`, shutdown.
void RunRanks(int ranks, const std::function<void()>& body, const Variables& environment = {});

// For a body that ends a rank's process itself, without shutdown. What was expected so far decides
// whether the rank has passed.
[[noreturn]] void LeaveWithoutShutdown();

// How a program ended, and what it wrote.
struct Ended {
  int status = 0;  // exit status; -1: killed
  std::string out;
  std::string err;
};

// Runs `words` (a program and its arguments) as `ranks` ranks, and waits for them, at most
// `limit_s` seconds.
std::vector<Ended> RunProgram(int ranks, const std::vector<std::string>& words,
                              const Variables& environment = {}, int limit_s = 60);

}  // namespace rueda::test

// RANKS_TEST(Suite, Name, 1, 2, 3) { body }: the body on one rank, then on two, then on three.
#define RANKS_TEST(suite, name, ...)                         \
  static void suite##_##name##_Body();                       \
  TEST(suite, name) {                                        \
    for (const int ranks : {__VA_ARGS__}) {                  \
      ::rueda::test::RunRanks(ranks, suite##_##name##_Body); \
      if (HasFailure()) break;                               \
    }                                                        \
  }                                                          \
  static void suite##_##name##_Body()
