// Many names at once: thousands of operations of every kind, in process sets and groups, in orders
// that differ by rank, and from many threads. Every value is checked.
//
// SOAK_NAMES_ITERATIONS=N uses all names at least N times on every way to run a job, with 8 ranks
// as with fewer; without it only processes that share memory have the full number.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "test/conformance/tasks.h"
#include "test/support/jobs.h"

namespace rueda::testing {
namespace {

class Names : public JobTest {
 protected:
  bool IsPlain() const { return GetParam().knobs.empty(); }
  bool IsFull() const { return IsPlain() && GetParam().ranks == Ranks::kProcesses && !takes_long; }
};
INSTANTIATE_TEST_SUITE_P(All, Names, ::testing::ValuesIn(AllSetups()),
                         [](const auto& setup) { return setup.param.name; });

uint32_t Seed() {
  return static_cast<uint32_t>(::testing::UnitTest::GetInstance()->random_seed());
}

// Ranks [first, size), every `step`.
std::vector<int> RanksFrom(int first, int step, int size) {
  std::vector<int> ranks;
  for (int rank = first; rank < size; rank += step) ranks.push_back(rank);
  return ranks;
}

std::string SetOf(const std::vector<int>& ranks) {
  std::string list;
  for (const int rank : ranks) list += (list.empty() ? "" : ",") + std::to_string(rank);
  return list;
}

// One name, as all ranks know it: its kind, its set, its group.
Task NamedTask(int number, int size) {
  Task task = SmallTask(kTaskKinds[number % std::size(kTaskKinds)], "name" + std::to_string(number),
                        size, Seed() + static_cast<uint32_t>(number / 3));
  task.set = number % 7 == 0 ? 1 : number % 7 == 1 ? 2 : RUEDA_WORLD;
  if (task.set == 1) task.members = RanksFrom(0, 2, size);
  if (task.set == 2) task.members = RanksFrom(1, 1, size);
  const size_t members = task.members.size();
  if (task.kind == RUEDA_SEND && members == 1) task.kind = RUEDA_BROADCAST;
  const size_t root = static_cast<size_t>(number) % members;
  task.root = task.members[root];
  if (task.kind == RUEDA_SEND) task.peer = task.members[(root + 1) % members];
  const bool groups = task.kind == RUEDA_ALLREDUCE || task.kind == RUEDA_ALLGATHER ||
                      task.kind == RUEDA_REDUCESCATTER;
  if (groups && number % 4 == 0) task.parts = 2;
  return task;
}

// A rank submits a name again once its former use has ended here, whatever the others are at: at
// most one use of each name is in flight, and ranks are up to an iteration apart.
void UseNames(rueda_context* context, int rank, int size, int names, int iterations) {
  std::vector<Task> tasks;
  for (int number = 0; number < names; ++number) {
    Task task = NamedTask(number, size);
    if (task.Has(rank)) tasks.push_back(std::move(task));
  }
  std::vector<std::unique_ptr<Running>> running(tasks.size());
  std::vector<size_t> order(tasks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 own(Seed() * 100 + static_cast<uint32_t>(rank));
  for (int iteration = 0; iteration <= iterations; ++iteration) {
    std::shuffle(order.begin(), order.end(), own);
    for (const size_t i : order) {
      if (iteration > 0) running[i]->Check(tasks[i].members);
      if (iteration == iterations) continue;
      tasks[i].round = iteration;
      running[i] = std::make_unique<Running>(context, tasks[i], rank);
      running[i]->Submit();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_P(Names, AThousandInAnyOrderAndAgainAndAgain) {
  const char* const variable = std::getenv("SOAK_NAMES_ITERATIONS");
  const int asked = variable != nullptr ? std::atoi(variable) : 0;
  const bool full = IsFull();
  const int names = full || asked > 0 ? 1'000 : 200;
  for (const int ranks : {2, 3, 4, 8}) {
    const int few = ranks == 8 ? 40 : 200;
    const int iterations = std::max(asked, !full ? 5 : asked > 0 ? 200 : few);
    const int size = GetParam().AtLeast(ranks);
    const std::string sets = SetOf(RanksFrom(0, 2, size)) + ";" + SetOf(RanksFrom(1, 1, size));
    RunOn(ranks,
          [&](rueda_context* context, int rank, int) {
            UseNames(context, rank, size, names, iterations);
          },
          {{"process_sets", sets}});
  }
}

// Threads -------------------------------------------------------------------------------------

// What one thread submits, and the allreduce that its callback submits in turn.
struct Chain {
  Chain(rueda_context* the_context, Task first_task, Task second_task, int rank)
      : context(the_context),
        first(std::move(first_task)),
        second(std::move(second_task)),
        running(context, first, rank),
        next(context, second, rank) {}

  void Submit() {
    rueda_completion completion = RUEDA_COMPLETION_INIT;
    completion.user = this;
    completion.callback = [](void* user, rueda_handle, rueda_status status) {
      EXPECT_EQ(status, RUEDA_OK);
      Chain& chain = *static_cast<Chain*>(user);
      chain.next.Submit();
      const std::lock_guard<std::mutex> lock(chain.mutex);
      chain.called = true;
      chain.changed.notify_all();
    };
    running.Submit(&completion);
  }

  void Check() {
    running.Check(first.members);
    {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return called; });
    }
    next.Check(second.members);
  }

  rueda_context* const context;
  const Task first;
  const Task second;
  Running running;
  Running next;
  std::mutex mutex;
  std::condition_variable changed;
  bool called = false;
};

TEST_P(Names, ManyThreadsOfOneContextMixKindsAndCallbacksSubmitAgain) {
  const int iterations = takes_long || !IsPlain() ? 10 : 100;
  RunOn(3, [&](rueda_context* context, int rank, int size) {
    // Those that all ranks take part in: a callback on every rank submits what comes next.
    const rueda_kind kinds[] = {RUEDA_ALLREDUCE, RUEDA_ALLGATHER, RUEDA_BROADCAST,
                                RUEDA_REDUCESCATTER, RUEDA_ALLTOALL};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 6; ++thread) {
      threads.emplace_back([&, thread] {
        const std::string name = "thread" + std::to_string(thread);
        for (int i = 0; i < iterations; ++i) {
          std::vector<std::unique_ptr<Chain>> chains;
          for (int k = 0; k < 5; ++k) {
            const uint32_t seed = Seed() + static_cast<uint32_t>(thread * 1'000 + i * 5 + k);
            const std::string part = name + "." + std::to_string(k);
            chains.push_back(std::make_unique<Chain>(
                context, SmallTask(kinds[(k + thread) % 5], part, size, seed),
                SmallTask(RUEDA_ALLREDUCE, part + " again", size, seed + 1), rank));
            chains.back()->Submit();
          }
          for (auto& chain : chains) chain->Check();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

}  // namespace
}  // namespace rueda::testing
