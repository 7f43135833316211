// Ways to add up compressed tensors, against models of their definitions, and what they send.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "ops/compression/codec.h"
#include "ops/compression/power_sgd.h"
#include "ops/compression/scatter_reduce.h"
#include "ops/compression/top_k.h"
#include "test/ops/compression/network.h"

namespace rueda {
namespace {

using Vector = std::vector<float>;

Vector Random(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Vector values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

struct Tensor {
  int64_t rows;
  int64_t columns;
};

// One operation on all members: tensors[member][i] become the results. The states are by member and
// tensor; none: nothing is remembered.
template <typename R>
int64_t Reduce(const Compression& compression, const std::vector<Tensor>& shapes,
               std::vector<std::vector<Vector>>* tensors, std::vector<CompressionState>* states,
               int64_t divisor = 1) {
  const int members = static_cast<int>(tensors->size());
  Network network(members);
  std::vector<std::vector<Operand>> operands(tensors->size());
  std::vector<std::unique_ptr<R>> reductions;
  for (size_t member = 0; member < tensors->size(); ++member) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      CompressionState* const state =
          states == nullptr ? nullptr : &(*states)[member * shapes.size() + i];
      operands[member].push_back({(*tensors)[member][i].data(), 0,
                                  shapes[i].rows * shapes[i].columns, shapes[i].rows, 17 * i + 5,
                                  state});
    }
    reductions.push_back(std::make_unique<R>(network.end(static_cast<int>(member)), members,
                                             static_cast<int>(member)));
    ReductionArgs args;
    args.compression = compression;
    args.operands = operands[member];
    args.after.divisor = divisor;
    EXPECT_TRUE(reductions.back()->Start(args).ok());
  }
  std::vector<bool> done(tensors->size());
  for (size_t left = done.size(); left > 0;) {
    for (size_t member = 0; member < done.size(); ++member) {
      if (done[member]) continue;
      const absl::StatusOr<Progress> progress = reductions[member]->Advance();
      EXPECT_TRUE(progress.ok()) << progress.status();
      if (!progress.ok()) return -1;
      done[member] = *progress == Progress::kDone;
      left -= done[member];
    }
  }
  return network.bytes_sent();
}

std::vector<std::vector<Vector>> Inputs(int members, const std::vector<Tensor>& shapes,
                                        unsigned seed = 0) {
  std::vector<std::vector<Vector>> tensors(static_cast<size_t>(members));
  for (auto& own : tensors) {
    for (const Tensor& shape : shapes) own.push_back(Random(shape.rows * shape.columns, ++seed));
  }
  return tensors;
}

Vector Passed(Compressor compressor, const Vector& values) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<char> coded(static_cast<size_t>(CodedBytes(compressor, count)));
  Encode(compressor, values.data(), count, coded.data());
  Vector decoded(values.size());
  Decode(compressor, coded.data(), count, decoded.data());
  return decoded;
}

const std::vector<Tensor> kShapes = {{1, 3}, {40, 70}, {1, 512}, {300, 500}, {2'000, 1}};

// The definition: everybody's tensors are encoded, and their sum once more.
TEST(ScatterReduce, EncodesTensorsAndTheirSumBitByBit) {
  for (const Compressor compressor :
       {Compressor::kFloat16, Compressor::kBfloat16, Compressor::kFloat8, Compressor::kInt8,
        Compressor::kOneBit}) {
    for (const int members : {2, 3, 5}) {
      auto tensors = Inputs(members, kShapes);
      const auto inputs = tensors;
      Reduce<ScatterReduce>({compressor, 0, false}, kShapes, &tensors, nullptr, members);
      for (size_t i = 0; i < kShapes.size(); ++i) {
        Vector sum(inputs[0][i].size());
        for (const auto& own : inputs) {
          const Vector passed = Passed(compressor, own[i]);
          for (size_t k = 0; k < sum.size(); ++k) sum[k] += passed[k];
        }
        for (float& value : sum) value /= static_cast<float>(members);
        const Vector expected = Passed(compressor, sum);
        for (const auto& own : tensors) {
          ASSERT_EQ(memcmp(own[i].data(), expected.data(), 4 * expected.size()), 0)
              << CompressorName(compressor) << " of " << members << ", tensor " << i;
        }
      }
    }
  }
}

TEST(ScatterReduce, AddsWhatWasLostTheNextTime) {
  constexpr Compressor kCompressor = Compressor::kOneBit;
  constexpr int kMembers = 3;
  std::vector<CompressionState> states(kMembers * kShapes.size());
  std::vector<std::vector<Vector>> lost(kMembers);  // by member and tensor
  std::vector<Vector> sum_lost;
  for (const Tensor& shape : kShapes) {
    for (auto& own : lost) own.emplace_back(shape.rows * shape.columns, 0.0f);
    sum_lost.emplace_back(shape.rows * shape.columns, 0.0f);
  }
  for (unsigned round = 0; round < 4; ++round) {
    auto tensors = Inputs(kMembers, kShapes, 100 * round);
    const auto inputs = tensors;
    Reduce<ScatterReduce>({kCompressor, 0, true}, kShapes, &tensors, &states);
    for (size_t i = 0; i < kShapes.size(); ++i) {
      Vector sum(inputs[0][i].size());
      for (size_t member = 0; member < inputs.size(); ++member) {
        Vector brought = inputs[member][i];
        for (size_t k = 0; k < sum.size(); ++k) brought[k] += lost[member][i][k];
        const Vector passed = Passed(kCompressor, brought);
        for (size_t k = 0; k < sum.size(); ++k) {
          sum[k] += passed[k];
          lost[member][i][k] = brought[k] - passed[k];
        }
      }
      for (size_t k = 0; k < sum.size(); ++k) sum[k] += sum_lost[i][k];
      const Vector expected = Passed(kCompressor, sum);
      for (size_t k = 0; k < sum.size(); ++k) sum_lost[i][k] = sum[k] - expected[k];
      for (const auto& own : tensors) ASSERT_EQ(own[i], expected) << round << " tensor " << i;
    }
  }
}

// Of what a ring of float32 would send.
TEST(Reductions, SendAsLittleAsPromised) {
  const std::vector<Tensor> shapes = {{1'024, 1'024}};
  for (const int members : {2, 4}) {
    const double ring = 2.0 * (members - 1) * 4 * 1'024 * 1'024;
    const auto ratio = [&](auto reduction, const Compression& compression) {
      using R = typename decltype(reduction)::type;
      auto tensors = Inputs(members, shapes);
      return static_cast<double>(Reduce<R>(compression, shapes, &tensors, nullptr)) / ring;
    };
    const std::type_identity<ScatterReduce> scatter;
    EXPECT_NEAR(ratio(scatter, {Compressor::kFloat16, 0, false}), 0.5, 0.001);
    EXPECT_NEAR(ratio(scatter, {Compressor::kFloat8, 0, false}), 0.25, 0.003);
    EXPECT_LE(ratio(scatter, {Compressor::kInt8, 0, false}), 0.27);
    EXPECT_LE(ratio(scatter, {Compressor::kOneBit, 0, false}), 0.034);
    // An entry has 8 bytes, and each member gets all of them.
    EXPECT_NEAR(ratio(std::type_identity<TopK>(), {Compressor::kTopK, 10'000, false}),
                0.01 * members, 0.001);
    EXPECT_NEAR(ratio(std::type_identity<PowerSgd>(), {Compressor::kPowerSgd, 4, false}),
                2.0 * 1'024 * 4 / (1'024 * 1'024), 0.001);
  }
}

TEST(TopK, AddsUpTheLargestOfEachChunk) {
  const std::vector<Tensor> shapes = {{1, 100}, {3, 40'000}};
  constexpr uint32_t kShare = 20'000;  // 2 %
  auto tensors = Inputs(3, shapes);
  const auto inputs = tensors;
  std::vector<CompressionState> states(3 * shapes.size());
  Reduce<TopK>({Compressor::kTopK, kShare, true}, shapes, &tensors, &states, 3);
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto count = static_cast<int64_t>(inputs[0][i].size());
    Vector sum(inputs[0][i].size());
    for (size_t member = 0; member < inputs.size(); ++member) {
      const Vector& input = inputs[member][i];
      Vector rest = input;
      for (int64_t begin = 0; begin < count; begin += kTopKChunk) {
        const int64_t end = std::min(count, begin + kTopKChunk);
        Vector magnitudes;
        for (int64_t k = begin; k < end; ++k) magnitudes.push_back(std::fabs(input[k]));
        std::sort(magnitudes.rbegin(), magnitudes.rend());
        const int64_t chosen = ChosenOf(kShare, end - begin);
        ASSERT_EQ(chosen, static_cast<int64_t>(std::ceil(0.02 * static_cast<double>(end - begin))));
        const float least = magnitudes[static_cast<size_t>(chosen) - 1];
        for (int64_t k = begin; k < end; ++k) {
          if (std::fabs(input[k]) < least) continue;
          sum[k] += input[k];
          rest[k] = 0;
        }
      }
      EXPECT_EQ(states[member * shapes.size() + i].sent.values, rest);
    }
    for (float& value : sum) value = value / 3;
    for (const auto& own : tensors) EXPECT_EQ(own[i], sum);
  }
}

// Columns of `left` are orthonormal, and the product is the projection of the mean on them.
TEST(PowerSgd, FindsAMatrixOfItsRank) {
  constexpr int64_t kRows = 30, kColumns = 50;
  for (const uint32_t rank : {1u, 3u}) {
    // All members' matrices, and so their mean, have the same row space of that rank.
    std::vector<std::vector<Vector>> tensors(2);
    const Vector right = Random(rank * kColumns, 9);
    for (unsigned member = 0; member < 2; ++member) {
      const Vector left = Random(kRows * rank, 20 + member);
      Vector matrix(kRows * kColumns);
      for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t j = 0; j < kColumns; ++j) {
          for (int64_t k = 0; k < rank; ++k) {
            matrix[i * kColumns + j] += left[i * rank + k] * right[k * kColumns + j];
          }
        }
      }
      tensors[member].push_back(std::move(matrix));
    }
    const auto inputs = tensors;
    Reduce<PowerSgd>({Compressor::kPowerSgd, rank, false}, {{kRows, kColumns}}, &tensors, nullptr,
                     2);
    for (size_t k = 0; k < inputs[0][0].size(); ++k) {
      ASSERT_NEAR(tensors[0][0][k], (inputs[0][0][k] + inputs[1][0][k]) / 2, 2e-4);
    }
    EXPECT_EQ(tensors[0][0], tensors[1][0]);
  }
}

// A matrix of less rank than the factors: what is left of their other columns is rounding, which
// must add nothing. Each row the same is what a loss that is a sum makes of a layer's gradient.
TEST(PowerSgd, ARankThatTheMatrixHasNotAddsNothing) {
  constexpr int64_t kRows = 60, kColumns = 70;
  for (const uint32_t rank : {2u, 4u, 16u}) {
    for (const bool rows_are_equal : {true, false}) {
      std::vector<CompressionState> states(2);
      for (unsigned round = 0; round < 100; ++round) {
        const Vector left = Random(kRows, 7);
        std::vector<std::vector<Vector>> tensors(2);
        for (unsigned member = 0; member < 2; ++member) {
          // Others in each round, or a matrix of rank one that stays.
          const Vector right = Random(kColumns, rows_are_equal ? 2 * round + member : 5);
          Vector matrix;
          for (const float a : left) {
            for (const float b : right) matrix.push_back(rows_are_equal ? b : a * b);
          }
          tensors[member].push_back(std::move(matrix));
        }
        const auto inputs = tensors;
        Reduce<PowerSgd>({Compressor::kPowerSgd, rank, true}, {{kRows, kColumns}}, &tensors,
                         &states, 2);
        double error = 0, norm = 0;
        for (size_t k = 0; k < inputs[0][0].size(); ++k) {
          const double mean = (inputs[0][0][k] + inputs[1][0][k]) / 2;
          error += (tensors[0][0][k] - mean) * (tensors[0][0][k] - mean);
          norm += mean * mean;
        }
        ASSERT_LE(std::sqrt(error / norm), 1e-4)
            << "rank " << rank << ", round " << round << (rows_are_equal ? ", equal rows" : "");
        EXPECT_EQ(tensors[0][0], tensors[1][0]);
      }
    }
  }
}

// The algorithm of the paper, in float64, over several steps.
TEST(PowerSgd, FollowsThePaperStepByStep) {
  constexpr int64_t kRows = 12, kColumns = 20;
  constexpr int kMembers = 2;
  using Matrix = std::vector<double>;
  std::vector<CompressionState> states(kMembers);
  std::vector<Matrix> lost(kMembers, Matrix(kRows * kColumns));
  Matrix q;
  for (unsigned round = 0; round < 4; ++round) {
    auto tensors = Inputs(kMembers, {{kRows, kColumns}}, 10 * round);
    const auto inputs = tensors;
    Reduce<PowerSgd>({Compressor::kPowerSgd, 1, true}, {{kRows, kColumns}}, &tensors, &states,
                     kMembers);
    if (round > 0) {  // the first right factor is random
      std::vector<Matrix> brought;
      Matrix p(kRows);
      for (size_t member = 0; member < kMembers; ++member) {
        brought.emplace_back(inputs[member][0].begin(), inputs[member][0].end());
        for (size_t k = 0; k < brought[member].size(); ++k) brought[member][k] += lost[member][k];
        for (int64_t i = 0; i < kRows; ++i) {
          for (int64_t j = 0; j < kColumns; ++j) p[i] += brought[member][i * kColumns + j] * q[j];
        }
      }
      double norm = 0;
      for (const double value : p) norm += value * value;
      for (double& value : p) value /= std::sqrt(norm);
      Matrix sum(kColumns);
      for (size_t member = 0; member < kMembers; ++member) {
        Matrix own(kColumns);
        for (int64_t i = 0; i < kRows; ++i) {
          for (int64_t j = 0; j < kColumns; ++j) own[j] += brought[member][i * kColumns + j] * p[i];
        }
        for (int64_t j = 0; j < kColumns; ++j) sum[j] += own[j];
        for (int64_t i = 0; i < kRows; ++i) {
          for (int64_t j = 0; j < kColumns; ++j) {
            const size_t k = static_cast<size_t>(i * kColumns + j);
            lost[member][k] = brought[member][k] - p[i] * own[j];
            ASSERT_NEAR(states[member].sent.values[k], lost[member][k], 1e-4) << round;
          }
        }
      }
      for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t j = 0; j < kColumns; ++j) {
          ASSERT_NEAR(tensors[0][0][i * kColumns + j], p[i] * sum[j] / kMembers, 1e-4) << round;
        }
      }
    }
    q.assign(states[0].factor.begin(), states[0].factor.end());
    for (size_t member = 0; member < kMembers; ++member) {
      lost[member].assign(states[member].sent.values.begin(), states[member].sent.values.end());
    }
  }
}

TEST(PowerSgd, LeavesVectorsAndSmallMatricesWhole) {
  const std::vector<Tensor> shapes = {{1, 100}, {100, 1}, {4, 4}, {50, 60}};
  auto tensors = Inputs(2, shapes);
  const auto inputs = tensors;
  Reduce<PowerSgd>({Compressor::kPowerSgd, 2, false}, shapes, &tensors, nullptr);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t k = 0; k < inputs[0][i].size(); ++k) {
      ASSERT_EQ(tensors[0][i][k], inputs[0][i][k] + inputs[1][i][k]);
    }
  }
  EXPECT_NE(tensors[0][3][0], inputs[0][3][0] + inputs[1][3][0]);
}

}  // namespace
}  // namespace rueda
