// Runs one test body on every rank of a job, the ranks being threads of this process or processes
// of their own. Failures of any rank become failures of the test.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "rueda/rueda.h"

namespace rueda::testing {

enum class Ranks { kThreads, kProcesses };

// A way to run a job: what the conformance tests are instantiated over.
struct Setup {
  std::string name;
  Ranks ranks = Ranks::kThreads;
  std::vector<std::pair<std::string, std::string>> knobs;
  int multiple_of = 1;  // of which the number of ranks must be a multiple

  // `size` ranks, or the next number that this can do.
  int AtLeast(int size) const { return (size + multiple_of - 1) / multiple_of * multiple_of; }
};
void PrintTo(const Setup& setup, std::ostream* out);

// All of them: threads and processes; the shared log, TCP, and pretended hosts; Gloo where its
// module was built.
std::vector<Setup> AllSetups();
// More ways to be on several hosts, for tests to which it matters what moves the bytes there;
// worlds of six ranks are among them.
std::vector<Setup> HostsSetups();
// One of each kind, for tests that take seconds: threads, processes, processes on two hosts.
std::vector<Setup> FewSetups();
// Shared memory and the shared log only: threads and processes.
std::vector<Setup> ShmSetups();

// Returns when every other thread of this process sleeps, or after one to three minutes.
void AwaitSleepOfOthers();

// Initializes a context on each of `size` ranks, calls body(context, rank) and shuts down, which
// must succeed unless `may_fail`. Knobs given here win over the setup's. Takes at most a minute.
struct RunOptions {
  int size = 2;
  Setup setup;
  std::vector<std::pair<std::string, std::string>> knobs;
  bool may_fail = false;
};
void RunRanks(const RunOptions& options, const std::function<void(rueda_context*, int)>& body);

// Lower level, for tests about beginnings and ends: calls body(rank, join) where join(...)
// initializes a context of this job as often as it is called.
using Join = std::function<rueda_status(rueda_context**)>;
void RunJoiners(const RunOptions& options, const std::function<void(int, const Join&)>& body);

// Starts `size` processes and returns their pids; each calls body(rank, join) and exits with 0, or
// 1 when the test failed in it. For tests that kill.
std::vector<int> StartProcesses(const RunOptions& options,
                                const std::function<void(int, const Join&)>& body);
// Waits for a child; its wait status, or -1 after a minute (the child is killed then).
int AwaitProcess(int pid);

}  // namespace rueda::testing
