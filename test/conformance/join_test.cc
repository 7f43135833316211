// Joining, and process sets that come and go, on every way to run a job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "test/support/jobs.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using ::testing::HasSubstr;

class Join : public JobTest {};
INSTANTIATE_TEST_SUITE_P(All, Join, ::testing::ValuesIn(AllSetups()),
                         [](const auto& setup) { return setup.param.name; });

int32_t JoinAndTellTheLast(rueda_context* context, int32_t set = RUEDA_WORLD) {
  int32_t last = -1;
  EXPECT_EQ(rueda_join(context, set, RUEDA_FOREVER, &last), RUEDA_OK) << rueda_last_error();
  return last;
}

// Rank r has r + 1 batches. The rank with the most joins last, and all hear of it.
TEST_P(Join, UnevenInputsGoOnWithoutThoseWhoHaveJoined) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int batch = 0; batch <= rank; ++batch) {
        const int live = size - batch;  // ranks batch, batch + 1, ...
        const int first = batch;
        for (const int64_t elements : {3, 30'000, 150'000}) {
          std::vector<float> sum(elements, static_cast<float>(rank + 1)), average = sum, mean = sum;
          std::vector<int32_t> low(elements, rank - 7), high(elements, rank - 7);
          std::vector<int64_t> product(elements, rank + 2);
          std::vector<int8_t> large(elements, 120), large_mean = large;
          std::vector<uint8_t> all(elements, static_cast<uint8_t>(0xF0 | rank));
          const TensorOf s(sum), a(average), m(mean), l(low), h(high), p(product), b(all), g(large),
              h8(large_mean);
          rueda_operation operation = Allreduce("sum", s.get());
          operation.prescale = 2;
          ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
          ASSERT_EQ(Execute(context, Allreduce("average", a.get(), RUEDA_AVERAGE)), RUEDA_OK);
          ASSERT_EQ(Execute(context, Allreduce(nullptr, m.get(), RUEDA_AVERAGE_LIVE)), RUEDA_OK);
          ASSERT_EQ(Execute(context, Allreduce("large", g.get(), RUEDA_AVERAGE)), RUEDA_OK);
          ASSERT_EQ(Execute(context, Allreduce("live", h8.get(), RUEDA_AVERAGE_LIVE)), RUEDA_OK);
          ASSERT_EQ(Execute(context, Allreduce("low", l.get(), RUEDA_MIN)), RUEDA_OK);
          ASSERT_EQ(Execute(context, Allreduce("high", h.get(), RUEDA_MAX)), RUEDA_OK);
          ASSERT_EQ(Execute(context, Allreduce("product", p.get(), RUEDA_PRODUCT)), RUEDA_OK);
          ASSERT_EQ(Execute(context, Allreduce("all", b.get(), RUEDA_BAND)), RUEDA_OK);
          int total = 0, and_of_all = 0xFF;
          int64_t times = 1;
          for (int r = first; r < size; ++r) {
            total += r + 1;
            times *= r + 2;
            and_of_all &= 0xF0 | r;
          }
          for (const int64_t i : {int64_t{0}, elements / 2, elements - 1}) {
            ASSERT_EQ(sum[i], static_cast<float>(2 * total));
            ASSERT_FLOAT_EQ(average[i], static_cast<float>(total) / static_cast<float>(size));
            ASSERT_FLOAT_EQ(mean[i], static_cast<float>(total) / static_cast<float>(live));
            ASSERT_EQ(large[i], 120 * live / size);
            ASSERT_EQ(large_mean[i], 120);
            ASSERT_EQ(low[i], first - 7);
            ASSERT_EQ(high[i], size - 1 - 7);
            ASSERT_EQ(product[i], times);
            ASSERT_EQ(all[i], and_of_all);
          }
        }
      }
      ASSERT_EQ(JoinAndTellTheLast(context), size - 1);
      // All are back, also in what has no name.
      std::vector<float> values(10, 1);
      const TensorOf tensor(values);
      ASSERT_EQ(Execute(context, Allreduce(nullptr, tensor.get())), RUEDA_OK);
      ASSERT_EQ(values[9], static_cast<float>(size));
      ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
    }
  });
}

TEST_P(Join, GroupsAndBurstsGoOnToo) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    if (rank != 0) {
      for (int round = 0; round < 5; ++round) {
        std::vector<std::vector<float>> data;
        for (int t = 0; t < 30; ++t) data.emplace_back(100 + t, static_cast<float>(rank));
        std::vector<std::unique_ptr<TensorOf>> views;
        for (auto& each : data) views.push_back(std::make_unique<TensorOf>(each));
        std::vector<rueda_handle> handles;
        for (int t = 0; t < 30; t += 3) {
          const std::string names[] = {"g" + std::to_string(t), "h" + std::to_string(t),
                                       "i" + std::to_string(t)};
          const rueda_operation group[] = {Allreduce(names[0].c_str(), views[t]->get()),
                                           Allreduce(names[1].c_str(), views[t + 1]->get()),
                                           Allreduce(names[2].c_str(), views[t + 2]->get())};
          handles.emplace_back();
          ASSERT_EQ(rueda_submit(context, group, t % 2 == 0 ? 3 : 1, nullptr, &handles.back()),
                    RUEDA_OK);
        }
        for (const rueda_handle handle : handles) {
          ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
          ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
        }
        for (int t = 0; t < 30; t += 3) {
          ASSERT_EQ(data[t].back(), static_cast<float>(size * (size - 1) / 2)) << t;
        }
      }
    }
    JoinAndTellTheLast(context);
  });
}

// What a batch does that some ranks have joined before: ranks `first` to `size` - 1 take part.
struct Batch {
  rueda_context* context;
  int rank, size, first;
  int64_t row;  // elements

  int live() const { return size - first; }
  int last() const { return size - 1; }
  int rows_of(int r) const { return r % 2 == 0 ? r + 2 : 1; }
};

std::vector<float> Take(const Batch& batch, const rueda_operation& operation) {
  rueda_result result = ExecuteAndTake(batch.context, operation);
  const auto* const data = static_cast<const float*>(result.tensor.data);
  const int64_t rows = result.tensor.ndim == 0 ? 0 : result.tensor.shape[0];
  std::vector<float> taken(data, data + rows * batch.row);
  rueda_result_free(&result);
  return taken;
}

// Value r + 1 in each row that rank r brings.
std::vector<float> Gathered(const Batch& batch) {
  std::vector<float> all;
  for (int r = batch.first; r < batch.size; ++r) {
    all.insert(all.end(), batch.rows_of(r) * batch.row, static_cast<float>(r + 1));
  }
  return all;
}

void GatherAndBroadcast(const Batch& batch) {
  std::vector<float> own(batch.rows_of(batch.rank) * batch.row, static_cast<float>(batch.rank + 1));
  const TensorOf rows(own.data(), {batch.rows_of(batch.rank), batch.row}, RUEDA_FLOAT32);
  for (const char* name : {"all", static_cast<const char*>(nullptr)}) {
    EXPECT_EQ(Take(batch, Allgather(name, rows.get())), Gathered(batch));
  }
  rueda_operation gather = OfKind(RUEDA_GATHER, "gather", rows.get());
  gather.root = batch.last();
  if (batch.rank == batch.last()) {
    EXPECT_EQ(Take(batch, gather), Gathered(batch));
  } else {
    EXPECT_EQ(Execute(batch.context, gather), RUEDA_OK) << rueda_last_error();
  }
  std::vector<float> cast(3 * batch.row, static_cast<float>(batch.rank)), wanted = cast;
  std::fill(wanted.begin(), wanted.end(), static_cast<float>(batch.last()));
  const TensorOf tensor(cast);
  EXPECT_EQ(Execute(batch.context, Broadcast("cast", tensor.get(), batch.last())), RUEDA_OK)
      << rueda_last_error();
  EXPECT_EQ(cast, wanted);
}

// In equal parts, and rank r gives `to` r % 2 + to rows.
void Exchange(const Batch& batch) {
  for (const bool equal : {true, false}) {
    const auto rows = [&](int from, int to) { return equal ? 2 : from % 2 + to; };
    std::vector<int64_t> splits;
    std::vector<float> input, expected;
    for (int to = 0; to < batch.size; ++to) {
      splits.push_back(rows(batch.rank, to));
      input.insert(input.end(), splits.back() * batch.row,
                   static_cast<float>(10 * batch.rank + to));
    }
    for (int from = batch.first; from < batch.size; ++from) {
      expected.insert(expected.end(), rows(from, batch.rank) * batch.row,
                      static_cast<float>(10 * from + batch.rank));
    }
    const int64_t all = std::accumulate(splits.begin(), splits.end(), int64_t{0});
    const TensorOf tensor(input.data(), {all, batch.row}, RUEDA_FLOAT32);
    rueda_operation operation = OfKind(RUEDA_ALLTOALL, equal ? "equal" : "uneven", tensor.get());
    if (!equal) {
      operation.splits = splits.data();
      operation.split_count = splits.size();
    }
    EXPECT_EQ(Take(batch, operation), expected);
    // The same rows, of the last rank.
    rueda_operation scatter = OfKind(RUEDA_SCATTER, equal ? "scatter" : "parts", tensor.get());
    scatter.root = batch.last();
    if (!equal && batch.rank == batch.last()) {
      scatter.splits = splits.data();
      scatter.split_count = splits.size();
    }
    EXPECT_EQ(Take(batch, scatter),
              std::vector<float>(rows(batch.last(), batch.rank) * batch.row,
                                 static_cast<float>(10 * batch.last() + batch.rank)));
  }
}

// Rank r brings r + 1 everywhere. Factors, and what 0 would change, too.
void ReduceAndScatter(const Batch& batch) {
  float sum = 0, product = 1, low = 1e9;
  for (int r = batch.first; r < batch.size; ++r) {
    sum += static_cast<float>(r + 1);
    product *= static_cast<float>(r + 1);
    low = std::min(low, static_cast<float>(r + 1));
  }
  struct Case {
    rueda_reduce_op op;
    double prescale;
    float expected;
    const char* compressor = nullptr;
  };
  const Case kCases[] = {
      {RUEDA_SUM, 2, 2 * sum},
      {RUEDA_AVERAGE, 1, sum / static_cast<float>(batch.size)},
      {RUEDA_AVERAGE_LIVE, 1, sum / static_cast<float>(batch.live())},
      {RUEDA_PRODUCT, 1, product},
      {RUEDA_PRODUCT, 2, product * std::exp2(static_cast<float>(batch.live()))},
      {RUEDA_MIN, 1, low},
      {RUEDA_SUM, 1, sum, "fp16"},
      {RUEDA_SUM, 1, sum, "int8"},
  };
  const int64_t rows = 2 * batch.size + 1;  // rank 0 gets 3
  for (const Case& each : kCases) {
    for (const bool scatters : {true, false}) {
      if (!scatters && each.compressor != nullptr) continue;
      std::vector<float> input(rows * batch.row, static_cast<float>(batch.rank + 1));
      const TensorOf tensor(input.data(), {rows, batch.row}, RUEDA_FLOAT32);
      const std::string name = "op " + std::to_string(each.op) + "*" +
                               std::to_string(each.prescale) +
                               (each.compressor == nullptr ? "" : each.compressor);
      rueda_operation operation =
          OfKind(scatters ? RUEDA_REDUCESCATTER : RUEDA_REDUCE, name.c_str(), tensor.get());
      operation.reduce_op = each.op;
      operation.prescale = each.prescale;
      operation.compressor = each.compressor;
      operation.root = scatters ? 0 : batch.last();
      std::vector<float> result = input;
      if (scatters) {
        result = Take(batch, operation);
        ASSERT_EQ(result.size(), (batch.rank == 0 ? 3u : 2u) * static_cast<size_t>(batch.row));
      } else {
        ASSERT_EQ(Execute(batch.context, operation), RUEDA_OK) << rueda_last_error();
        if (batch.rank == batch.last()) result = input;
        if (batch.rank != batch.last()) continue;
      }
      const float slack = each.compressor == nullptr ? 1e-6f : 1e-2f;
      for (const float value : result) {
        ASSERT_NEAR(value, each.expected, slack * each.expected) << name << " " << scatters;
      }
    }
  }
}

// Rank r has r + 1 batches: a rank that has joined brings no rows, and nothing to reductions.
TEST_P(Join, EveryKindGoesOnWithoutThoseWhoHaveJoined) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (int first = 0; first <= rank; ++first) {
      for (const int64_t row : {1, 50'000}) {
        const Batch batch = {context, rank, size, first, row};
        GatherAndBroadcast(batch);
        Exchange(batch);
        ReduceAndScatter(batch);
        ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();
        ASSERT_EQ(Execute(context, Barrier("b")), RUEDA_OK) << rueda_last_error();
      }
    }
    ASSERT_EQ(JoinAndTellTheLast(context), size - 1);
    GatherAndBroadcast({context, rank, size, 0, 3});
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();
  });
}

// Rank 0 has joined by the time that the first allreduce is over: it submits nothing else.
TEST_P(Join, WhatNeedsTheRankThatHasJoinedFailsOnTheOthers) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    if (rank != 0) {
      std::vector<float> values(2 * size, 1);
      const TensorOf tensor(values);
      ASSERT_EQ(Execute(context, Allreduce("a", tensor.get())), RUEDA_OK) << rueda_last_error();
      rueda_operation reduce = OfKind(RUEDA_REDUCE, "r", tensor.get());
      reduce.reduce_op = RUEDA_SUM;
      for (rueda_operation operation :
           {Broadcast("c", tensor.get(), 0), Broadcast(nullptr, tensor.get(), 0), reduce,
            OfKind(RUEDA_SCATTER, "s", tensor.get()), OfKind(RUEDA_GATHER, "g", tensor.get())}) {
        operation.root = 0;
        EXPECT_EQ(Execute(context, operation), RUEDA_FAILED_PRECONDITION) << operation.kind;
        EXPECT_THAT(rueda_last_error(), HasSubstr("rank 0 has joined and can't be the root"));
      }
      rueda_result result = RUEDA_RESULT_INIT;
      EXPECT_EQ(rueda_broadcast_bytes(context, RUEDA_WORLD, "bytes", 0, nullptr, 0, &result),
                RUEDA_FAILED_PRECONDITION);
      EXPECT_THAT(rueda_last_error(), HasSubstr("rank 0 has joined and can't be the root"));
      rueda_operation send = OfKind(RUEDA_SEND, "p", tensor.get());
      send.root = 0;
      if (rank == 1) {
        EXPECT_EQ(Execute(context, send), RUEDA_FAILED_PRECONDITION);
        EXPECT_THAT(rueda_last_error(), HasSubstr("rank 0 has joined; it sends and receives"));
      }
      const int32_t ranks[] = {1, 2};
      int32_t set = -1;
      EXPECT_EQ(rueda_process_set_add(context, ranks, 2, RUEDA_FOREVER, &set),
                RUEDA_FAILED_PRECONDITION);
      EXPECT_THAT(rueda_last_error(), HasSubstr("process sets can be changed when all"));
      ASSERT_EQ(Execute(context, Allreduce("a", tensor.get())), RUEDA_OK) << rueda_last_error();
    }
    JoinAndTellTheLast(context);
    EXPECT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();
  });
}

TEST_P(Join, StringsOfBytesAreThoseOfTheOthers) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    if (rank != 1) {
      std::vector<int64_t> sizes(size), expected;
      std::string all;
      for (int r = 0; r < size; ++r) {
        expected.push_back(r == 1 ? 0 : r + 1);
        all.append(static_cast<size_t>(expected.back()), static_cast<char>('a' + r));
      }
      const std::string own(static_cast<size_t>(rank + 1), static_cast<char>('a' + rank));
      rueda_result result = RUEDA_RESULT_INIT;
      ASSERT_EQ(rueda_allgather_bytes(context, RUEDA_WORLD, "o", own.data(), own.size(), &result,
                                      sizes.data()),
                RUEDA_OK)
          << rueda_last_error();
      EXPECT_EQ(sizes, expected);
      EXPECT_EQ(std::string(static_cast<const char*>(result.tensor.data), all.size()), all);
      rueda_result_free(&result);
      ASSERT_EQ(rueda_broadcast_bytes(context, RUEDA_WORLD, "b", 2, rank == 2 ? "word" : nullptr,
                                      rank == 2 ? 4 : 0, &result),
                RUEDA_OK)
          << rueda_last_error();
      EXPECT_EQ(std::string(static_cast<const char*>(result.tensor.data), 4), "word");
      rueda_result_free(&result);
    }
    JoinAndTellTheLast(context);
  });
}

TEST_P(Join, WhoHasJoinedCanSubmitNothingElseInTheSet) {
  RunOn(3,
        [](rueda_context* context, int rank, int) {
          rueda_operation checked = Barrier("checked");
          checked.process_set = 1;  // of ranks 0 and 1
          if (rank == 0) {
            EXPECT_EQ(rueda_join(context, RUEDA_WORLD, 0, nullptr), RUEDA_DEADLINE_EXCEEDED);
            std::vector<float> values(2, 1);
            const TensorOf tensor(values);
            EXPECT_EQ(Execute(context, Allreduce("a", tensor.get())), RUEDA_FAILED_PRECONDITION);
            EXPECT_THAT(rueda_last_error(), HasSubstr("has joined"));
            EXPECT_EQ(rueda_join(context, RUEDA_WORLD, RUEDA_FOREVER, nullptr),
                      RUEDA_FAILED_PRECONDITION);
          }
          if (rank <= 1) {
            EXPECT_EQ(Execute(context, checked), RUEDA_OK) << rueda_last_error();
          }
          if (rank >= 1) JoinAndTellTheLast(context);
        },
        {{"process_sets", "0,1"}});
}

TEST_P(Join, IsPerProcessSet) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    const int32_t ranks[] = {0, 1};
    int32_t set = -1;
    ASSERT_EQ(rueda_process_set_add(context, ranks, 2, RUEDA_FOREVER, &set), RUEDA_OK);
    std::vector<float> values(5, 1);
    const TensorOf tensor(values);
    if (rank == 0) {
      // It has joined the small set alone; the world goes on, in another thread.
      std::thread world([&] {
        EXPECT_EQ(Execute(context, Allreduce("w", tensor.get())), RUEDA_OK) << rueda_last_error();
      });
      EXPECT_EQ(JoinAndTellTheLast(context, set), 1);
      world.join();
    } else {
      EXPECT_EQ(Execute(context, Allreduce("w", tensor.get())), RUEDA_OK) << rueda_last_error();
      if (rank == 1) {
        std::vector<float> alone(1, 5);
        const TensorOf alone_tensor(alone);
        rueda_operation operation = Allreduce("s", alone_tensor.get());
        operation.process_set = set;
        EXPECT_EQ(Execute(context, operation), RUEDA_OK) << "once rank 0 has joined";
        EXPECT_EQ(alone[0], 5);
        EXPECT_EQ(JoinAndTellTheLast(context, set), 1);
      }
    }
    EXPECT_EQ(values[0], static_cast<float>(size));
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
  });
}

// The join ends while the others' last allreduce is under way; so does the job, at once.
TEST_P(Join, WhoHasJoinedDoesItsPartOfWhatIsUnderWayBeforeItLeaves) {
  std::vector<float> values(3'000'000, 1);  // of rank 0
  RunOn(2, [&](rueda_context* context, int rank, int) {
    if (rank == 0) {
      const TensorOf tensor(values);
      const rueda_operation operation = Allreduce("late", tensor.get());
      rueda_completion completion = RUEDA_COMPLETION_INIT;
      completion.callback = [](void*, rueda_handle, rueda_status status) {
        EXPECT_EQ(status, RUEDA_OK);
      };
      rueda_handle handle = 0;
      ASSERT_EQ(rueda_submit(context, &operation, 1, &completion, &handle), RUEDA_OK);
      ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
    }
    JoinAndTellTheLast(context);
  });
}

TEST_P(Join, ARankThatLeavesInsteadIsNamed) {
  RunOn(2, [](rueda_context* context, int rank, int) {
    if (rank == 0) {
      EXPECT_EQ(rueda_join(context, RUEDA_WORLD, RUEDA_FOREVER, nullptr),
                RUEDA_FAILED_PRECONDITION);
      EXPECT_THAT(rueda_last_error(), HasSubstr("has shut down without submitting it"));
    }
  });
}

// Rank 2's join of set 1 is overdue while the others are further on.
TEST_P(Join, UnnamedOperationsMeetAgainAfterAJoinThatStalled) {
  RunOn(4,
        [](rueda_context* context, int rank, int) {
          constexpr int32_t kSet = 1;
          std::vector<float> values(3, 1);
          const TensorOf tensor(values);
          rueda_operation operation = Allreduce(nullptr, tensor.get());
          operation.process_set = kSet;
          if (rank == 2) {
            EXPECT_EQ(rueda_join(context, kSet, 0, nullptr), RUEDA_DEADLINE_EXCEEDED);
          }
          ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();
          for (int i = 0; rank < 2 && i < 3; ++i) {
            ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
          }
          // What no other rank submits is overdue later than the join.
          const std::string name = "of rank " + std::to_string(rank);
          EXPECT_EQ(Execute(context, Barrier(name.c_str())), RUEDA_CANCELLED);
          ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();
          if (rank > 2) return;
          values.assign(3, 1);
          ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
          EXPECT_EQ(values[2], 3.0f);
        },
        {{"process_sets", "0-2"}, {"stall_warn_s", "1"}, {"stall_timeout_s", "2"}});
}

TEST_P(Join, WhatAnAbortEndedIsForgottenAfterAReset) {
  RunOn(3,
        [](rueda_context* context, int rank, int size) {
          std::vector<float> values(3, 1);
          const TensorOf tensor(values);
          for (int round = 0; round < 3; ++round) {
            if (rank == 1) {
              for (int i = 0; i <= round; ++i) {
                const rueda_status status = Execute(context, Allreduce(nullptr, tensor.get()));
                ASSERT_EQ(status, RUEDA_OK) << rueda_last_error();
              }
              EXPECT_EQ(rueda_abort(context, "enough"), RUEDA_OK);
            }
            EXPECT_EQ(rueda_join(context, RUEDA_WORLD, RUEDA_FOREVER, nullptr), RUEDA_ABORTED);
            ASSERT_EQ(rueda_context_reset(context), RUEDA_OK) << rueda_last_error();
            values.assign(3, 1);
            ASSERT_EQ(Execute(context, Allreduce(nullptr, tensor.get())), RUEDA_OK)
                << rueda_last_error();
            EXPECT_EQ(values[0], static_cast<float>(size));
            JoinAndTellTheLast(context);
          }
        },
        {{"log_level", "off"}, {"recorder_dir", ::testing::TempDir()}});
}

// Adasum -------------------------------------------------------------------------------------

class Adasum : public JobTest {};
INSTANTIATE_TEST_SUITE_P(All, Adasum, ::testing::ValuesIn(AllSetups()),
                         [](const auto& setup) { return setup.param.name; });

using Doubles = std::vector<double>;

// Element i of a rank's tensor number t: somewhat alike on all ranks.
double Gradient(int rank, int t, int64_t i) {
  return std::sin(static_cast<double>(i * (t + 1)) * 0.37) +
         0.5 * std::cos(static_cast<double>(i * 7 + rank * 13 + t));
}

Doubles Combine(const Doubles& a, const Doubles& b) {
  const double dot = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  const double aa = std::inner_product(a.begin(), a.end(), a.begin(), 0.0);
  const double bb = std::inner_product(b.begin(), b.end(), b.begin(), 0.0);
  Doubles sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    sum[i] = (1 - dot / (2 * aa)) * a[i] + (1 - dot / (2 * bb)) * b[i];
  }
  return sum;
}

Doubles Model(const std::vector<int>& ranks, int t, int64_t elements) {
  std::vector<Doubles> vectors;
  for (const int rank : ranks) {
    vectors.emplace_back(elements);
    for (int64_t i = 0; i < elements; ++i) vectors.back()[i] = Gradient(rank, t, i);
  }
  size_t power = 1;
  while (power * 2 <= vectors.size()) power *= 2;
  for (size_t i = power; i < vectors.size(); ++i) {
    vectors[i - power] = Combine(vectors[i - power], vectors[i]);
  }
  for (size_t step = 1; step < power; step *= 2) {
    for (size_t i = 0; i < power; i += 2 * step)
      vectors[i] = Combine(vectors[i], vectors[i + step]);
  }
  return vectors[0];
}

template <typename T>
void CheckAdasum(rueda_context* context, int rank, const std::vector<int>& live, double tolerance) {
  // A group, so that several tensors share a bucket: each counts by itself.
  const int64_t elements[] = {1'003, 7, 60'000};
  std::vector<std::vector<T>> data;
  std::vector<std::unique_ptr<TensorOf>> views;
  std::vector<rueda_operation> group;
  const char* const names[] = {"x", "y", "z"};
  for (int t = 0; t < 3; ++t) {
    data.emplace_back(elements[t]);
    for (int64_t i = 0; i < elements[t]; ++i) data[t][i] = static_cast<T>(Gradient(rank, t, i));
  }
  for (int t = 0; t < 3; ++t) {
    views.push_back(std::make_unique<TensorOf>(data[t]));
    group.push_back(Allreduce(names[t], views[t]->get(), RUEDA_ADASUM));
    group.back().postscale = 2;
  }
  ASSERT_EQ(rueda_execute(context, group.data(), 3, RUEDA_FOREVER, nullptr), RUEDA_OK)
      << rueda_last_error();
  for (int t = 0; t < 3; ++t) {
    const Doubles expected = Model(live, t, elements[t]);
    for (int64_t i = 0; i < elements[t]; ++i) {
      ASSERT_NEAR(static_cast<double>(data[t][i]), 2 * expected[i], tolerance)
          << "tensor " << t << " element " << i;
    }
  }
}

TEST_P(Adasum, FollowsTheFloat64ModelByTensorForAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    RunOn(ranks, [](rueda_context* context, int rank, int size) {
      std::vector<int> live(size);
      std::iota(live.begin(), live.end(), 0);
      CheckAdasum<double>(context, rank, live, 1e-12);
      CheckAdasum<float>(context, rank, live, 2e-5);
      // Alone, where it is.
      std::vector<double> values(5'000);
      for (int64_t i = 0; i < 5'000; ++i) values[i] = Gradient(rank, 0, i);
      const TensorOf tensor(values);
      ASSERT_EQ(Execute(context, Allreduce("alone", tensor.get(), RUEDA_ADASUM)), RUEDA_OK);
      const Doubles expected = Model(live, 0, 5'000);
      for (int64_t i = 0; i < 5'000; ++i) ASSERT_NEAR(values[i], expected[i], 1e-12);
    });
  }
}

TEST_P(Adasum, LeavesOutWhoHasJoined) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    if (rank != 1) {
      std::vector<int> live;
      for (int r = 0; r < size; ++r) {
        if (r != 1) live.push_back(r);
      }
      // Rank 1 submits nothing, so that what follows completes only once it has joined.
      CheckAdasum<float>(context, rank, live, 2e-5);
    }
    JoinAndTellTheLast(context);
  });
}

TEST_P(Adasum, OfIntegersOrInOtherKindsIsRefused) {
  RunOn(2, [](rueda_context* context, int, int size) {
    std::vector<int32_t> ints(4, 1);
    std::vector<float> floats(static_cast<size_t>(size), 1);
    const TensorOf i(ints), f(floats);
    EXPECT_EQ(Execute(context, Allreduce("a", i.get(), RUEDA_ADASUM)), RUEDA_INVALID_ARGUMENT);
    rueda_operation operation = OfKind(RUEDA_REDUCESCATTER, "r", f.get());
    operation.reduce_op = RUEDA_ADASUM;
    EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
    EXPECT_THAT(rueda_last_error(), HasSubstr("adasum is for allreduce alone"));
  });
}

// Process sets that come and go ---------------------------------------------------------------

class Sets : public JobTest {};
INSTANTIATE_TEST_SUITE_P(All, Sets, ::testing::ValuesIn(AllSetups()),
                         [](const auto& setup) { return setup.param.name; });

TEST_P(Sets, GivenAtTheStartTheyAreThere) {
  RunOn(4,
        [](rueda_context* context, int rank, int) {
          EXPECT_EQ(rueda_process_set_size(context, 1), 2);
          EXPECT_EQ(rueda_process_set_size(context, 2), 3);
          const int32_t set = rank == 0 ? 1 : 2;
          std::vector<float> values(3, static_cast<float>(rank));
          const TensorOf tensor(values);
          rueda_operation operation = Allreduce("s", tensor.get());
          operation.process_set = set;
          if (rank == 1) {
            operation.process_set = 1;
            ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
            EXPECT_EQ(values[0], 1.0f);
            values.assign(3, 1);
            operation.process_set = 2;
          }
          ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
          EXPECT_EQ(values[0], rank == 0 ? 1.0f : 6.0f);
          const int32_t again[] = {0, 1};
          int32_t id = -1;
          EXPECT_EQ(rueda_process_set_add(context, again, 2, RUEDA_FOREVER, &id),
                    RUEDA_ALREADY_EXISTS);
          EXPECT_EQ(id, 1);
        },
        {{"process_sets", "1,0;1-3"}});
}

// An id is used again; what the earlier set did is not taken for the later one's.
TEST_P(Sets, ComeAndGoAndTheirIdsAreUsedAgain) {
  RunOn(4, [](rueda_context* context, int rank, int) {
    for (int round = 0; round < 30; ++round) {
      const std::vector<int32_t> ranks = round % 3 == 0   ? std::vector<int32_t>{0, 1, 2}
                                         : round % 3 == 1 ? std::vector<int32_t>{1, 3}
                                                          : std::vector<int32_t>{0, 2, 3};
      int32_t set = -1;
      ASSERT_EQ(rueda_process_set_add(context, ranks.data(), ranks.size(), RUEDA_FOREVER, &set),
                RUEDA_OK)
          << rueda_last_error();
      ASSERT_EQ(set, 1);
      if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) {
        float sum = 0;
        for (const int32_t r : ranks) sum += static_cast<float>(r);
        for (const int64_t elements : {1, 20'000}) {
          for (const char* name : {"t", static_cast<const char*>(nullptr)}) {
            std::vector<float> values(elements, static_cast<float>(rank));
            const TensorOf tensor(values);
            rueda_operation operation = Allreduce(name, tensor.get());
            operation.process_set = set;
            ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
            ASSERT_EQ(values[elements - 1], sum) << "round " << round;
          }
        }
      }
      ASSERT_EQ(rueda_process_set_remove(context, set, RUEDA_FOREVER), RUEDA_OK)
          << rueda_last_error();
      EXPECT_EQ(rueda_process_set_size(context, set), -1);
    }
  });
}

TEST_P(Sets, RemovalWithOperationsInFlightIsRefusedOnEveryRank) {
  RunOn(3, [](rueda_context* context, int rank, int) {
    const int32_t ranks[] = {0, 1};
    int32_t set = -1;
    ASSERT_EQ(rueda_process_set_add(context, ranks, 2, RUEDA_FOREVER, &set), RUEDA_OK);
    std::vector<float> values(3, 1);
    const TensorOf tensor(values);
    rueda_operation operation = Allreduce("late", tensor.get());
    operation.process_set = set;
    rueda_handle handle = 0;
    if (rank == 1) {
      ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handle), RUEDA_OK);
    }
    EXPECT_EQ(rueda_process_set_remove(context, set, RUEDA_FOREVER), RUEDA_FAILED_PRECONDITION);
    EXPECT_THAT(rueda_last_error(), HasSubstr("rank 1 has 1 operations in flight on it"));
    if (rank == 0) {
      ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
    }
    if (rank == 1) {
      ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
      ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
      EXPECT_EQ(values[0], 2.0f);
    }
    ASSERT_EQ(rueda_process_set_remove(context, set, RUEDA_FOREVER), RUEDA_OK)
        << rueda_last_error();
    EXPECT_EQ(rueda_process_set_remove(context, set, RUEDA_FOREVER), RUEDA_NOT_FOUND);
    EXPECT_EQ(rueda_process_set_remove(context, RUEDA_WORLD, RUEDA_FOREVER),
              RUEDA_INVALID_ARGUMENT);
    if (rank <= 1) {
      EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
      EXPECT_THAT(rueda_last_error(), HasSubstr("there is no process set 1"));
    }
  });
}

TEST_P(Sets, RanksThatRemoveDifferentOnesAreTold) {
  RunOn(2, [](rueda_context* context, int rank, int) {
    const int32_t one[] = {0}, other[] = {1};
    int32_t a = -1, b = -1;
    ASSERT_EQ(rueda_process_set_add(context, one, 1, RUEDA_FOREVER, &a), RUEDA_OK);
    ASSERT_EQ(rueda_process_set_add(context, other, 1, RUEDA_FOREVER, &b), RUEDA_OK);
    EXPECT_EQ(rueda_process_set_remove(context, rank == 0 ? a : b, RUEDA_FOREVER),
              RUEDA_INVALID_ARGUMENT);
    EXPECT_THAT(rueda_last_error(), HasSubstr("disagree on the list of ranks"));
    EXPECT_EQ(rueda_process_set_remove(context, a, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(rueda_process_set_remove(context, b, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
  });
}

}  // namespace
}  // namespace rueda::testing
