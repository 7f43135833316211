// Programs made up from a seed, against a model of one process: all kinds, dtypes and reduce
// operations, named, unnamed and grouped, of any priority, in process sets that come and go, with
// joins. All ranks run the same program, but each submits its named operations in an order of its
// own and waits in another. Values are small integers, so that every result is exact.
//
// The seed is GoogleTest's (GTEST_RANDOM_SEED), which is 0 but in test/soak; SOAK_PROPERTY_ROUNDS
// says how many programs are run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>

#include "test/conformance/tasks.h"
#include "test/support/jobs.h"

namespace rueda::testing {
namespace {

class Property : public JobTest {};
INSTANTIATE_TEST_SUITE_P(All, Property, ::testing::ValuesIn(AllSetups()),
                         [](const auto& setup) { return setup.param.name; });

// The program of one rank. `random` is the same on all ranks, `own` is not.
class Program {
 public:
  Program(rueda_context* context, int rank, int size, uint32_t seed)
      : context_(context), rank_(rank), random_(seed), own_(seed * 31 + rank + 1) {
    sets_.emplace_back(RUEDA_WORLD, std::vector<int>(size));
    std::iota(sets_[0].second.begin(), sets_[0].second.end(), 0);
  }

  void Run(int steps) {
    for (int step = 0; step < steps && !::testing::Test::HasFailure(); ++step) {
      ChangeSets();
      Submit();
      if (Pick(3) == 0) Join(step);
    }
  }

 private:
  int Pick(int below) { return static_cast<int>(random_() % below); }

  void ChangeSets() {
    const int world = static_cast<int>(sets_[0].second.size());
    if (sets_.size() > 1 && Pick(3) == 0) {
      const size_t gone = 1 + Pick(static_cast<int>(sets_.size()) - 1);
      ASSERT_EQ(rueda_process_set_remove(context_, sets_[gone].first, RUEDA_FOREVER), RUEDA_OK)
          << rueda_last_error();
      sets_.erase(sets_.begin() + static_cast<std::ptrdiff_t>(gone));
    }
    std::vector<int32_t> ranks;
    for (int rank = 0; rank < world; ++rank) {
      if (Pick(2) == 0) ranks.push_back(rank);
    }
    const std::vector<int> members(ranks.begin(), ranks.end());
    const bool known = std::any_of(sets_.begin(), sets_.end(),
                                   [&](const auto& set) { return set.second == members; });
    if (ranks.empty() || known || sets_.size() > 3) return;
    int32_t id = -1;
    ASSERT_EQ(rueda_process_set_add(context_, ranks.data(), ranks.size(), RUEDA_FOREVER, &id),
              RUEDA_OK)
        << rueda_last_error();
    sets_.emplace_back(id, members);
  }

  // A dtype and what reduces it, scaled by no more than keeps all results exact.
  void PickReduction(Task* task) {
    task->type = static_cast<Type>(Pick(static_cast<int>(Type::kCount)));
    const std::vector<rueda_reduce_op> ops = OpsOf(task->type);
    task->op = ops[Pick(static_cast<int>(ops.size()))];
    if (task->op == RUEDA_PRODUCT) return;  // up to 3^4 already
    if (Pick(4) == 0) task->prescale = 2;
    if (Pick(4) == 0) task->postscale = 2;
  }

  Task MakeTask(int number) {
    Task task;
    const auto& [set, members] = sets_[Pick(3) == 0 ? Pick(static_cast<int>(sets_.size())) : 0];
    task.set = set;
    task.members = members;
    const rueda_kind kKinds[] = {RUEDA_ALLREDUCE, RUEDA_ALLREDUCE,     RUEDA_ALLREDUCE,
                                 RUEDA_BROADCAST, RUEDA_ALLGATHER,     RUEDA_BARRIER,
                                 RUEDA_ALLTOALL,  RUEDA_REDUCESCATTER, RUEDA_REDUCE,
                                 RUEDA_GATHER,    RUEDA_SCATTER,       RUEDA_SEND};
    task.kind = kKinds[Pick(static_cast<int>(std::size(kKinds)))];
    if (task.kind == RUEDA_SEND && members.size() < 2) task.kind = RUEDA_BARRIER;
    PickReduction(&task);
    const int root = Pick(static_cast<int>(members.size()));
    task.root = members[root];
    if (task.kind == RUEDA_SEND) {
      task.peer = members[(root + 1 + Pick(static_cast<int>(members.size()) - 1)) % members.size()];
    }
    task.rows = Pick(10) == 0 ? Pick(20'000) : Pick(40);
    task.row = Pick(4);
    task.seed = static_cast<uint32_t>(random_());
    task.priority = Pick(3) - 1;
    task.name = Pick(3) == 0 ? "" : "t" + std::to_string(number);
    const bool groups = task.kind == RUEDA_ALLREDUCE || task.kind == RUEDA_ALLGATHER ||
                        task.kind == RUEDA_REDUCESCATTER;
    if (groups && Pick(4) == 0) task.parts = 2 + Pick(3);
    return task;
  }

  // Named ones in an order of this rank's own; unnamed ones keep their places.
  void Submit() {
    std::vector<Task> tasks;
    for (int t = 0; t < 25; ++t) tasks.push_back(MakeTask(t));
    std::vector<const Task*> order, named;
    for (const Task& task : tasks) {
      if (!task.Has(rank_)) continue;
      order.push_back(&task);
      if (!task.name.empty()) named.push_back(&task);
    }
    std::shuffle(named.begin(), named.end(), own_);
    for (const Task*& task : order) {
      if (task->name.empty()) continue;
      task = named.back();
      named.pop_back();
    }
    std::vector<std::unique_ptr<Running>> running;
    for (const Task* task : order) {
      running.push_back(std::make_unique<Running>(context_, *task, rank_));
      ASSERT_NO_FATAL_FAILURE(running.back()->Submit());
      waits_.emplace_back(running.back().get(), task);
    }
    std::shuffle(waits_.begin(), waits_.end(), own_);
    for (const auto& [operation, task] : waits_) {
      ASSERT_NO_FATAL_FAILURE(operation->Check(task->members));
    }
    waits_.clear();
  }

  // Member i of a set has done `batches[i]` allreduces when it joins.
  void Join(int step) {
    const auto& [set, members] = sets_[Pick(static_cast<int>(sets_.size()))];
    std::vector<int> batches;
    for (size_t i = 0; i < members.size(); ++i) batches.push_back(Pick(5));
    const auto self = std::find(members.begin(), members.end(), rank_);
    const bool takes_part = self != members.end();
    // Whoever joins while two others still send and receive would fail that for them.
    if (takes_part) {
      rueda_operation barrier = Barrier();
      barrier.process_set = set;
      ASSERT_EQ(Execute(context_, barrier), RUEDA_OK) << rueda_last_error();
    }
    for (int batch = 0; batch < 5; ++batch) {
      Task task;
      task.set = set;
      PickReduction(&task);
      task.rows = Pick(Pick(3) == 0 ? 30'000 : 3'000);  // of shared memory: small and staged
      task.seed = static_cast<uint32_t>(random_());
      task.priority = Pick(3) - 1;
      task.name = batch % 2 == 0 ? "" : "j" + std::to_string(batch);
      task.members = members;
      std::vector<int> live;
      for (size_t i = 0; i < members.size(); ++i) {
        if (batches[i] > batch) live.push_back(members[i]);
      }
      if (std::find(live.begin(), live.end(), rank_) == live.end()) continue;
      Running running(context_, task, rank_);
      ASSERT_NO_FATAL_FAILURE(running.Submit());
      ASSERT_NO_FATAL_FAILURE(running.Check(live));
    }
    if (!takes_part) return;
    int32_t last = -1;
    ASSERT_EQ(rueda_join(context_, set, RUEDA_FOREVER, &last), RUEDA_OK) << rueda_last_error();
    EXPECT_NE(std::find(members.begin(), members.end(), last), members.end()) << "step " << step;
  }

  rueda_context* const context_;
  const int rank_;
  std::mt19937 random_;
  std::mt19937 own_;
  std::vector<std::pair<int32_t, std::vector<int>>> sets_;
  std::vector<std::pair<Running*, const Task*>> waits_;
};

TEST_P(Property, ProgramsMadeUpFromASeedFollowTheModel) {
  const char* const asked = std::getenv("SOAK_PROPERTY_ROUNDS");
  const int rounds = asked != nullptr ? std::atoi(asked) : 1;
  const uint32_t base = static_cast<uint32_t>(::testing::UnitTest::GetInstance()->random_seed());
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    for (const int ranks : {2, 3, 4}) {
      const uint32_t seed = base * 1'000 + static_cast<uint32_t>(round) * 10 + ranks;
      SCOPED_TRACE("seed " + std::to_string(seed));
      RunOn(ranks, [&](rueda_context* context, int rank, int size) {
        Program(context, rank, size, seed).Run(kSanitized ? 4 : 12);
      });
    }
  }
}

}  // namespace
}  // namespace rueda::testing
