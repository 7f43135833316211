// The lanes of a rank that is alone, over the real backend for that. Each test's own thread.
#include "controller/lanes/lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "ops/host/segment.h"
#include "ops/solo/solo_backend.h"

namespace rueda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LanesTest : public ::testing::Test, public Lanes::Listener {
 protected:
  LanesTest() : member_(0, 1), tracks_(&timeline_, 0) {
    world_.topology = MakeTopology({"host"});
    world_.infos.resize(1);
    absl::StatusOr<std::unique_ptr<Segment>> segment = Segment::Create(1, 0);
    EXPECT_TRUE(segment.ok()) << segment.status();
    world_.neighbourhood.segment = *std::move(segment);
    backends_.push_back(std::make_unique<SoloBackend>());
    Lanes::Args args;
    args.world = &world_;
    args.config = &config_;
    args.member = &member_;
    args.tracks = &tracks_;
    args.timeline = &timeline_;
    args.activity = &activity_;
    args.backends = &backends_;
    args.listener = this;
    lanes_.emplace(std::move(args));
    EXPECT_TRUE(lanes_->Open(kWorldSet).ok());
  }

  void OnEnqueued(Request*) override { ADD_FAILURE() << "no device"; }
  void OnLastBucketDone(Request* request, Nanos /*at*/) override { ended_.push_back(request); }

  // A sum of one rank, which is its input.
  void LaunchSum(Token token, Priority priority = Priority::kNormal) {
    Signature signature;
    signature.priority = priority;
    signature.kind = OpKind::kAllreduce;
    signature.reduce_op = ReduceOp::kSum;
    signature.parts.push_back({DType::kFloat32, {2}});
    Request& request = requests_[token];
    request.token = token;
    request.spec = MakeSpec(kWorldSet, "sum", signature);
    request.parts.clear();
    request.parts.emplace_back();
    request.parts[0].input = input_;
    request.parts[0].output = output_;
    request.parts[0].dtype = DType::kFloat32;
    request.parts[0].shape = {2};
    in_flight_[token] = &request;
    lanes_->Find(kWorldSet)->Began(request);
    rueda::Launch launch;
    launch.lane = kWorldSet;
    launch.number = token;
    launch.items.push_back({token, TensorId{7}, request.spec, {}});
    EXPECT_TRUE(lanes_->Launch(launch, in_flight_).ok());
  }
  bool Advance(bool goes_on = true) {
    const absl::StatusOr<bool> moved = lanes_->Advance([goes_on] { return goes_on; });
    EXPECT_TRUE(moved.ok()) << moved.status();
    return moved.ok() && *moved;
  }

  const float input_[2] = {1, 2};
  float output_[2] = {0, 0};
  World world_;
  Config config_;
  Member member_;
  Timeline timeline_;
  Tracks tracks_;
  std::atomic<uint32_t> activity_{kNoTensor};
  std::vector<std::unique_ptr<Backend>> backends_;
  std::optional<Lanes> lanes_;
  Request requests_[2];
  std::vector<Request*> in_flight_ = {nullptr, nullptr};
  std::vector<Request*> ended_;
};

TEST_F(LanesTest, DoWhatIsLaunchedAndTellWhenItIsDone) {
  EXPECT_FALSE(lanes_->busy());
  EXPECT_FALSE(Advance());
  LaunchSum(0);
  EXPECT_TRUE(lanes_->busy());
  EXPECT_EQ(activity_, 7u);
  while (lanes_->busy()) EXPECT_TRUE(Advance());
  EXPECT_THAT(output_, ElementsAre(1, 2));
  EXPECT_THAT(ended_, ElementsAre(&requests_[0]));
  EXPECT_EQ(activity_, kNoTensor);
  EXPECT_EQ(member_.completed_on(kWorldSet), 1u);
}

TEST_F(LanesTest, WhatIsOfLowPriorityMovesWhenNothingElseDoes) {
  LaunchSum(0, Priority::kLow);
  EXPECT_EQ(member_.completed_on(kWorldSet), 1u) << "it holds nobody up";
  LaunchSum(1);
  EXPECT_EQ(member_.completed_on(kWorldSet), 1u);
  while (lanes_->busy()) EXPECT_TRUE(Advance());
  EXPECT_THAT(ended_, ElementsAre(&requests_[1], &requests_[0]));
  EXPECT_EQ(member_.completed_on(kWorldSet), 2u);
}

TEST_F(LanesTest, WhatIsOfLowPriorityMovesInTheEndThoughOthersAlwaysDo) {
  LaunchSum(0, Priority::kLow);
  const Nanos until = MonotonicNow() + 20 * kSecond;
  while (std::find(ended_.begin(), ended_.end(), &requests_[0]) == ended_.end()) {
    ASSERT_LT(MonotonicNow(), until);
    LaunchSum(1);
    EXPECT_TRUE(Advance());
  }
}

TEST_F(LanesTest, NothingMovesAndNoTensorIsTouchedAfterAnAbort) {
  LaunchSum(0);
  LaunchSum(1);
  lanes_->Abort();
  EXPECT_FALSE(Advance());
  lanes_->Abort();  // harmless
  EXPECT_FALSE(Advance());
  EXPECT_THAT(output_, ElementsAre(0, 0));
  EXPECT_THAT(ended_, IsEmpty());
}

TEST_F(LanesTest, AStepMayBeTheLast) {
  LaunchSum(0);
  LaunchSum(1);
  while (ended_.empty()) EXPECT_TRUE(Advance(/*goes_on=*/false));
  EXPECT_THAT(ended_, ElementsAre(&requests_[0]));
  EXPECT_TRUE(lanes_->busy());
}

TEST_F(LanesTest, AreThereWhereThisRankIsAMember) {
  EXPECT_NE(lanes_->Find(kWorldSet), nullptr);
  EXPECT_EQ(lanes_->Find(kWorldSet + 5), nullptr);
  lanes_->Close(kWorldSet + 5);  // of a set that this rank never had
  lanes_->Close(kWorldSet);
  EXPECT_EQ(lanes_->Find(kWorldSet), nullptr);
}

TEST_F(LanesTest, WhoIsAloneHasNobodyToSayFarewellTo) {
  EXPECT_TRUE(lanes_->SayFarewell(/*begin=*/true));
  EXPECT_FALSE(lanes_->SilentRank().has_value());
}

}  // namespace
}  // namespace rueda
