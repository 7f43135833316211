// Every kind of operation beyond allreduce, broadcast, allgather and barrier, on every way to run a
// job: alltoall, reducescatter, reduce, gather, scatter, send and receive, strings of bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <numeric>

#include "test/support/jobs.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Kinds : public JobTest {};
INSTANTIATE_TEST_SUITE_P(All, Kinds, ::testing::ValuesIn(AllSetups()),
                         [](const auto& setup) { return setup.param.name; });

// Element `i` of what `from` gives `to`: tells who gave it, for whom, and its place.
int32_t Mark(int from, int to, int64_t i) {
  return static_cast<int32_t>(from * 100'000'000 + to * 10'000'000 + i % 10'000'000);
}

struct Result {
  std::vector<int64_t> shape;
  std::vector<int32_t> data;
  std::vector<int64_t> splits;
};

// Executes an operation on int32 tensors and takes its result.
Result Take(rueda_context* context, const rueda_operation& operation) {
  Result taken;
  rueda_handle handle = 0;
  EXPECT_EQ(rueda_execute(context, &operation, 1, RUEDA_FOREVER, &handle), RUEDA_OK)
      << rueda_last_error();
  size_t count = 0;
  taken.splits.resize(64);
  EXPECT_EQ(rueda_result_splits(context, handle, 0, taken.splits.data(), 64, &count), RUEDA_OK)
      << rueda_last_error();
  taken.splits.resize(count);
  rueda_result result = RUEDA_RESULT_INIT;
  EXPECT_EQ(rueda_result_take(context, handle, 0, &result), RUEDA_OK) << rueda_last_error();
  EXPECT_EQ(rueda_release(context, handle), RUEDA_OK);
  taken.shape.assign(result.tensor.shape, result.tensor.shape + result.tensor.ndim);
  const int64_t elements =
      std::accumulate(taken.shape.begin(), taken.shape.end(), int64_t{1}, std::multiplies<>());
  const auto* data = static_cast<const int32_t*>(result.tensor.data);
  taken.data.assign(data, data + elements);
  rueda_result_free(&result);
  return taken;
}

// How many rows `from` gives `to`, in three patterns: equal, ragged, and some pairs nothing.
int64_t Rows(int pattern, int from, int to) {
  if (pattern == 0) return 700;
  if (pattern == 1) return (from + 1) * 3 + to * 1'000;
  return (from + to) % 2 == 0 ? 0 : 5;
}

void CheckAlltoall(rueda_context* context, int rank, int size, int pattern, int64_t row) {
  std::vector<int64_t> splits(size), from(size);
  std::vector<int32_t> input, expected;
  for (int to = 0; to < size; ++to) {
    splits[to] = Rows(pattern, rank, to);
    for (int64_t i = 0; i < splits[to] * row; ++i) input.push_back(Mark(rank, to, i));
  }
  for (int giver = 0; giver < size; ++giver) {
    from[giver] = Rows(pattern, giver, rank);
    for (int64_t i = 0; i < from[giver] * row; ++i) expected.push_back(Mark(giver, rank, i));
  }
  const int64_t rows = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  const TensorOf in(input.data(), {rows, row}, RUEDA_INT32);
  rueda_operation operation = OfKind(RUEDA_ALLTOALL, "a", in.get());
  if (pattern > 0) {
    operation.splits = splits.data();
    operation.split_count = splits.size();
  }
  const Result result = Take(context, operation);
  ASSERT_EQ(result.splits, from);
  ASSERT_THAT(result.shape,
              ElementsAre(std::accumulate(from.begin(), from.end(), int64_t{0}), row));
  ASSERT_TRUE(result.data == expected) << "pattern " << pattern;
}

TEST_P(Kinds, AlltoallGivesEachRankWhatIsForIt) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (int pattern = 0; pattern < 3; ++pattern) {
      for (const int64_t row : {0, 1, 7, 200}) {
        CheckAlltoall(context, rank, size, pattern, row);
        CheckAlltoall(context, rank, size, pattern, row);  // with an id
      }
    }
  });
}

TEST_P(Kinds, BadSplitsAreAnError) {
  RunOn(2, [](rueda_context* context, int, int size) {
    std::vector<int32_t> data(2 * size + 1);
    const TensorOf in(data);
    rueda_operation operation = OfKind(RUEDA_ALLTOALL, "a", in.get());
    EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
    EXPECT_THAT(rueda_last_error(), HasSubstr("can't be divided equally"));
    std::vector<int64_t> splits(size, 1);
    operation.splits = splits.data();
    operation.split_count = splits.size() - 1;
    EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
    EXPECT_THAT(rueda_last_error(), HasSubstr("splits for the"));
    operation.split_count = splits.size();
    EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
    EXPECT_THAT(rueda_last_error(), HasSubstr("add up to"));
    splits.assign(size, 3);
    splits[0] = -1;
    EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
    EXPECT_THAT(rueda_last_error(), HasSubstr("a split of -1"));
    splits.assign(size, INT64_MAX);
    EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
    const TensorOf scalar(data.data(), {}, RUEDA_INT32);
    operation.input = scalar.get();
    EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
    EXPECT_THAT(rueda_last_error(), HasSubstr("scalar"));
    EXPECT_EQ(Execute(context, Barrier()), RUEDA_OK);
  });
}

// An operation that is wrong on the last of four ranks alone.
void ExpectToldToAll(rueda_context* context, const rueda_operation& operation, const char* text) {
  EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
  EXPECT_THAT(rueda_last_error(), AllOf(HasSubstr("rank 3: "), HasSubstr(text)));
}

TEST_P(Kinds, WhatOneRankAloneGotWrongIsToldToAll) {
  RunOn(4, [](rueda_context* context, int rank, int size) {
    const bool wrong = rank == size - 1;  // on two hosts not a leader
    std::vector<int32_t> data(2 * size);
    const TensorOf in(data);
    for (const char* name : {"a", static_cast<const char*>(nullptr)}) {
      std::vector<int64_t> splits(size, wrong ? 3 : 2);
      rueda_operation alltoall = OfKind(RUEDA_ALLTOALL, name, in.get());
      alltoall.splits = splits.data();
      alltoall.split_count = splits.size();
      rueda_operation scatter = OfKind(RUEDA_SCATTER, name, in.get());
      scatter.root = size - 1;
      scatter.splits = splits.data();
      scatter.split_count = splits.size();
      rueda_operation reduce = OfKind(RUEDA_ALLREDUCE, name, in.get());
      reduce.reduce_op = RUEDA_SUM;
      reduce.fault = wrong ? "no tensor of mine" : nullptr;
      for (int again = 0; again < 2; ++again) {
        ExpectToldToAll(context, alltoall, "the splits add up to");
        ExpectToldToAll(context, scatter, "the splits add up to");
        ExpectToldToAll(context, reduce, "no tensor of mine");
      }
      // The job goes on, and what is unnamed is counted alike.
      splits.assign(size, 2);
      reduce.fault = nullptr;
      for (const rueda_operation& right : {alltoall, scatter, reduce}) {
        EXPECT_EQ(Execute(context, right), RUEDA_OK) << rueda_last_error();
      }
    }
  });
}

// The rows that `rank` gets of `rows`, and where they begin.
std::pair<int64_t, int64_t> SliceOf(int64_t rows, int size, int rank) {
  int64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += rows / size + (r < rows % size ? 1 : 0);
  return {begin, rows / size + (rank < rows % size ? 1 : 0)};
}

void CheckReducescatter(rueda_context* context, int rank, int size, int64_t rows, int64_t row,
                        rueda_reduce_op op) {
  std::vector<int32_t> input(rows * row);
  const auto value = [](int r, int64_t i) { return static_cast<int32_t>((i * 7 + r * 3) % 5 + 1); };
  for (int64_t i = 0; i < rows * row; ++i) input[i] = value(rank, i);
  const TensorOf in(input.data(), {rows, row}, RUEDA_INT32);
  rueda_operation operation = OfKind(RUEDA_REDUCESCATTER, "r", in.get());
  operation.reduce_op = op;
  const auto [begin, count] = SliceOf(rows, size, rank);
  std::vector<int32_t> output(count * row, -1);
  const TensorOf out(output.data(), {count, row}, RUEDA_INT32);
  operation.output = out.get();
  ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
  for (int64_t i = 0; i < count * row; ++i) {
    int32_t expected = value(0, begin * row + i);
    for (int r = 1; r < size; ++r) {
      const int32_t x = value(r, begin * row + i);
      expected = op == RUEDA_MIN       ? std::min(expected, x)
                 : op == RUEDA_MAX     ? std::max(expected, x)
                 : op == RUEDA_PRODUCT ? expected * x
                                       : expected + x;
    }
    if (op == RUEDA_AVERAGE) expected /= size;
    ASSERT_EQ(output[i], expected) << "element " << i << ", op " << op;
  }
}

TEST_P(Kinds, ReducescatterGivesEachRankItsRows) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (const auto& [rows, row] :
         {std::pair<int64_t, int64_t>{0, 3}, {1, 5}, {2, 4}, {7, 1}, {1'000, 3}, {301, 1'000}}) {
      for (const rueda_reduce_op op :
           {RUEDA_SUM, RUEDA_AVERAGE, RUEDA_MIN, RUEDA_MAX, RUEDA_PRODUCT}) {
        CheckReducescatter(context, rank, size, rows, row, op);
      }
    }
  });
}

TEST_P(Kinds, ReducescatterOfAScalarOrIntoTheWrongShapeIsRefused) {
  RunOn(2, [](rueda_context* context, int rank, int size) {
    std::vector<float> data(2 * size, 1), output(3);
    const TensorOf scalar(data.data(), {}, RUEDA_FLOAT32);
    rueda_operation operation = OfKind(RUEDA_REDUCESCATTER, "r", scalar.get());
    operation.reduce_op = RUEDA_SUM;
    EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
    EXPECT_THAT(rueda_last_error(), HasSubstr("scalar"));
    const TensorOf in(data), out(output);
    operation.input = in.get();
    operation.output = out.get();
    EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
    EXPECT_THAT(rueda_last_error(), HasSubstr("has shape [2], the given output [3]"));
    operation.output = nullptr;
    rueda_handle handle = 0;
    ASSERT_EQ(rueda_execute(context, &operation, 1, RUEDA_FOREVER, &handle), RUEDA_OK);
    rueda_result result = RUEDA_RESULT_INIT;
    ASSERT_EQ(rueda_result_take(context, handle, 0, &result), RUEDA_OK);
    EXPECT_EQ(result.tensor.shape[0], 2);
    EXPECT_EQ(static_cast<float*>(result.tensor.data)[1], static_cast<float>(size)) << rank;
    rueda_result_free(&result);
    EXPECT_EQ(rueda_release(context, handle), RUEDA_OK);
  });
}

TEST_P(Kinds, GroupedReducescatterIsOneOperation) {
  RunOn(2, [](rueda_context* context, int rank, int size) {
    std::vector<float> a(3 * size, 1), c(2 * size, 2);
    std::vector<int64_t> b(size, rank);
    const TensorOf ta(a), tb(b), tc(c);
    rueda_operation operations[] = {OfKind(RUEDA_REDUCESCATTER, "a", ta.get()),
                                    OfKind(RUEDA_REDUCESCATTER, "b", tb.get()),
                                    OfKind(RUEDA_REDUCESCATTER, "c", tc.get())};
    for (rueda_operation& operation : operations) operation.reduce_op = RUEDA_SUM;
    rueda_handle handle = 0;
    ASSERT_EQ(rueda_execute(context, operations, 3, RUEDA_FOREVER, &handle), RUEDA_OK)
        << rueda_last_error();
    rueda_result results[3] = {RUEDA_RESULT_INIT, RUEDA_RESULT_INIT, RUEDA_RESULT_INIT};
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(rueda_result_take(context, handle, i, &results[i]), RUEDA_OK);
    }
    EXPECT_EQ(results[0].tensor.shape[0], 3);
    EXPECT_EQ(static_cast<float*>(results[0].tensor.data)[2], static_cast<float>(size));
    EXPECT_EQ(static_cast<int64_t*>(results[1].tensor.data)[0], size * (size - 1) / 2);
    EXPECT_EQ(static_cast<float*>(results[2].tensor.data)[1], static_cast<float>(2 * size));
    for (rueda_result& result : results) rueda_result_free(&result);
    EXPECT_EQ(rueda_release(context, handle), RUEDA_OK);
  });
}

TEST_P(Kinds, ReduceReachesTheRootAloneAndEveryRootsTurnComes) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (int root = 0; root < size; ++root) {
      for (const int64_t elements : {0, 1, 1'000, 200'003}) {
        std::vector<double> data(elements);
        for (int64_t i = 0; i < elements; ++i) data[i] = static_cast<double>(i % 100 + rank);
        const TensorOf tensor(data);
        rueda_operation operation = OfKind(RUEDA_REDUCE, "r", tensor.get());
        operation.reduce_op = RUEDA_SUM;
        operation.root = root;
        ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
        for (int64_t i = 0; i < elements; ++i) {
          const double sum = static_cast<double>(size * (i % 100) + size * (size - 1) / 2);
          ASSERT_EQ(data[i], rank == root ? sum : static_cast<double>(i % 100 + rank)) << i;
        }
      }
    }
  });
}

TEST_P(Kinds, GatherReachesTheRootAlone) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (int root = 0; root < size; ++root) {
      for (const int64_t row : {1, 300}) {
        const auto rows = [&](int r) { return r == 1 ? 0 : (r + 1) * row % 500 + 1; };
        std::vector<int32_t> input;
        for (int64_t i = 0; i < rows(rank) * row; ++i) input.push_back(Mark(rank, root, i));
        const TensorOf in(input.data(), {rows(rank), row}, RUEDA_INT32);
        rueda_operation operation = OfKind(RUEDA_GATHER, "g", in.get());
        operation.root = root;
        if (rank != root) {
          ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
          continue;
        }
        const Result result = Take(context, operation);
        std::vector<int32_t> expected;
        for (int r = 0; r < size; ++r) {
          ASSERT_EQ(result.splits[r], rows(r));
          for (int64_t i = 0; i < rows(r) * row; ++i) expected.push_back(Mark(r, root, i));
        }
        ASSERT_TRUE(result.data == expected);
      }
    }
  });
}

TEST_P(Kinds, ScatterGivesEachRankItsRowsOfTheRoots) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (int root = 0; root < size; ++root) {
      for (const bool equal : {true, false}) {
        std::vector<int64_t> splits;
        std::vector<int32_t> input;
        for (int to = 0; to < size; ++to) {
          splits.push_back(equal ? 3 : to == 1 ? 0 : 40'000 + to);
          for (int64_t i = 0; i < splits[to] * 2; ++i) input.push_back(Mark(root, to, i));
        }
        const int64_t rows = std::accumulate(splits.begin(), splits.end(), int64_t{0});
        // Elsewhere only what a row is counts.
        const TensorOf whole(input.data(), {rows, 2}, RUEDA_INT32);
        const TensorOf row(nullptr, {17, 2}, RUEDA_INT32);
        rueda_operation operation =
            OfKind(RUEDA_SCATTER, "s", rank == root ? whole.get() : row.get());
        operation.root = root;
        if (!equal && rank == root) {
          operation.splits = splits.data();
          operation.split_count = splits.size();
        }
        std::vector<int32_t> expected;
        for (int64_t i = 0; i < splits[rank] * 2; ++i) expected.push_back(Mark(root, rank, i));
        const Result result = Take(context, operation);
        ASSERT_TRUE(result.data == expected) << result.data.size();
        // Into the caller's memory, and without an input where nothing is given.
        std::vector<int32_t> output(expected.size(), -1);
        const TensorOf out(output.data(), {splits[rank], 2}, RUEDA_INT32);
        operation.output = out.get();
        if (rank != root) operation.input = nullptr;
        ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
        ASSERT_TRUE(output == expected);
      }
    }
  });
}

TEST_P(Kinds, ARootOutsideTheSetIsRefused) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    const int32_t members[] = {0, 2};
    int32_t set = -1;
    ASSERT_EQ(rueda_process_set_add(context, members, 2, RUEDA_FOREVER, &set), RUEDA_OK);
    std::vector<int32_t> data(2, rank);
    const TensorOf tensor(data);
    for (const rueda_kind kind :
         {RUEDA_BROADCAST, RUEDA_REDUCE, RUEDA_GATHER, RUEDA_SCATTER, RUEDA_SEND, RUEDA_RECV}) {
      rueda_operation operation = OfKind(kind, "x", tensor.get());
      operation.output = kind == RUEDA_RECV ? tensor.get() : nullptr;
      operation.reduce_op = RUEDA_SUM;
      operation.process_set = set;
      for (const int root : {1, -1, size}) {
        operation.root = root;
        EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT) << kind << " " << root;
        if (rank == 0 || rank == 2) {
          EXPECT_THAT(rueda_last_error(), HasSubstr(" is not a rank of process set 1 {0, 2}"));
        }
      }
    }
    if (rank == 0 || rank == 2) {  // a world rank is a root inside the set
      rueda_operation operation = Broadcast("b", tensor.get(), 2);
      operation.process_set = set;
      ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(data, std::vector<int32_t>(2, 2));
    }
  });
}

void SendOrReceive(rueda_context* context, int rank, int from, int to, int64_t elements,
                   const char* name) {
  std::vector<int32_t> data(elements, -1);
  if (rank == from) {
    for (int64_t i = 0; i < elements; ++i) data[i] = Mark(from, to, i);
  }
  const TensorOf tensor(data);
  rueda_operation operation = OfKind(rank == from ? RUEDA_SEND : RUEDA_RECV, name, nullptr);
  (rank == from ? operation.input : operation.output) = tensor.get();
  operation.root = rank == from ? to : from;
  ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
  for (int64_t i = 0; i < elements; ++i) ASSERT_EQ(data[i], Mark(from, to, i)) << i;
}

TEST_P(Kinds, SendAndReceiveConcernTwoRanksAlone) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (const char* name : {"p", static_cast<const char*>(nullptr)}) {
      for (const int64_t elements : {0, 1, 1'000, 32'768, 100'001, 700'000}) {
        for (int from = 0; from < size; ++from) {
          const int to = (from + 1) % size;
          if (rank == from || rank == to) {
            SendOrReceive(context, rank, from, to, elements, name);
          }
        }
        // In between, everybody: blocks and slots are not confused.
        std::vector<float> values(40'000, 1);
        const TensorOf tensor(values);
        ASSERT_EQ(Execute(context, Allreduce("t", tensor.get())), RUEDA_OK);
        ASSERT_EQ(values[39'999], static_cast<float>(size));
      }
    }
  });
}

// Pairs use one name at the same time; a pair in which nobody else waits goes on.
TEST_P(Kinds, PairsDoNotWaitForEachOther) {
  RunOn(4, [](rueda_context* context, int rank, int size) {
    if (rank == 2) {  // 2 and 3 come only when 0 and 1 are done
      ASSERT_NO_FATAL_FAILURE(SendOrReceive(context, rank, 1, 2, 5, "after"));
    }
    if (rank <= 1) {
      for (int i = 0; i < 20; ++i) SendOrReceive(context, rank, i % 2, 1 - i % 2, 1'000, "x");
    }
    if (rank == 1) SendOrReceive(context, rank, 1, 2, 5, "after");
    if (rank == 2 || rank == 3) SendOrReceive(context, rank, 3, 2, 100'000, "x");
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK) << size;
  });
}

// A name belongs to a pair and a direction: neighbours exchange under one name.
TEST_P(Kinds, OneNameServesEveryPairAndBothDirectionsAtOnce) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    const int peers[] = {(rank + 1) % size, (rank + size - 1) % size};
    for (int round = 0; round < 5; ++round) {
      std::vector<std::vector<int32_t>> data;
      std::vector<std::unique_ptr<TensorOf>> tensors;
      std::vector<rueda_handle> handles;
      for (const int peer : peers) {
        if (data.size() == 2 && peers[0] == peers[1]) break;
        for (const rueda_kind kind : {RUEDA_SEND, RUEDA_RECV}) {
          data.emplace_back(1'000, kind == RUEDA_SEND ? Mark(rank, peer, round) : -1);
          tensors.push_back(std::make_unique<TensorOf>(data.back()));
          rueda_operation operation = OfKind(kind, "halo", nullptr);
          (kind == RUEDA_SEND ? operation.input : operation.output) = tensors.back()->get();
          operation.root = peer;
          handles.push_back(0);
          ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handles.back()), RUEDA_OK)
              << rueda_last_error();
        }
      }
      for (const rueda_handle handle : handles) {
        ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
        ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
      }
      for (size_t i = 1; i < data.size(); i += 2) {
        ASSERT_EQ(data[i], std::vector<int32_t>(1'000, Mark(peers[i / 2], rank, round)));
      }
    }
  });
}

TEST_P(Kinds, SendersAndReceiversThatDisagreeAreTold) {
  RunOn(2, [](rueda_context* context, int rank, int) {
    if (rank <= 1) {
      std::vector<float> data(rank == 0 ? 4 : 5, 1);
      const TensorOf tensor(data);
      rueda_operation operation = OfKind(rank == 0 ? RUEDA_SEND : RUEDA_RECV, "p", tensor.get());
      operation.output = rank == 0 ? nullptr : tensor.get();
      operation.root = 1 - rank;
      EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
      EXPECT_STREQ(rueda_last_error(),
                   "tensor 'p': the ranks disagree on the shape: rank 0 sent send/recv(from 0 to "
                   "1) float32[4]; rank 1 sent send/recv(from 0 to 1) float32[5]");
      operation.root = rank;
      EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
      EXPECT_THAT(rueda_last_error(), HasSubstr("can't send to itself"));
    }
    EXPECT_EQ(Execute(context, Barrier()), RUEDA_OK);
  });
}

TEST_P(Kinds, StringsOfBytesOfAnyLength) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (int root = 0; root < size; ++root) {
      const std::string words = root == 1 ? "" : std::string(root * 90'000 + 1, 'a');
      rueda_result result = RUEDA_RESULT_INIT;
      ASSERT_EQ(rueda_broadcast_bytes(context, RUEDA_WORLD, root == 2 ? "object" : nullptr, root,
                                      rank == root ? words.data() : nullptr,
                                      rank == root ? words.size() : 12'345, &result),
                RUEDA_OK)
          << rueda_last_error();
      ASSERT_EQ(result.tensor.shape[0], static_cast<int64_t>(words.size()));
      EXPECT_EQ(memcmp(result.tensor.data, words.data(), words.size()), 0);
      rueda_result_free(&result);
    }
    const std::string mine(static_cast<size_t>(rank) * 3, static_cast<char>('0' + rank));
    std::vector<int64_t> sizes(size);
    rueda_result result = RUEDA_RESULT_INIT;
    ASSERT_EQ(rueda_allgather_bytes(context, RUEDA_WORLD, nullptr, mine.data(), mine.size(),
                                    &result, sizes.data()),
              RUEDA_OK)
        << rueda_last_error();
    std::string all;
    for (int r = 0; r < size; ++r) {
      EXPECT_EQ(sizes[r], 3 * r);
      all += std::string(static_cast<size_t>(r) * 3, static_cast<char>('0' + r));
    }
    EXPECT_EQ(std::string(static_cast<char*>(result.tensor.data), all.size()), all);
    rueda_result_free(&result);
  });
}

TEST_P(Kinds, RanksThatNameDifferentRootsOfBytesAreTold) {
  RunOn(2, [](rueda_context* context, int rank, int) {
    rueda_result result = RUEDA_RESULT_INIT;
    EXPECT_EQ(rueda_broadcast_bytes(context, RUEDA_WORLD, "o", rank, "abc", 3, &result),
              RUEDA_INVALID_ARGUMENT);
    EXPECT_THAT(rueda_last_error(), HasSubstr("disagree on the root"));
    EXPECT_EQ(rueda_broadcast_bytes(context, RUEDA_WORLD, "o", 77, "abc", 3, &result),
              RUEDA_INVALID_ARGUMENT);
  });
}

// Neighbours of one kind share buckets: what each of them is must not get mixed up.
TEST_P(Kinds, ManyOfAKindAtOnce) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    constexpr int kCount = 40;
    std::vector<std::vector<int32_t>> inputs(kCount), outputs(kCount);
    std::vector<std::unique_ptr<TensorOf>> views;
    std::vector<rueda_handle> handles(kCount);
    std::vector<rueda_operation> operations;
    const rueda_kind kinds[] = {RUEDA_ALLGATHER, RUEDA_ALLTOALL, RUEDA_REDUCESCATTER,
                                RUEDA_BROADCAST, RUEDA_REDUCE};
    for (int round = 0; round < 3; ++round) {
      for (const rueda_kind kind : kinds) {
        views.clear();
        for (int t = 0; t < kCount; ++t) {
          inputs[t].assign((t % 7 + 1) * size, rank + t);
          views.push_back(std::make_unique<TensorOf>(inputs[t]));
          const std::string name = "t" + std::to_string(t);
          rueda_operation operation = OfKind(kind, name.c_str(), views.back()->get());
          operation.reduce_op = RUEDA_SUM;
          operation.root = 1;
          ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handles[t]), RUEDA_OK)
              << rueda_last_error();
        }
        for (int t = kCount - 1; t >= 0; --t) {
          ASSERT_EQ(rueda_wait(context, handles[t], RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
          const int sum = size * t + size * (size - 1) / 2;
          if (kind == RUEDA_BROADCAST || kind == RUEDA_REDUCE) {
            const int expected = kind == RUEDA_BROADCAST ? 1 + t : rank == 1 ? sum : rank + t;
            ASSERT_EQ(inputs[t], std::vector<int32_t>(inputs[t].size(), expected));
          } else {
            rueda_result result = RUEDA_RESULT_INIT;
            ASSERT_EQ(rueda_result_take(context, handles[t], 0, &result), RUEDA_OK);
            const auto* data = static_cast<const int32_t*>(result.tensor.data);
            const int64_t rows = result.tensor.shape[0];
            const int64_t own = static_cast<int64_t>(inputs[t].size());
            ASSERT_EQ(rows, kind == RUEDA_ALLGATHER  ? own * size
                            : kind == RUEDA_ALLTOALL ? own
                                                     : own / size);
            for (int64_t i = 0; i < rows; ++i) {
              ASSERT_EQ(data[i], kind == RUEDA_REDUCESCATTER ? sum : t + i / (rows / size))
                  << "tensor " << t << " element " << i << " kind " << kind;
            }
            rueda_result_free(&result);
          }
          ASSERT_EQ(rueda_release(context, handles[t]), RUEDA_OK);
        }
      }
    }
  });
}

}  // namespace
}  // namespace rueda::testing
