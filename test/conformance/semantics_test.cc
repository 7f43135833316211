// What holds for every kind of operation alike, on every way to run a job: tensors without elements
// and without dimensions, what may overlap, handles and callbacks, and that a rejected operation
// disturbs nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "test/conformance/tasks.h"
#include "test/support/jobs.h"

namespace rueda::testing {
namespace {

using ::testing::HasSubstr;

class Semantics : public JobTest {};
INSTANTIATE_TEST_SUITE_P(All, Semantics, ::testing::ValuesIn(AllSetups()),
                         [](const auto& setup) { return setup.param.name; });

// Of an operation between all ranks: of every kind but send and receive.
constexpr rueda_kind kCollectives[] = {RUEDA_ALLREDUCE, RUEDA_BROADCAST,     RUEDA_ALLGATHER,
                                       RUEDA_ALLTOALL,  RUEDA_REDUCESCATTER, RUEDA_REDUCE,
                                       RUEDA_GATHER,    RUEDA_SCATTER};

rueda_operation Collective(rueda_kind kind, const char* name, const rueda_tensor* input) {
  rueda_operation operation = OfKind(kind, name, input);
  operation.reduce_op = RUEDA_SUM;
  operation.root = 0;
  return operation;
}

bool HasResult(rueda_kind kind, int rank) {
  return kind == RUEDA_ALLGATHER || kind == RUEDA_ALLTOALL || kind == RUEDA_REDUCESCATTER ||
         kind == RUEDA_SCATTER || (kind == RUEDA_GATHER && rank == 0);
}

// Blocking calls ------------------------------------------------------------------------------

// Between hosts the data of blocking calls may come with the plan; that of others never does.
TEST_P(Semantics, RanksThatBlockMeetThoseThatDoNot) {
  RunOn(4, [](rueda_context* context, int rank, int size) {
    std::vector<int> all(static_cast<size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    for (uint32_t round = 0; round < 60; ++round) {
      const rueda_kind kind = kTaskKinds[round % std::size(kTaskKinds)];
      Task task = SmallTask(kind, round % 7 == 0 ? "" : "x" + std::to_string(kind), size, round);
      if (round % 5 == 4) task.row *= 400;  // of some dtypes too much for the plan
      const bool blocks = round % 4 == 0 || (round % 4 > 1 && (round + rank) % 2 == 0);
      if (!task.Has(rank)) continue;
      Running running(context, task, rank);
      ASSERT_NO_FATAL_FAILURE(blocks ? running.Execute() : running.Submit());
      ASSERT_NO_FATAL_FAILURE(running.Check(all)) << "round " << round;
    }
  });
}

// Stalls --------------------------------------------------------------------------------------

// Whoever has nothing under way sleeps, and reads nothing: somebody else must speak.
TEST_P(Semantics, ARankThatSleepsIsNamedByWhomItStalls) {
  RunOn(3,
        [](rueda_context* context, int rank, int) {
          std::vector<float> values(3, 1);
          const TensorOf tensor(values);
          const rueda_operation operation = Allreduce("used before", tensor.get());
          for (int i = 0; i < 3; ++i) {
            ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
          }
          // Rank 0 sleeps from before the others begin until they have given up.
          std::this_thread::sleep_for(std::chrono::milliseconds(rank == 0 ? 2'500 : 300));
          if (rank != 0) {
            EXPECT_EQ(Execute(context, operation), RUEDA_CANCELLED);
            EXPECT_THAT(std::string(rueda_last_error()), HasSubstr("missing: rank 0"));
          }
          rueda_status status;
          do {
            status = Execute(context, Barrier("end"));  // overdue too, on a machine that slow
          } while (status == RUEDA_CANCELLED);
          ASSERT_EQ(status, RUEDA_OK) << rueda_last_error();
        },
        {{"stall_warn_s", "0.5"}, {"stall_timeout_s", "1"}});
}

// Who asks in vain for the end of an operation learns who is missing, wherever the coordinator is.
TEST_P(Semantics, WhoIsMissingIsToldToARankThatAsks) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    std::vector<float> values(3, 1);
    const TensorOf tensor(values);
    std::string who = "submitted by ranks 0";
    for (int other = 2; other < size; ++other) who += ", " + std::to_string(other);
    who += "; missing: rank 1 (";
    for (const char* const name : {"named", static_cast<const char*>(nullptr)}) {
      const rueda_operation operation = Allreduce(name, tensor.get());
      rueda_handle handle = 0;
      if (rank != 1) {
        ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK);
        // The others' may have reached the coordinator already, or not yet.
        std::string text;
        do {
          ASSERT_EQ(rueda_explain(context, handle), RUEDA_DEADLINE_EXCEEDED);
          text = rueda_last_error();
        } while (text.find(who) == std::string::npos);
        EXPECT_THAT(text, HasSubstr("allreduce"));
        EXPECT_THAT(text, HasSubstr("has not ended; it goes on: "));
      }
      ASSERT_EQ(Execute(context, Barrier("both know")), RUEDA_OK) << rueda_last_error();
      if (rank == 1) {
        ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK);
      }
      ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(rueda_explain(context, handle), RUEDA_OK);
      ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
      EXPECT_EQ(rueda_explain(context, handle), RUEDA_NOT_FOUND);
    }
  });
}

// What a rank of another host has submitted, whose leader holds it back for the others there.
TEST(AskedFromAnotherHost, WhoHasSubmittedIsNotMissing) {
  RunRanks({.size = 4, .knobs = {{"hosts_fake", "2"}, {"stall_warn_s", "60"}}},
           [](rueda_context* context, int rank) {
             std::vector<float> values(3, 1);
             const TensorOf tensor(values);
             const rueda_operation operation = Allreduce("a", tensor.get());
             rueda_handle handle = 0;
             if (rank != 3) {
               ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK);
             }
             ASSERT_EQ(Execute(context, Barrier("submitted")), RUEDA_OK);
             if (rank == 0) {
               ASSERT_EQ(rueda_explain(context, handle), RUEDA_DEADLINE_EXCEEDED);
               EXPECT_THAT(rueda_last_error(),
                           HasSubstr("submitted by ranks 0-2; missing: rank 3 ("));
             }
             ASSERT_EQ(Execute(context, Barrier("asked")), RUEDA_OK);
             if (rank == 3) {
               ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK);
             }
             ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
             ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
           });
}

// Threads -------------------------------------------------------------------------------------

// About a nanosecond a turn, in which no other thread is let run.
void Pause(unsigned turns) {
  for (unsigned i = 0; i < turns; ++i) asm volatile("");
}

// The thread that polls does no work itself: what it has submitted must go on whatever the thread
// that blocks is just doing.
TEST_P(Semantics, WhoOnlyPollsIsServedBesideWhoBlocks) {
  RunOn(2, [](rueda_context* context, int rank, int size) {
    constexpr int kRounds = 300;
    std::atomic<int> round{-1};
    // Once a round, so that no later call does what an earlier one has left.
    std::thread blocking([&] {
      std::vector<float> values(3);
      const TensorOf tensor(values);
      for (int i = 0; i < kRounds; ++i) {
        while (round.load() < i) std::this_thread::yield();
        ASSERT_EQ(Execute(context, Allreduce("blocking", tensor.get())), RUEDA_OK);
      }
    });
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int i = 0; i < kRounds; ++i) {
      std::vector<float> values(3, 1);
      const TensorOf tensor(values);
      const rueda_operation operation = Allreduce("polled", tensor.get());
      rueda_handle handle = 0;
      round.store(i);
      Pause(random() % 10'000);
      ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK);
      for (int32_t done = 0; done == 0; std::this_thread::yield()) {
        ASSERT_EQ(rueda_poll(context, handle, &done), RUEDA_OK);
      }
      EXPECT_EQ(values[0], static_cast<float>(size));
      rueda_release(context, handle);
    }
    blocking.join();
  });
}

// Who says that it is going to wait, and polls: then nobody's call does the work. What is submitted
// behind it is nobody's to hold up either.
TEST_P(Semantics, WhoDoesNotWaitSoonThoughItSaidSoIsServed) {
  RunOn(2, [](rueda_context* context, int rank, int size) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int i = 0; i < 30; ++i) {
      std::vector<float> values[2] = {{1, 1, 1}, {2, 2, 2}};
      rueda_handle handles[2] = {};
      for (int k = 0; k < 2; ++k) {
        const TensorOf tensor(values[k]);
        rueda_operation operation = Allreduce(k == 0 ? "soon" : "behind", tensor.get());
        if (k == 0) operation.flags = RUEDA_OPERATION_WAIT_SOON;
        ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handles[k]), RUEDA_OK);
        Pause(random() % 1'000'000);
        if (i % 2 == 0) break;
      }
      for (int k = 0; k < 2 && handles[k] != 0; ++k) {
        for (int32_t done = 0; done == 0; std::this_thread::yield()) {
          ASSERT_EQ(rueda_poll(context, handles[k], &done), RUEDA_OK);
        }
        EXPECT_EQ(values[k][0], static_cast<float>((k + 1) * size));
        rueda_release(context, handles[k]);
      }
    }
  });
}

// The same beside a thread that waits, asleep, for what another rank submits later.
TEST_P(Semantics, WhoDoesNotWaitSoonIsServedBesideASleeper) {
  RunOn(2, [](rueda_context* context, int rank, int size) {
    std::vector<float> values(3), others(3);
    const TensorOf tensor(values), other(others);
    const auto poll = [&](const char* name) {
      std::fill(values.begin(), values.end(), 1.f);
      rueda_operation operation = Allreduce(name, tensor.get());
      operation.flags = RUEDA_OPERATION_WAIT_SOON;
      rueda_handle handle = 0;
      ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK);
      for (int32_t done = 0; done == 0; std::this_thread::yield()) {
        ASSERT_EQ(rueda_poll(context, handle, &done), RUEDA_OK);
      }
      EXPECT_EQ(values[0], static_cast<float>(size));
      rueda_release(context, handle);
    };
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int i = 0; i < 20; ++i) {
      poll("before");  // from now on the background thread looks again before long
      const auto late = [&] {
        ASSERT_EQ(Execute(context, Allreduce("late", other.get())), RUEDA_OK);
      };
      std::thread sleeper;
      if (rank == 0) {
        sleeper = std::thread(late);
        Pause(random() % 4'000'000);
      }
      poll("soon");
      rank == 0 ? sleeper.join() : late();
    }
  });
}

// Shapes --------------------------------------------------------------------------------------

TEST_P(Semantics, AGroupMayHaveTensorsWithoutElements) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (const size_t elements : {size_t{0}, size_t{5}, size_t{100'000}}) {
      void* memory = nullptr;
      ASSERT_EQ(rueda_mem_alloc(context, elements * 4 + 4, &memory), RUEDA_OK);
      auto* const values = static_cast<float*>(memory);
      std::fill_n(values, elements, static_cast<float>(rank + 1));
      const TensorOf some(values, {static_cast<int64_t>(elements)}, RUEDA_FLOAT32);
      const TensorOf none(nullptr, {0}, RUEDA_FLOAT32);
      for (const bool first : {true, false}) {
        const rueda_operation group[] = {
            Allreduce("a", (first ? none : some).get(), RUEDA_AVERAGE),
            Allreduce("b", (first ? some : none).get(), RUEDA_AVERAGE)};
        ASSERT_EQ(rueda_execute(context, group, 2, RUEDA_FOREVER, nullptr), RUEDA_OK)
            << rueda_last_error();
        for (size_t i = 0; i < elements; ++i) {
          ASSERT_EQ(values[i], static_cast<float>(size + 1) / 2);
        }
      }
      ASSERT_EQ(rueda_mem_free(memory), RUEDA_OK);
    }
  });
}

// Their data pointers are null: there is nothing that they could point to.
TEST_P(Semantics, TensorsWithoutElementsGoThroughEveryKind) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{0}, {0, 5}, {size, 0}, {size, 2, 0, 3}}) {
      const TensorOf tensor(nullptr, shape, RUEDA_FLOAT32);
      for (const rueda_kind kind : kCollectives) {
        const rueda_operation operation = Collective(kind, "empty", tensor.get());
        rueda_handle handle = 0;
        ASSERT_EQ(rueda_execute(context, &operation, 1, RUEDA_FOREVER, &handle), RUEDA_OK)
            << kind << ": " << rueda_last_error();
        if (HasResult(kind, rank)) {
          rueda_result result = RUEDA_RESULT_INIT;
          ASSERT_EQ(rueda_result_take(context, handle, 0, &result), RUEDA_OK) << rueda_last_error();
          const bool joined = kind == RUEDA_ALLGATHER || kind == RUEDA_GATHER;
          const bool divided = kind == RUEDA_REDUCESCATTER || kind == RUEDA_SCATTER;
          ASSERT_EQ(result.tensor.ndim, static_cast<int32_t>(shape.size()));
          EXPECT_EQ(result.tensor.shape[0], joined    ? shape[0] * size
                                            : divided ? shape[0] / size
                                                      : shape[0]);
          for (size_t i = 1; i < shape.size(); ++i) EXPECT_EQ(result.tensor.shape[i], shape[i]);
          rueda_result_free(&result);
        }
        ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
      }
    }
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
  });
}

TEST_P(Semantics, ScalarsGoThroughEveryKindThatDoesNotCountRows) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (const rueda_kind kind : kCollectives) {
      float value = static_cast<float>(rank + 1);
      const TensorOf scalar(&value, {}, RUEDA_FLOAT32);
      const rueda_operation operation = Collective(kind, "scalar", scalar.get());
      const bool by_rows =
          kind != RUEDA_ALLREDUCE && kind != RUEDA_BROADCAST && kind != RUEDA_REDUCE;
      ASSERT_EQ(Execute(context, operation), by_rows ? RUEDA_INVALID_ARGUMENT : RUEDA_OK) << kind;
      if (by_rows) {
        EXPECT_THAT(rueda_last_error(), HasSubstr("a scalar has no first dimension")) << kind;
      }
      const int sum = size * (size + 1) / 2;
      const bool reduced = kind == RUEDA_ALLREDUCE || (kind == RUEDA_REDUCE && rank == 0);
      const int expected = reduced ? sum : kind == RUEDA_BROADCAST ? 1 : rank + 1;
      EXPECT_EQ(value, static_cast<float>(expected)) << kind;
    }
    if (rank > 1) return;
    double value = rank + 5;
    const TensorOf scalar(&value, {}, RUEDA_FLOAT64);
    rueda_operation operation = OfKind(rank == 0 ? RUEDA_SEND : RUEDA_RECV, "scalar", nullptr);
    (rank == 0 ? operation.input : operation.output) = scalar.get();
    operation.root = 1 - rank;
    ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(value, 5);
  });
}

TEST_P(Semantics, TensorsThatAreNotContiguousAreRefusedInEveryKind) {
  RunOn(2, [](rueda_context* context, int rank, int size) {
    std::vector<float> data(static_cast<size_t>(4 * size), 1), more(data.size() * 4);
    const TensorOf dense(data.data(), {2 * size, 2}, RUEDA_FLOAT32);
    rueda_tensor strided = *dense.get();
    int64_t columns_apart[] = {2, 2};
    strided.strides = columns_apart;
    std::vector<rueda_kind> kinds(std::begin(kCollectives), std::end(kCollectives));
    kinds.push_back(RUEDA_SEND);
    for (const rueda_kind kind : kinds) {
      rueda_operation operation = Collective(kind, "strided", &strided);
      operation.root = kind == RUEDA_SEND ? 1 - rank % 2 : 0;
      EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT) << kind;
      EXPECT_THAT(rueda_last_error(),
                  HasSubstr("dimension 1 has stride 2 where row-major order has "
                            "1; copy it into a contiguous one"));
      operation.input = dense.get();
      operation.output = &strided;
      if (kind == RUEDA_SEND) operation.kind = RUEDA_RECV;
      if ((kind == RUEDA_REDUCE || kind == RUEDA_GATHER) && rank != 0) continue;  // none there
      EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT) << kind;
      EXPECT_THAT(rueda_last_error(), HasSubstr("not contiguous")) << kind;
    }
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
    // Of dimensions of one element, and without any, the stride says nothing.
    const TensorOf row(data.data(), {1, 4}, RUEDA_FLOAT32);
    rueda_tensor loose = *row.get();
    int64_t any[] = {77, 1};
    loose.strides = any;
    EXPECT_EQ(Execute(context, Allreduce("loose", &loose)), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(data[3], static_cast<float>(size));
  });
}

// Overlaps ------------------------------------------------------------------------------------

TEST_P(Semantics, AnOutputMayBeTheInputWhereTheyAreOfOneShape) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (const rueda_kind kind : {RUEDA_ALLREDUCE, RUEDA_BROADCAST, RUEDA_REDUCE}) {
      for (const int64_t elements : {5, 30'000}) {
        for (const bool same : {true, false}) {
          std::vector<float> input(elements, static_cast<float>(rank + 1)), apart(elements, -1);
          std::vector<float>& output = same ? input : apart;
          const TensorOf in(input), out(output);
          rueda_operation operation = Collective(kind, "aliased", in.get());
          operation.output = out.get();
          ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
          const bool gets = kind != RUEDA_REDUCE || rank == 0;
          const int expected = !gets                     ? (same ? rank + 1 : -1)
                               : kind == RUEDA_BROADCAST ? 1
                                                         : size * (size + 1) / 2;
          ASSERT_EQ(output, std::vector<float>(elements, static_cast<float>(expected))) << kind;
          if (!same) {
            ASSERT_EQ(input, std::vector<float>(elements, static_cast<float>(rank + 1))) << kind;
          }
        }
      }
    }
  });
}

TEST_P(Semantics, AnAllgathersInputMayLieWhereItEndsUp) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (const int64_t elements : {3, 50'000}) {
      std::vector<int32_t> all(elements * size, -1);
      int32_t* const own = all.data() + elements * rank;
      std::fill(own, own + elements, rank);
      const TensorOf in(own, {elements}, RUEDA_INT32), out(all);
      rueda_operation operation = Allgather("placed", in.get());
      operation.output = out.get();
      ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
      for (int64_t i = 0; i < elements * size; ++i) ASSERT_EQ(all[i], i / elements);
    }
  });
}

// By one element, to either side. Nobody else is kept waiting.
TEST_P(Semantics, InputsAndOutputsThatOverlapInPartAreRefusedInEveryKind) {
  RunOn(2, [](rueda_context* context, int rank, int size) {
    const int64_t elements = 2 * size;
    std::vector<float> memory(static_cast<size_t>(4 * elements * size), 1);
    float* const middle = memory.data() + memory.size() / 2;
    for (const rueda_kind kind : kCollectives) {
      const bool rooted = kind == RUEDA_REDUCE || kind == RUEDA_GATHER || kind == RUEDA_SCATTER;
      if (rooted && rank != 0) continue;  // there is only one of the two
      const bool joined = kind == RUEDA_ALLGATHER || kind == RUEDA_GATHER;
      const bool divided = kind == RUEDA_REDUCESCATTER || kind == RUEDA_SCATTER;
      const int64_t outputs = joined ? elements * size : divided ? elements / size : elements;
      const TensorOf in(middle, {elements}, RUEDA_FLOAT32);
      const auto execute = [&](float* at) {
        const TensorOf out(at, {outputs}, RUEDA_FLOAT32);
        rueda_operation operation = Collective(kind, "overlapping", in.get());
        operation.output = out.get();
        return Execute(context, operation);
      };
      for (float* const at : {middle - outputs + 1, middle + elements - 1}) {
        EXPECT_EQ(execute(at), RUEDA_INVALID_ARGUMENT) << kind;
        EXPECT_THAT(rueda_last_error(), HasSubstr("input and output overlap")) << kind;
      }
      if (rooted) continue;
      // One element further they are apart.
      EXPECT_EQ(execute(middle - outputs), RUEDA_OK) << kind << rueda_last_error();
      EXPECT_EQ(execute(middle + elements), RUEDA_OK) << kind << rueda_last_error();
    }
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
  });
}

// A rank that gets nothing may name any place for it.
TEST_P(Semantics, AnOutputWithoutElementsOverlapsNothing) {
  RunOn(2, [](rueda_context* context, int rank, int size) {
    std::vector<float> data(4, 1), one(1);
    const TensorOf in(data.data(), {1, 4}, RUEDA_FLOAT32);  // one row: it is rank 0's
    std::vector<float> row(4);
    const TensorOf whole(row.data(), {1, 4}, RUEDA_FLOAT32);
    const TensorOf nothing(data.data() + 2, {0, 4}, RUEDA_FLOAT32);
    rueda_operation operation = Collective(RUEDA_REDUCESCATTER, "r", in.get());
    operation.output = rank == 0 ? whole.get() : nothing.get();
    ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(row[3], rank == 0 ? static_cast<float>(size) : 0);
  });
}

// Handles and callbacks -----------------------------------------------------------------------

std::vector<int> Everybody(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void ExpectStale(rueda_context* context, rueda_handle handle, rueda_kind kind) {
  int32_t done = -1;
  size_t count = 0;
  rueda_result result = RUEDA_RESULT_INIT;
  rueda_error error = RUEDA_ERROR_INIT;
  EXPECT_EQ(rueda_poll(context, handle, &done), RUEDA_NOT_FOUND) << kind;
  EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_NOT_FOUND) << kind;
  EXPECT_EQ(rueda_wait_on_stream(context, handle, nullptr), RUEDA_NOT_FOUND) << kind;
  EXPECT_EQ(rueda_handle_error(context, handle, &error), RUEDA_NOT_FOUND) << kind;
  EXPECT_EQ(rueda_result_take(context, handle, 0, &result), RUEDA_NOT_FOUND) << kind;
  EXPECT_EQ(rueda_result_splits(context, handle, 0, nullptr, 0, &count), RUEDA_NOT_FOUND) << kind;
  EXPECT_EQ(rueda_release(context, handle), RUEDA_NOT_FOUND) << kind;
  EXPECT_EQ(done, -1);
}

TEST_P(Semantics, AReleasedHandleOfAnyKindIsNotFound) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (const rueda_kind kind : kTaskKinds) {
      const Task task = SmallTask(kind, "t", size, 5);
      for (const bool ended : {true, false}) {
        Running running(context, task, rank);
        if (task.Has(rank)) {
          ASSERT_NO_FATAL_FAILURE(running.Submit());
          if (ended) {
            ASSERT_NO_FATAL_FAILURE(running.Check(task.members));
          } else {
            ASSERT_EQ(rueda_release(context, running.handle()), RUEDA_OK);
          }
          ExpectStale(context, running.handle(), kind);
        }
        // What was released goes on, and ends before what comes later: its name is free.
        ASSERT_EQ(Execute(context, Barrier("next")), RUEDA_OK) << rueda_last_error();
      }
    }
  });
}

// How often an operation's callback has come.
struct Calls {
  std::atomic<int> count{0};
  std::atomic<rueda_status> status{RUEDA_UNKNOWN};
  std::atomic<rueda_handle> handle{0};
};

rueda_completion CountIn(Calls* calls, uint32_t flags) {
  rueda_completion completion = RUEDA_COMPLETION_INIT;
  completion.user = calls;
  completion.flags = flags;
  completion.callback = [](void* user, rueda_handle handle, rueda_status status) {
    Calls& mine = *static_cast<Calls*>(user);
    mine.status = status;
    mine.handle = handle;
    ++mine.count;
  };
  return completion;
}

TEST_P(Semantics, CallbacksOfEveryKindComeOnceHoweverItEnds) {
  const int size = GetParam().multiple_of == 2 ? 4 : 3;
  RunJoiners({size, GetParam()}, [&](int rank, const testing::Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    std::vector<std::unique_ptr<Calls>> calls, late;
    std::vector<std::unique_ptr<Task>> tasks;
    std::vector<std::unique_ptr<Running>> running;
    std::vector<rueda_status> expected;
    int number = 0;
    for (const rueda_kind kind : kTaskKinds) {
      for (const uint32_t flags : {0u, static_cast<uint32_t>(RUEDA_COMPLETION_INLINE)}) {
        for (const bool agreed : {true, false}) {
          tasks.push_back(
              std::make_unique<Task>(SmallTask(kind, "t" + std::to_string(number++), size, 3)));
          Task& task = *tasks.back();
          if (!task.Has(rank)) continue;
          if (!agreed && rank == task.root) {  // somebody else's rows are of another length
            task.kind = kind == RUEDA_BARRIER ? RUEDA_ALLREDUCE : kind;
            ++task.row;
          }
          calls.push_back(std::make_unique<Calls>());
          const rueda_completion completion = CountIn(calls.back().get(), flags);
          running.push_back(std::make_unique<Running>(context, task, rank));
          ASSERT_NO_FATAL_FAILURE(running.back()->Submit(&completion));
          expected.push_back(agreed ? RUEDA_OK : RUEDA_INVALID_ARGUMENT);
          if (number % 3 == 0) {  // whether it is waited for or not
            ASSERT_EQ(rueda_wait(context, running.back()->handle(), RUEDA_FOREVER),
                      expected.back());
          }
          late.push_back(std::make_unique<Calls>());
          const rueda_completion added = CountIn(late.back().get(), 0);
          ASSERT_EQ(rueda_on_completion(context, running.back()->handle(), &added), RUEDA_OK)
              << rueda_last_error();
          if (number % 4 == 0) {
            ASSERT_EQ(rueda_release(context, running.back()->handle()), RUEDA_OK);
          }
        }
      }
    }
    // All have come when shutdown returns.
    ASSERT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(calls[i]->count, 1) << i;
      EXPECT_EQ(calls[i]->status, expected[i]) << i;
      EXPECT_EQ(calls[i]->handle, running[i]->handle()) << i;
      EXPECT_EQ(late[i]->count, 1) << i;
      EXPECT_EQ(late[i]->status, expected[i]) << i;
      EXPECT_EQ(late[i]->handle, running[i]->handle()) << i;
    }
    const rueda_completion too_late = CountIn(late.back().get(), 0);
    EXPECT_EQ(rueda_on_completion(context, running.back()->handle(), &too_late),
              RUEDA_FAILED_PRECONDITION);
    rueda_context_destroy(context);
  });
}

// Without a wait: what poll says is enough, in a callback too.
TEST_P(Semantics, WhatPollShowsAsDoneIsThere) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (int round = 0; round < 20; ++round) {
      for (const rueda_kind kind : kTaskKinds) {
        Task task = SmallTask(kind, "polled", size, static_cast<uint32_t>(round));
        if (round % 4 == 0) task.rows = 12'000;
        if (!task.Has(rank)) continue;
        Running running(context, task, rank);
        ASSERT_NO_FATAL_FAILURE(running.Submit());
        int32_t done = 0;
        while (done == 0) {
          ASSERT_EQ(rueda_poll(context, running.handle(), &done), RUEDA_OK) << rueda_last_error();
          if (done == 0) std::this_thread::yield();
        }
        ASSERT_NO_FATAL_FAILURE(running.CheckValues(task.members));
        ASSERT_EQ(rueda_wait(context, running.handle(), 0), RUEDA_OK);
        ASSERT_EQ(rueda_release(context, running.handle()), RUEDA_OK);
      }
    }
  });
}

// Rejections ----------------------------------------------------------------------------------

// Rank 1 has another idea of the operation than the rest.
Task Differing(Task task, int rank) {
  if (rank != 1) return task;
  if (task.kind == RUEDA_BARRIER) {
    task.kind = RUEDA_ALLREDUCE;
  } else {
    ++task.row;
  }
  return task;
}

void ExpectRejected(rueda_context* context, const Task& task, int rank) {
  Running running(context, task, rank);
  ASSERT_NO_FATAL_FAILURE(running.Submit());
  EXPECT_EQ(rueda_wait(context, running.handle(), RUEDA_FOREVER), RUEDA_INVALID_ARGUMENT);
  EXPECT_THAT(rueda_last_error(), HasSubstr("the ranks disagree on")) << task.kind;
  EXPECT_THAT(rueda_last_error(), HasSubstr("'x")) << task.kind;
  ASSERT_EQ(rueda_release(context, running.handle()), RUEDA_OK);
}

void ExpectGood(rueda_context* context, const Task& task, int rank) {
  Running running(context, task, rank);
  ASSERT_NO_FATAL_FAILURE(running.Submit());
  ASSERT_NO_FATAL_FAILURE(running.Check(task.members));
}

TEST_P(Semantics, ARejectedOperationLeavesTheOthersAndItsNameAlone) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (const rueda_kind kind : kTaskKinds) {
      for (int round = 0; round < 2; ++round) {  // the name is new, and it is not
        Task before = SmallTask(RUEDA_ALLREDUCE, "before", size, 1);
        Task after = SmallTask(RUEDA_ALLGATHER, "after", size, 2);
        const Task good = SmallTask(kind, "x" + std::to_string(kind), size, 4 * 3 * 5 * 7);
        Running first(context, before, rank), last(context, after, rank);
        ASSERT_NO_FATAL_FAILURE(first.Submit());
        if (good.Has(rank)) {
          ASSERT_NO_FATAL_FAILURE(ExpectRejected(context, Differing(good, rank), rank));
          ASSERT_NO_FATAL_FAILURE(last.Submit());
          ASSERT_NO_FATAL_FAILURE(ExpectGood(context, good, rank));
        } else {
          ASSERT_NO_FATAL_FAILURE(last.Submit());
        }
        ASSERT_NO_FATAL_FAILURE(last.Check(Everybody(size)));
        ASSERT_NO_FATAL_FAILURE(first.Check(Everybody(size)));
      }
    }
  });
}

// Rank 0 begins early with what is its only operation, and then submits another. The others come to
// the first one in time, or after the second, or with another tensor of that name.
TEST_P(Semantics, WhatIsBegunEarlyMayBeOvertakenOrRejected) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    std::mt19937 random(17);  // the same on every rank
    for (int round = 0; round < 200; ++round) {
      const bool rejected = random() % 3 == 0, overtaken = random() % 2 == 0;
      const auto looks = static_cast<int>(random() % 300);
      const size_t elements = round % 4 == 0 ? 20'000 : 1;  // in blocks, or in slots
      std::vector<float> early(elements, static_cast<float>(round + rank)), late = {1000};
      std::vector<float> wrong(elements + 1);
      const float sum = static_cast<float>(round * size + size * (size - 1) / 2);
      const TensorOf early_tensor(early), late_tensor(late), wrong_tensor(wrong);
      const rueda_operation late_sum = Allreduce("late", late_tensor.get());
      const rueda_operation first =
          Allreduce("early", (rejected && rank > 0 ? wrong_tensor : early_tensor).get());
      rueda_status status;
      if (rank == 0) {
        rueda_handle handle = 0;
        ASSERT_EQ(rueda_submit(context, &first, 1, nullptr, &handle), RUEDA_OK);
        int32_t done = 0;
        for (int i = 0; i < looks; ++i) ASSERT_EQ(rueda_poll(context, handle, &done), RUEDA_OK);
        ASSERT_EQ(Execute(context, late_sum), RUEDA_OK) << rueda_last_error();
        status = rueda_wait(context, handle, RUEDA_FOREVER);
        rueda_release(context, handle);
      } else {
        if (overtaken) {
          ASSERT_EQ(Execute(context, late_sum), RUEDA_OK) << rueda_last_error();
        }
        status = Execute(context, first);
        if (!overtaken) {
          ASSERT_EQ(Execute(context, late_sum), RUEDA_OK) << rueda_last_error();
        }
      }
      ASSERT_EQ(late[0], 1000.0f * static_cast<float>(size));
      ASSERT_EQ(status, rejected ? RUEDA_INVALID_ARGUMENT : RUEDA_OK) << rueda_last_error();
      if (rejected) {
        // What comes next is of a kind that is never early, or is early again.
        if (overtaken) {
          ASSERT_EQ(Execute(context, Broadcast("b", wrong_tensor.get(), 0)), RUEDA_OK);
        }
        ASSERT_EQ(Execute(context, Allreduce("early", early_tensor.get())), RUEDA_OK);
      }
      ASSERT_EQ(early, std::vector<float>(elements, sum)) << round;
    }
  });
}

TEST_P(Semantics, ARejectedGroupsNamesAreFreeAloneAndTogether) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (const rueda_kind kind : {RUEDA_ALLREDUCE, RUEDA_ALLGATHER, RUEDA_REDUCESCATTER}) {
      for (int round = 0; round < 2; ++round) {
        Task group = SmallTask(kind, "x" + std::to_string(kind), size, 4);
        group.parts = 3;
        Task smaller = group;  // on rank 1 a part is missing
        smaller.parts = rank == 1 ? 2 : 3;
        ASSERT_NO_FATAL_FAILURE(ExpectRejected(context, Differing(group, rank), rank));
        ASSERT_NO_FATAL_FAILURE(ExpectRejected(context, smaller, rank));
        for (const char* part : {".2", "", ".1"}) {
          Task alone = group;
          alone.name += part;
          alone.parts = 1;
          ASSERT_NO_FATAL_FAILURE(ExpectGood(context, alone, rank));
        }
        ASSERT_NO_FATAL_FAILURE(ExpectGood(context, group, rank));
      }
    }
  });
}

TEST_P(Semantics, ARejectedProcessSetCanBeMadeAtOnce) {
  RunOn(3, [](rueda_context* context, int rank, int) {
    const int32_t ranks[] = {0, rank == 1 ? 1 : 2}, agreed[] = {0, 2};
    int32_t id = -1;
    for (int round = 0; round < 2; ++round) {
      EXPECT_EQ(rueda_process_set_add(context, ranks, 2, RUEDA_FOREVER, &id),
                RUEDA_INVALID_ARGUMENT);
      EXPECT_THAT(rueda_last_error(), HasSubstr("disagree on the list of ranks"));
      ASSERT_EQ(rueda_process_set_add(context, agreed, 2, RUEDA_FOREVER, &id), RUEDA_OK)
          << rueda_last_error();
      EXPECT_EQ(id, 1);
      ASSERT_EQ(rueda_process_set_remove(context, id, RUEDA_FOREVER), RUEDA_OK);
    }
  });
}

}  // namespace
}  // namespace rueda::testing
