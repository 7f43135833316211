// Compressed reductions on every way to run a job: how far from the truth they may be, that what is
// lost comes back, and that all ranks have the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "test/support/bfloat16.h"
#include "test/support/jobs.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Compressed : public JobTest {};
INSTANTIATE_TEST_SUITE_P(All, Compressed, ::testing::ValuesIn(AllSetups()),
                         [](const auto& setup) { return setup.param.name; });

// Of several hosts, whose ranks add up before they compress.
class CompressedHosts : public JobTest {};
INSTANTIATE_TEST_SUITE_P(All, CompressedHosts, ::testing::ValuesIn(HostsSetups()),
                         [](const auto& setup) { return setup.param.name; });

constexpr int64_t kRows = 60;
constexpr int64_t kColumns = 70;

const char* const kCompressors[] = {"fp16", "bf16",      "fp8",  "int8",
                                    "1bit", "topk:0.25", "auto", "powersgd:2"};

// What a rank brings: a matrix near rank one, with noise.
std::vector<float> Input(int rank, int round, int64_t rows = kRows) {
  std::mt19937 random(static_cast<unsigned>(rank * 1000 + round));
  std::normal_distribution<float> normal;
  std::vector<float> left(static_cast<size_t>(rows)), right(kColumns), values;
  for (float& value : left) value = normal(random) + 1;
  for (float& value : right) value = normal(random);
  for (const float a : left) {
    for (const float b : right) values.push_back(a * b + 0.1f * normal(random));
  }
  return values;
}

std::vector<double> ExactMean(int size, int round, int64_t rows = kRows) {
  std::vector<double> mean(static_cast<size_t>(rows * kColumns));
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> input = Input(rank, round, rows);
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += input[i] / double{1.0 * size};
  }
  return mean;
}

double Norm(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

rueda_operation Average(const char* name, const TensorOf& tensor, const char* compressor) {
  rueda_operation operation = Allreduce(name, tensor.get(), RUEDA_AVERAGE);
  operation.compressor = compressor;
  return operation;
}

std::vector<float> Averaged(rueda_context* context, const char* name, std::vector<float> values,
                            const char* compressor) {
  const TensorOf tensor(values.data(), {static_cast<int64_t>(values.size()) / kColumns, kColumns},
                        RUEDA_FLOAT32);
  EXPECT_EQ(Execute(context, Average(name, tensor, compressor)), RUEDA_OK) << rueda_last_error();
  return values;
}

bool AllHaveTheSameBits(rueda_context* context, const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  std::vector<uint32_t> low = bits, high = bits;
  const TensorOf a(low), b(high);
  EXPECT_EQ(Execute(context, Allreduce("low", a.get(), RUEDA_MIN)), RUEDA_OK);
  EXPECT_EQ(Execute(context, Allreduce("high", b.get(), RUEDA_MAX)), RUEDA_OK);
  return low == bits && high == bits;
}

// How far the result of one operation may be from the truth, of its norm.
double ErrorOf(const std::string& compressor) {
  if (compressor == "fp16") return 1e-3;
  if (compressor == "bf16") return 1e-2;
  if (compressor == "int8") return 0.03;
  if (compressor == "fp8") return 0.06;
  if (compressor == "auto") return 1e-5;  // none, of a small one
  return 1;
}

void ExpectNearTheMean(rueda_context* context, int rank, int size) {
  for (const char* compressor : kCompressors) {
    const std::vector<float> result = Averaged(context, compressor, Input(rank, 0), compressor);
    std::vector<double> error = ExactMean(size, 0);
    const double norm = Norm(error);
    for (size_t i = 0; i < error.size(); ++i) error[i] -= result[i];
    EXPECT_LE(Norm(error), ErrorOf(compressor) * norm) << compressor;
    EXPECT_TRUE(AllHaveTheSameBits(context, result)) << compressor;
  }
}

TEST_P(Compressed, ResultsAreNearTheMeanAndAlikeOnAllRanks) {
  RunOn(3, ExpectNearTheMean);
}
TEST_P(CompressedHosts, ResultsAreNearTheMeanAndAlikeOnAllRanks) {
  RunOn(4, ExpectNearTheMean);
}

// The sum of all results is the sum of all inputs but for what is left out still: it does not grow.
// Without feedback it does, by as much each time. (1bit's comes to rest late: when the mean
// magnitude is as large as the largest element.)
void ExpectThatWhatIsLostComesBack(rueda_context* context, int rank, int size) {
  constexpr int64_t kFew = 10;
  constexpr int kRounds = 100;
  for (const std::string compressor : {"fp8", "int8", "1bit", "topk:0.25", "powersgd:2"}) {
    for (const bool feedback : {true, false}) {
      const std::string words = compressor + (feedback ? "" : ",no_feedback");
      std::vector<double> error(kFew * kColumns);
      double half = 0;
      const std::vector<double> mean = ExactMean(size, 0, kFew);
      for (int round = 0; round < kRounds; ++round) {
        // The same each time, so that what is left out is too.
        const std::vector<float> result =
            Averaged(context, words.c_str(), Input(rank, 0, kFew), words.c_str());
        for (size_t i = 0; i < error.size(); ++i) error[i] += mean[i] - result[i];
        if (round + 1 == kRounds / 2) half = Norm(error);
      }
      if (feedback) {
        EXPECT_LE(Norm(error), 1.5 * half + 0.1 * Norm(mean)) << words;
      } else {
        EXPECT_GE(Norm(error), 1.9 * half) << words;
      }
    }
  }
}

TEST_P(Compressed, WhatIsLostComesBack) {
  RunOn(2, ExpectThatWhatIsLostComesBack);
}
TEST_P(CompressedHosts, WhatIsLostComesBack) {
  RunOn(4, ExpectThatWhatIsLostComesBack);
}

// What all tensors have lost.
void Forget(rueda_context* context) {
  EXPECT_EQ(Execute(context, Barrier()), RUEDA_OK);
  const uint64_t empty = 2;  // the format
  const void* data[] = {&empty};
  const size_t bytes[] = {sizeof empty};
  EXPECT_EQ(rueda_compression_load(context, RUEDA_WORLD, data, bytes, 1), RUEDA_OK)
      << rueda_last_error();
}

// One after another, at once, in a group: the same bits.
TEST_P(Compressed, AResultDoesNotDependOnWhatItsTensorIsFusedWith) {
  RunOn(3, [](rueda_context* context, int rank, int) {
    const int64_t rows[] = {1, 3, 40, 7, 100};
    constexpr size_t kTensors = std::size(rows);
    for (const char* compressor : kCompressors) {
      std::vector<std::vector<float>> alone, together, group;
      std::vector<std::string> names;
      for (size_t i = 0; i < kTensors; ++i) {
        names.push_back(std::string(compressor) + std::to_string(i));
        alone.push_back(Averaged(context, names[i].c_str(), Input(rank, 0, rows[i]), compressor));
        together.push_back(Input(rank, 0, rows[i]));
        group.push_back(Input(rank, 0, rows[i]));
      }
      Forget(context);
      std::vector<std::unique_ptr<TensorOf>> views;
      std::vector<rueda_handle> handles(kTensors);
      for (size_t i = 0; i < kTensors; ++i) {
        views.push_back(std::make_unique<TensorOf>(
            together[i].data(), std::vector<int64_t>{rows[i], kColumns}, RUEDA_FLOAT32));
        const rueda_operation operation = Average(names[i].c_str(), *views[i], compressor);
        ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handles[i]), RUEDA_OK);
      }
      for (const rueda_handle handle : handles) {
        ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
        ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
      }
      EXPECT_EQ(together, alone) << compressor;
      Forget(context);
      std::vector<rueda_operation> operations;
      for (size_t i = 0; i < kTensors; ++i) {
        views[i] = std::make_unique<TensorOf>(
            group[i].data(), std::vector<int64_t>{rows[i], kColumns}, RUEDA_FLOAT32);
        operations.push_back(Average(names[i].c_str(), *views[i], compressor));
      }
      ASSERT_EQ(rueda_execute(context, operations.data(), kTensors, RUEDA_FOREVER, nullptr),
                RUEDA_OK)
          << rueda_last_error();
      EXPECT_EQ(group, alone) << compressor;
    }
  });
}

// Behind a large operation, so that they are ready together: of an unnamed one nothing is learned.
TEST_P(Compressed, AutoTakesNamedAndUnnamedTensorsAtOnce) {
  RunOn(2, [](rueda_context* context, int rank, int size) {
    std::vector<float> large(4 << 20, 1);
    const TensorOf large_view(large);
    for (int round = 0; round < 4; ++round) {
      std::vector<std::vector<float>> values(2, std::vector<float>(100, 1.0f + rank));
      const TensorOf views[] = {TensorOf(values[0]), TensorOf(values[1])};
      rueda_operation operations[] = {Allreduce("large", large_view.get()),
                                      Average("w", views[0], "auto"),
                                      Average(nullptr, views[1], "auto")};
      if (round % 2 == 1) std::swap(operations[1], operations[2]);
      rueda_handle handles[3];
      for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(rueda_submit(context, &operations[i], 1, nullptr, &handles[i]), RUEDA_OK)
            << rueda_last_error();
      }
      for (const rueda_handle handle : handles) {
        ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
        ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
      }
      for (const auto& own : values) {
        EXPECT_EQ(own, std::vector<float>(100, (1 + static_cast<float>(size)) / 2));
      }
    }
  });
}

// Three of four ranks, which are on two hosts: one of them has two of the ranks.
TEST_P(Compressed, AProcessSetMayHaveMoreRanksOnOneHostThanOnAnother) {
  RunOn(4, [](rueda_context* context, int rank, int) {
    const int32_t ranks[] = {0, 1, 2};
    int32_t set = -1;
    ASSERT_EQ(rueda_process_set_add(context, ranks, 3, RUEDA_FOREVER, &set), RUEDA_OK)
        << rueda_last_error();
    if (rank < 3) {
      for (const char* compressor : kCompressors) {
        std::vector<float> values = Input(rank, 0);
        const TensorOf tensor(values.data(), {kRows, kColumns}, RUEDA_FLOAT32);
        rueda_operation operation = Average(compressor, tensor, compressor);
        operation.process_set = set;
        ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
        std::vector<double> error = ExactMean(3, 0);
        const double norm = Norm(error);
        for (size_t i = 0; i < error.size(); ++i) error[i] -= values[i];
        EXPECT_LE(Norm(error), ErrorOf(compressor) * norm) << compressor;
      }
      rueda_result saved = RUEDA_RESULT_INIT;
      ASSERT_EQ(rueda_compression_save(context, set, &saved), RUEDA_OK) << rueda_last_error();
      rueda_result_free(&saved);
    }
    EXPECT_EQ(Execute(context, Barrier()), RUEDA_OK);
  });
}

TEST_P(Compressed, ReducescattersGiveEachItsRows) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (const char* compressor : kCompressors) {
      std::vector<float> input = Input(rank, 1);
      const TensorOf tensor(input.data(), {kRows, kColumns}, RUEDA_FLOAT32);
      rueda_operation operation = Average(compressor, tensor, compressor);
      operation.kind = RUEDA_REDUCESCATTER;
      rueda_result result = ExecuteAndTake(context, operation);
      int64_t begin = 0;
      for (int member = 0; member < rank; ++member) {
        begin += kRows / size + (member < kRows % size);
      }
      const int64_t rows = kRows / size + (rank < kRows % size);
      ASSERT_EQ(result.tensor.shape[0], rows);
      const std::vector<double> mean = ExactMean(size, 1);
      const auto* const values = static_cast<const float*>(result.tensor.data);
      std::vector<double> error, truth;
      for (int64_t i = 0; i < rows * kColumns; ++i) {
        truth.push_back(mean[static_cast<size_t>(begin * kColumns + i)]);
        error.push_back(values[i] - truth.back());
      }
      EXPECT_LE(Norm(error), ErrorOf(compressor) * Norm(truth)) << compressor;
      rueda_result_free(&result);
    }
  });
}

// This rank's rows of the means of a group's tensors; names[i] has rows[i] rows.
std::vector<std::vector<float>> ScatteredGroup(rueda_context* context, int rank,
                                               const std::vector<int64_t>& rows,
                                               const std::vector<std::string>& names,
                                               const char* compressor) {
  std::vector<std::vector<float>> inputs, results;
  std::vector<std::unique_ptr<TensorOf>> tensors;
  std::vector<rueda_operation> operations;
  for (size_t i = 0; i < rows.size(); ++i) {
    inputs.push_back(Input(rank, 1, rows[i]));
    tensors.push_back(std::make_unique<TensorOf>(
        inputs[i].data(), std::vector<int64_t>{rows[i], kColumns}, RUEDA_FLOAT32));
    operations.push_back(Average(names[i].c_str(), *tensors[i], compressor));
    operations.back().kind = RUEDA_REDUCESCATTER;
  }
  rueda_handle handle;
  EXPECT_EQ(rueda_submit(context, operations.data(), operations.size(), nullptr, &handle), RUEDA_OK)
      << rueda_last_error();
  EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
  for (size_t i = 0; i < rows.size(); ++i) {
    rueda_result result = RUEDA_RESULT_INIT;
    EXPECT_EQ(rueda_result_take(context, handle, i, &result), RUEDA_OK) << rueda_last_error();
    const auto* const values = static_cast<const float*>(result.tensor.data);
    results.emplace_back(values, values + result.tensor.shape[0] * kColumns);
    rueda_result_free(&result);
  }
  EXPECT_EQ(rueda_release(context, handle), RUEDA_OK);
  return results;
}

// Tensors without elements have no part in what is sent, and the others' parts are still theirs.
TEST_P(Compressed, ReducescattersOfEmptyTensorsTakeNothingFromOthers) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (const std::string compressor : kCompressors) {
      std::vector<std::string> names;
      for (int i = 0; i < 5; ++i) names.push_back(compressor + std::to_string(i));
      std::vector<int64_t> rows = {1, 7, 1, 40, 2};
      std::vector<std::vector<float>> expected =
          ScatteredGroup(context, rank, rows, names, compressor.c_str());
      Forget(context);
      rows[0] = rows[2] = 0;
      expected[0] = expected[2] = {};
      EXPECT_EQ(ScatteredGroup(context, rank, rows, names, compressor.c_str()), expected)
          << compressor;
      for (size_t i = 0; i < rows.size(); ++i) {
        const int64_t own = rows[i] / size + (rank < rows[i] % size);
        EXPECT_EQ(expected[i].size(), static_cast<size_t>(own * kColumns)) << names[i];
      }
    }
  });
}

TEST_P(Compressed, ScaleFactorsAndNarrowTypesAndOtherOutputsWork) {
  RunOn(2, [](rueda_context* context, int rank, int size) {
    for (const char* compressor : {"int8", "topk:1", "powersgd:64"}) {
      std::vector<float> input = Input(rank, 2), output(input.size());
      const std::vector<float> before = input;
      const TensorOf in(input.data(), {kRows, kColumns}, RUEDA_FLOAT32);
      const TensorOf out(output.data(), {kRows, kColumns}, RUEDA_FLOAT32);
      rueda_operation operation = Allreduce(nullptr, in.get());  // unnamed: nothing is remembered
      operation.compressor = compressor;
      operation.output = out.get();
      operation.prescale = 3;
      operation.postscale = 0.5;
      ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(input, before);
      std::vector<BFloat16> narrow(before.begin(), before.end());
      const TensorOf view(narrow.data(), {kRows, kColumns}, RUEDA_BFLOAT16);
      ASSERT_EQ(Execute(context, Average(nullptr, view, compressor)), RUEDA_OK);
      const std::vector<double> mean = ExactMean(size, 2);
      std::vector<double> error, narrow_error;
      for (size_t i = 0; i < mean.size(); ++i) {
        error.push_back(output[i] - 1.5 * size * mean[i]);
        narrow_error.push_back(static_cast<float>(narrow[i]) - mean[i]);
      }
      EXPECT_LE(Norm(error), 0.03 * 1.5 * size * Norm(mean)) << compressor;
      EXPECT_LE(Norm(narrow_error), 0.04 * Norm(mean)) << compressor;
    }
  });
}

void ExpectThatTheOthersGoOn(rueda_context* context, int rank, int size) {
  for (const char* compressor : {"fp16", "int8", "topk:1", "powersgd:60"}) {
    // All together, and then without rank 0.
    for (int round = 0; round < (rank == 0 ? 1 : 3); ++round) {
      std::vector<float> values = Input(rank, 3);
      const TensorOf tensor(values.data(), {kRows, kColumns}, RUEDA_FLOAT32);
      rueda_operation operation = Average(compressor, tensor, compressor);
      operation.reduce_op = RUEDA_AVERAGE_LIVE;
      ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
      std::vector<double> mean(values.size());
      const int first = round == 0 ? 0 : 1;
      for (int other = first; other < size; ++other) {
        const std::vector<float> input = Input(other, 3);
        for (size_t i = 0; i < mean.size(); ++i) {
          mean[i] += input[i] / static_cast<double>(size - first);
        }
      }
      std::vector<double> error;
      for (size_t i = 0; i < mean.size(); ++i) error.push_back(values[i] - mean[i]);
      EXPECT_LE(Norm(error), 0.06 * Norm(mean)) << compressor << " round " << round;
    }
    ASSERT_EQ(rueda_join(context, RUEDA_WORLD, RUEDA_FOREVER, nullptr), RUEDA_OK);
  }
}

TEST_P(Compressed, OthersGoOnWithoutThoseWhoHaveJoined) {
  RunOn(3, ExpectThatTheOthersGoOn);
}
TEST_P(CompressedHosts, OthersGoOnWithoutThoseWhoHaveJoined) {
  RunOn(4, ExpectThatTheOthersGoOn);
}

TEST_P(Compressed, WhatIsNotANumberReachesEverybodyAndIsForgotten) {
  RunOn(2, [](rueda_context* context, int rank, int) {
    for (const char* compressor : kCompressors) {
      std::vector<float> input = Input(rank, 4);
      if (rank == 1) input[1'000] = std::numeric_limits<float>::quiet_NaN();
      const std::vector<float> poisoned = Averaged(context, compressor, input, compressor);
      EXPECT_FALSE(std::isfinite(poisoned[1'000])) << compressor;
      for (const float value : Averaged(context, compressor, Input(rank, 4), compressor)) {
        ASSERT_TRUE(std::isfinite(value)) << compressor;
      }
    }
  });
}

TEST_P(Compressed, RanksThatDisagreeHearSo) {
  RunOn(2, [](rueda_context* context, int rank, int) {
    std::vector<float> values(100, 1);
    const TensorOf tensor(values);
    EXPECT_EQ(Execute(context, Average("w", tensor, rank == 0 ? "int8" : "fp16")),
              RUEDA_INVALID_ARGUMENT);
    EXPECT_THAT(std::string(rueda_last_error()),
                AllOf(HasSubstr("compressor"), HasSubstr("int8"), HasSubstr("fp16")));
    EXPECT_EQ(Execute(context, Average("w", tensor, "int8")), RUEDA_OK) << rueda_last_error();
  });
}

TEST_P(Compressed, WhatIsRememberedIsSavedAndLoaded) {
  RunOn(2, [](rueda_context* context, int rank, int) {
    for (const char* compressor : {"1bit", "topk:0.1", "powersgd:1"}) {
      Averaged(context, compressor, Input(rank, 5), compressor);
      rueda_result saved = RUEDA_RESULT_INIT;
      ASSERT_EQ(rueda_compression_save(context, RUEDA_WORLD, &saved), RUEDA_OK)
          << rueda_last_error();
      const std::vector<float> next = Averaged(context, compressor, Input(rank, 6), compressor);
      const std::vector<float> later = Averaged(context, compressor, Input(rank, 6), compressor);
      EXPECT_NE(next, later);
      // All ranks' to all.
      std::vector<int64_t> sizes(2);
      rueda_result all = RUEDA_RESULT_INIT;
      ASSERT_EQ(
          rueda_allgather_bytes(context, RUEDA_WORLD, "states", saved.tensor.data,
                                static_cast<size_t>(saved.tensor.shape[0]), &all, sizes.data()),
          RUEDA_OK);
      const char* const begin = static_cast<const char*>(all.tensor.data);
      const void* data[] = {begin, begin + sizes[0]};
      const size_t bytes[] = {static_cast<size_t>(sizes[0]), static_cast<size_t>(sizes[1])};
      ASSERT_EQ(rueda_compression_load(context, RUEDA_WORLD, data, bytes, 2), RUEDA_OK);
      EXPECT_EQ(Averaged(context, compressor, Input(rank, 6), compressor), next) << compressor;
      rueda_result_free(&saved);
      rueda_result_free(&all);
    }
  });
}

// Large enough for `auto` to try: the result is near whatever it takes, and alike. Where the bytes
// go over shared memory there is nothing to be gained.
TEST_P(Compressed, AutoTriesAndSettles) {
  const bool tries = GetParam().name.find("gloo") != std::string::npos ||
                     GetParam().name.find("hosts") != std::string::npos;
  RunOn(2, [tries](rueda_context* context, int rank, int size) {
    constexpr int64_t kManyRows = 200;
    const std::vector<double> mean = ExactMean(size, 7, kManyRows);
    int lossy = 0;
    for (int round = 0; round < 12; ++round) {
      const std::vector<float> result = Averaged(context, "w", Input(rank, 7, kManyRows), "auto");
      std::vector<double> error = mean;
      for (size_t i = 0; i < error.size(); ++i) error[i] -= result[i];
      ASSERT_LE(Norm(error), 0.05 * Norm(mean)) << round;
      ASSERT_TRUE(AllHaveTheSameBits(context, result)) << round;
      if (round < 9) lossy += Norm(error) > 1e-4 * Norm(mean);
    }
    EXPECT_EQ(lossy, tries ? 6 : 0);
  });
}

}  // namespace
}  // namespace rueda::testing
