// The backend of one rank: results are its inputs, and no call works for long.
#include "ops/solo/solo_backend.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "test/ops/backend/bucket_operations.h"

namespace rueda {
namespace {

class Solo : public ::testing::Test {
 protected:
  Solo() {
    Members members;
    members.ranks = {0};
    communicator_ = std::move(SoloBackend().Connect(members)).value();
  }

  // How many calls of Advance it took.
  int Run(const BucketOperation& operation) {
    communicator_->Start(operation);
    int calls = 1;
    for (; Next() != Progress::kDone; ++calls) {
    }
    return calls;
  }
  Progress Next() {
    const absl::StatusOr<Progress> progress = communicator_->Advance();
    EXPECT_TRUE(progress.ok()) << progress.status();
    return progress.value_or(Progress::kDone);
  }

  std::unique_ptr<Communicator> communicator_;
};

TEST_F(Solo, ALargeTensorTakesManyCalls) {
  constexpr int64_t kElements = (1 << 20) + 1;
  const std::vector<int32_t> input(kElements, 8);
  std::vector<int32_t> output(kElements, 0);
  const Piece piece = {input.data(), output.data(), kElements};
  BucketOperation operation = AllreduceOf({&piece, 1}, DType::kInt32);
  operation.scaling.prescale = 0.5;
  communicator_->Start(operation);
  EXPECT_EQ(output[0], 0) << "Start does none of the work";
  EXPECT_EQ(Next(), Progress::kMoved);
  EXPECT_EQ(output[0], 4);
  EXPECT_EQ(output[kElements / 8], 0) << "the first call took more than its part";
  EXPECT_EQ(output.back(), 0);
  while (Next() != Progress::kDone) {
  }
  EXPECT_EQ(output, std::vector<int32_t>(kElements, 4));
}

TEST_F(Solo, SmallTensorsTakeOneCall) {
  const std::vector<float> input(100, 3);
  std::vector<float> outputs[2] = {std::vector<float>(100), std::vector<float>(100)};
  const Piece pieces[] = {{input.data(), outputs[0].data(), 100},
                          {nullptr, nullptr, 0},
                          {input.data(), outputs[1].data(), 100}};
  EXPECT_EQ(Run(AllreduceOf(pieces, DType::kFloat32)), 1);
  EXPECT_EQ(outputs[0], input);
  EXPECT_EQ(outputs[1], input);
  EXPECT_EQ(Run(BarrierOf()), 1);
}

// The parts that a call takes begin and end within pieces, whose sizes share no factor with them.
TEST_F(Solo, PiecesOfAnySizeAreHandedOnWhole) {
  std::vector<std::vector<uint8_t>> inputs, outputs;
  std::vector<Piece> pieces;
  for (const size_t size : {1, 99'991, 0, 300'007, 7, 65'536, 1}) {
    inputs.emplace_back(size);
    for (size_t i = 0; i < size; ++i) inputs.back()[i] = static_cast<uint8_t>(i * 7 + size);
    outputs.emplace_back(size);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    pieces.push_back({inputs[i].data(), outputs[i].data(), static_cast<int64_t>(inputs[i].size())});
  }
  BucketOperation operation = AllreduceOf(pieces, DType::kUInt8);
  operation.kind = OpKind::kAllgather;
  EXPECT_GT(Run(operation), 4);
  EXPECT_EQ(outputs, inputs);
  // Where no result is wanted, or it lies in the input, nothing changes.
  pieces[3].output = nullptr;
  pieces[1].output = inputs[1].data();
  outputs[5].assign(outputs[5].size(), 0);
  operation.pieces = pieces;
  Run(operation);
  EXPECT_EQ(outputs, inputs);
}

}  // namespace
}  // namespace rueda
