// Every n-th failure, in the manner of SQLite's tests: of all that a rank asks the system for from
// rueda_init on, one thing is refused, the first in the first round, the second in the next, until
// there are no more. Each round ends in time, with success or with an error that names the cause on
// every rank, and leaves nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <limits>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "test/support/refuse.h"
#include "test/support/run_ranks.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using std::chrono::steady_clock;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kRanksMax = 4;
constexpr int kCallsMax = 200;  // of a kind, in CI
// The start's time-out, and five seconds once the ranks have met; here they share two cores.
constexpr double kSecondsMax = 3 + 5;

// Two hosts have two ranks each, one host has three; two of them, of both hosts, are a set.
int SizeOf(const Setup& setup) {
  return setup.multiple_of == 2 ? 4 : 3;
}
std::array<int32_t, 2> SetOf(const Setup& setup) {
  return {0, setup.multiple_of == 2 ? 2 : 1};
}

// How a rank's part went.
struct End {
  bool told = false;
  std::string where;  // empty: well
  std::string error;
};

// Returns where it failed, if it did; rueda_last_error says why.
std::string Work(const Setup& setup, const Join& join, rueda_context** context) {
  const auto call = [](auto fn) { return Call(fn) == RUEDA_OK; };
  if (!call([&] { return join(context); })) return "init";
  std::vector<float> values(300'000, 1);
  for (const size_t count : {size_t{10}, values.size()}) {
    values.assign(count, 1);
    const TensorOf tensor(values);
    const rueda_operation sum = Allreduce("sum", tensor.get());
    if (!call([&] { return rueda_execute(*context, &sum, 1, RUEDA_FOREVER, nullptr); })) {
      return "a sum";
    }
    EXPECT_EQ(values.front(), SizeOf(setup));
    EXPECT_EQ(values.back(), SizeOf(setup));
  }
  const auto ranks = SetOf(setup);
  int32_t id = -1;
  if (!call([&] { return rueda_process_set_add(*context, ranks.data(), 2, RUEDA_FOREVER, &id); })) {
    return "a new process set";
  }
  if (rueda_process_set_rank(*context, id) < 0) {
    return call([&] { return rueda_shutdown(*context); }) ? "" : "shutdown";
  }
  values.assign(1'000, 1);
  const TensorOf tensor(values);
  rueda_operation sum = Allreduce("of the set", tensor.get());
  sum.process_set = id;
  if (!call([&] { return rueda_execute(*context, &sum, 1, RUEDA_FOREVER, nullptr); })) {
    return "a sum of the set";
  }
  EXPECT_EQ(values.front(), 2);
  return call([&] { return rueda_shutdown(*context); }) ? "" : "shutdown";
}

// A line for the parent, who may read it when this process is gone.
void Tell(int pipe, int rank, const std::string& where, std::string error) {
  std::replace(error.begin(), error.end(), '\n', ' ');
  const std::string line = std::to_string(rank) + "\t" + where + "\t" + error + "\n";
  ASSERT_EQ(write(pipe, line.data(), line.size()), static_cast<ssize_t>(line.size()));
}

std::string ReadAll(int pipe) {
  std::string all;
  char buffer[4096];
  for (ssize_t n; (n = read(pipe, buffer, sizeof buffer)) > 0;) {
    all.append(buffer, static_cast<size_t>(n));
  }
  return all;
}

std::vector<std::string> SharedMemoryOfRueda() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.path().string().find("rueda") != std::string::npos) names.push_back(entry.path());
  }
  return names;
}

struct Round {
  Setup setup;
  Refusable what;
  int n;
  int victim;
};

constexpr int kNever = std::numeric_limits<int>::max();

struct Outcome {
  End ends[kRanksMax];
  int status[kRanksMax] = {};         // of the process, as waitpid has it
  std::string last_words[kRanksMax];  // of the process, on its standard error
  bool was_refused = false;
  int calls = 0;  // that the victim's round has counted
  double seconds = 0;
};

// What this process says on its standard error goes to `fd`; where the refused call was, to the
// test's output.
void TakeLastWords(int fd) {
  EXPECT_EQ(dup2(fd, STDERR_FILENO), STDERR_FILENO);
  static std::terminate_handler handler;
  handler = std::set_terminate([] {
    PrintRefused(STDOUT_FILENO);
    handler();
  });
  for (const int deadly : {SIGSEGV, SIGBUS}) {
    (void)signal(deadly, [](int number) {
      PrintRefused(STDERR_FILENO);
      (void)signal(number, SIG_DFL);
      (void)raise(number);
    });
  }
}

Outcome RunOnce(const Round& round) {
  int pipe_ends[2];
  EXPECT_EQ(pipe(pipe_ends), 0);
  const int size = SizeOf(round.setup);
  const RunOptions options = {
      size,
      round.setup,
      {{"log_level", "off"}, {"recorder_dir", "/nowhere"}, {"start_timeout_s", "3"}}};
  std::atomic<int> there{0};
  const auto rank_body = [&](int rank, const Join& join) {
    SetExempt(true);
    rueda_context* context = nullptr;
    ++there;  // all threads have been started before one is refused
    while (round.setup.ranks == Ranks::kThreads && there < size) sched_yield();
    if (rank == round.victim) RefuseNth(round.what, round.n);
    std::string where, error;
    try {
      where = Work(round.setup, join, &context);
      if (!where.empty()) error = rueda_last_error();
    } catch (const std::bad_alloc&) {  // of what the test itself makes for rueda_init
      where = "init";
      error = "out of memory";
    }
    SetExempt(true);
    if (!where.empty() && context != nullptr) {
      (void)Call([&] { return rueda_abort(context, error.c_str()); });  // the other must not wait
    }
    if (rank == round.victim) {
      if (WasRefused()) Tell(pipe_ends[1], -1, "refused", "");
      Tell(pipe_ends[1], -1, std::to_string(CountedOf(round.what)), "");
      StopRefusing();
    }
    Tell(pipe_ends[1], rank, where, std::move(error));
    rueda_context_destroy(context);
  };
  const auto began = steady_clock::now();
  std::vector<int> pids;
  int last_words[kRanksMax];  // of each process
  for (int& fd : last_words) fd = memfd_create("last-words", 0);
  if (round.setup.ranks == Ranks::kProcesses) {
    pids = StartProcesses(options, [&](int rank, const Join& join) {
      TakeLastWords(last_words[rank]);
      rank_body(rank, join);
    });
  } else {  // in a process of their own, which may end of it
    std::fflush(nullptr);
    pids.push_back(fork());
    if (pids.back() == 0) {
      TakeLastWords(last_words[0]);
      RunJoiners(options, rank_body);
      std::fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
  }
  Outcome outcome;
  for (int rank = 0; rank < size; ++rank) {
    const auto process = static_cast<size_t>(rank);
    if (process < pids.size()) {
      outcome.status[rank] = AwaitProcess(pids[process]);
      (void)lseek(last_words[rank], 0, SEEK_SET);
      outcome.last_words[rank] = ReadAll(last_words[rank]);
    } else {
      outcome.status[rank] = outcome.status[0];
      outcome.last_words[rank] = outcome.last_words[0];
    }
  }
  for (const int fd : last_words) close(fd);
  outcome.seconds = std::chrono::duration<double>(steady_clock::now() - began).count();
  close(pipe_ends[1]);
  std::istringstream lines(ReadAll(pipe_ends[0]));
  close(pipe_ends[0]);
  for (std::string rank, where, error; std::getline(lines, rank, '\t') &&
                                       std::getline(lines, where, '\t') &&
                                       std::getline(lines, error);) {
    if (rank == "-1") {
      outcome.was_refused |= where == "refused";
      if (where != "refused") outcome.calls = std::stoi(where);
    } else {
      outcome.ends[std::stoi(rank)] = {true, where, error};
    }
  }
  return outcome;
}

// What an error that has its cause in a refused call may say of it.
auto NamesTheCause() {
  return AnyOf(HasSubstr("out of memory"), HasSubstr("no memory"), HasSubstr("bad_alloc"),
               HasSubstr("Cannot allocate memory"), HasSubstr("Too many open files"),
               HasSubstr("No space left"), HasSubstr("starting "),
               HasSubstr("Resource temporarily unavailable"),
               // As the resolver and the loader put it.
               HasSubstr("Memory allocation failure"), HasSubstr("can't load a module"),
               // It could not even meet the others; a launcher would tell them.
               HasSubstr("did not come to the start"), HasSubstr("left the start"));
}

// With SOAK_FAILURES=FROM/STEP every STEP-th call is tried, from the FROM-th on: 1/1 tries them
// all, and 1/8 to 8/8 share that among eight processes. Without it: what CI has time for.
struct Search {
  int from = 0;
  int step = 0;
};
std::optional<Search> Soak() {
  const char* const asked = getenv("SOAK_FAILURES");
  if (asked == nullptr) return std::nullopt;
  Search search;
  EXPECT_EQ(std::sscanf(asked, "%d/%d", &search.from, &search.step), 2) << asked;
  return search;
}

// Whether anything was refused: else there is no further call.
bool RunAndCheck(const Round& round) {
  const std::vector<std::string> before = SharedMemoryOfRueda();
  const Outcome outcome = RunOnce(round);
  EXPECT_LT(outcome.seconds, Soak() ? 5 * kSecondsMax : kSecondsMax);  // beside others like it
  EXPECT_EQ(SharedMemoryOfRueda(), before);
  if (Soak()) {  // how long it took, and where it ended
    for (int rank = 0; rank < SizeOf(round.setup); ++rank) {
      const End& end = outcome.ends[rank];
      std::printf("%s %d of rank %d: %.2f s: rank %d %s: %s: %s\n", NameOf(round.what), round.n,
                  round.victim, outcome.seconds, rank, end.told ? "ended" : "died",
                  end.where.c_str(), end.error.c_str());
    }
  }
  const bool processes = round.setup.ranks == Ranks::kProcesses;
  const bool any_died = std::any_of(outcome.ends, outcome.ends + SizeOf(round.setup),
                                    [](const End& end) { return !end.told; });
  for (int rank = 0; rank < SizeOf(round.setup); ++rank) {
    const End& end = outcome.ends[rank];
    const int status = outcome.status[rank];
    if (!end.told) {
      // Where memory is refused inside others' code, or one that can't throw: Gloo's own thread
      // registers what it listens to.
      const bool in_gloo = round.what == Refusable::kEpoll && SizeOf(round.setup) == 4;
      EXPECT_TRUE((round.what == Refusable::kMalloc || in_gloo) &&
                  (rank == round.victim || round.setup.ranks == Ranks::kThreads))
          << "rank " << rank << " ended with wait status " << status;
      EXPECT_THAT(outcome.last_words[rank], AnyOf(NamesTheCause(), HasSubstr("gloo::")))
          << "rank " << rank << " ended with wait status " << status;
      if (Soak()) std::printf("last words: %s\n", outcome.last_words[rank].c_str());
      continue;
    }
    EXPECT_TRUE(status == 0 || round.setup.ranks == Ranks::kThreads)
        << "rank " << rank << " ended with wait status " << status;
    if (end.where.empty() || (any_died && round.setup.ranks == Ranks::kThreads)) continue;
    if (!outcome.ends[round.victim].told) {
      EXPECT_THAT(end.error, HasSubstr("rank " + std::to_string(round.victim))) << end.where;
    } else if (SizeOf(round.setup) == 4 || (round.what == Refusable::kMalloc && processes)) {
      // Another host may hear no more than that it is gone; a launcher would know. So may all where
      // there is no memory for last words. And Gloo says in its own words what it could not have.
      // Among threads it may be any that was refused.
      const std::string who = processes ? std::to_string(round.victim) : "[0-9]";
      EXPECT_THAT(end.error,
                  AnyOf(NamesTheCause(), HasSubstr("gloo: "), ContainsRegex("meeting rank " + who),
                        ContainsRegex("rank " + who + " (was lost while|[(])")))
          << "rank " << rank << ", in " << end.where;
    } else {
      EXPECT_THAT(end.error, NamesTheCause()) << "rank " << rank << ", in " << end.where;
    }
  }
  return outcome.was_refused || any_died;
}

class EveryFailure : public ::testing::TestWithParam<std::tuple<Refusable, Setup>> {
 protected:
  void SetUp() override {
    if (!CanRefuse()) GTEST_SKIP() << "the sanitizer stands before the C library itself";
  }
};

std::vector<Setup> Setups() {
  std::vector<Setup> setups;
  for (Setup& setup : AllSetups()) {
    for (const char* name : {"threads", "processes", "processes_two_hosts", "threads_two_hosts"}) {
      if (setup.name == name) setups.push_back(std::move(setup));
    }
  }
  return setups;
}

INSTANTIATE_TEST_SUITE_P(
    All, EveryFailure,
    ::testing::Combine(::testing::Values(Refusable::kMmap, Refusable::kThread, Refusable::kEventfd,
                                         Refusable::kMemfd, Refusable::kSocket, Refusable::kEpoll,
                                         Refusable::kMalloc),
                       ::testing::ValuesIn(Setups())),
    [](const auto& round) {
      return std::string(NameOf(std::get<0>(round.param))) + "_" + std::get<1>(round.param).name;
    });

TEST_P(EveryFailure, EndsWithSuccessOrItsCause) {
  const auto& [what, setup] = GetParam();
  const auto set = SetOf(setup);
  const auto run = [what = what, &setup = setup](int n, int victim) {
    SCOPED_TRACE(std::string(NameOf(what)) + " " + std::to_string(n) + " of rank " +
                 std::to_string(victim));
    return RunAndCheck({setup, what, n, victim});
  };
  if (const std::optional<Search> search = Soak()) {
    ASSERT_TRUE(search->from > 0 && search->step > 0);
    for (const int victim : set) {
      for (int n = search->from - 1; run(n, victim); n += search->step) continue;
    }
  } else if (what == Refusable::kMalloc) {
    // There are thousands: a sample, the same one each time.
    constexpr int kSample = 75;
    int calls[2];
    for (size_t i = 0; i < 2; ++i) {
      calls[i] = RunOnce({setup, what, kNever, set[i]}).calls;
      ASSERT_GT(calls[i], 0);
    }
    std::mt19937 random(1);
    int refused = 0;
    for (int i = 0; i < kSample && !HasFailure(); ++i) {
      std::uniform_int_distribution<int> any(0, calls[i % 2]);
      refused += run(any(random), set[static_cast<size_t>(i % 2)]) ? 1 : 0;
    }
    EXPECT_GT(refused, kSample / 2);
  } else {
    int missed = 0;
    for (int n = 0; missed < 2 && !HasFailure(); ++n) {  // the two take turns
      missed = run(n, set[static_cast<size_t>(n % 2)]) ? 0 : missed + 1;
      if (n >= kCallsMax) FAIL() << "there are more calls than are tried here";
    }
  }
}

}  // namespace
}  // namespace rueda::testing
