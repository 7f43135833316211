// A lane over communicators that can do more or less. Each test's own thread.
#include "controller/lanes/lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rueda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class NoBackend : public Backend {
 public:
  absl::string_view name() const override { return "none"; }
  bool connects() const override { return false; }
  absl::Status Viable(const Members&) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const Members&) override { return nullptr; }
};

using Calls = std::vector<std::string>;

class Plain : public Communicator {
 public:
  explicit Plain(Calls* calls) : calls_(*calls) {}
  void Start(const BucketOperation&) override { calls_.push_back("start"); }
  absl::StatusOr<Progress> Advance() override { return Progress::kDone; }
  void Abort() override {}

 protected:
  Calls& calls_;
};

class Early : public Plain, public EarlyStart {
 public:
  using Plain::Plain;
  EarlyStart* early_start() override { return this; }
  bool Prepare(const BucketOperation&) override {
    calls_.push_back("prepare");
    return true;
  }
  void TakeBack() override { calls_.push_back("take back"); }
  void Drop() override { calls_.push_back("drop"); }
};

class SilentFake : public Plain, public SilenceProbe {
 public:
  using Plain::Plain;
  SilenceProbe* silence_probe() override { return this; }
  std::optional<Silence> SilentMember() override { return silence; }
  std::optional<Silence> silence;
};

class EnqueuingFake : public Plain, public Enqueuing {
 public:
  using Plain::Plain;
  Enqueuing* enqueuing() override { return this; }
  DeviceEvent NextEnqueued() override { return std::exchange(next, nullptr); }
  DeviceEvent next;
};

class LaneTest : public ::testing::Test {
 protected:
  template <typename Made>
  Made* Open() {
    auto communicator = std::make_unique<Made>(&calls_);
    Made* const raw = communicator.get();
    const HostSplit split = {.members = {{0}, {1}}};
    lane_.emplace(kWorldSet, split, 0, Config(), &backend_, std::move(communicator), &states_);
    return raw;
  }
  // One operation that has begun.
  Request* Begin(ReduceOp op = ReduceOp::kSum, Priority priority = Priority::kNormal) {
    Signature signature;
    signature.priority = priority;
    signature.kind = OpKind::kAllreduce;
    signature.reduce_op = op;
    signature.parts.push_back({DType::kFloat32, {1}});
    Request& request = requests_.emplace_back();
    request.spec = MakeSpec(kWorldSet, "a", signature);
    request.parts.emplace_back();
    request.parts[0].shape = {1};
    lane_->Began(request);
    return &request;
  }
  void Add(Request* request, PlannedData data = nullptr) {
    LaneBatch batch;
    batch.operations.push_back({request, TensorId{0}, request->spec.get(), request->parts, {}, {}});
    batch.data = std::move(data);
    lane_->Add(QueueOf(request->spec->signature), lane_->Plan(batch, set_, 1'024));
  }

  Calls calls_;
  NoBackend backend_;
  CompressionStates states_;
  ProcessSet set_ = {.ranks = {0, 1}};
  std::deque<Request> requests_;
  std::optional<Lane> lane_;
};

TEST_F(LaneTest, ALoneOperationBeginsEarlyWhereThatIsPossible) {
  Open<Early>();
  Request* const request = Begin();
  lane_->Prepare(*request);
  EXPECT_THAT(calls_, ElementsAre("prepare"));
  lane_->Prepare(*request);
  Add(request);
  EXPECT_EQ(*lane_->Advance(Queue::kCpu), Progress::kDone);
  EXPECT_THAT(calls_, ElementsAre("prepare", "start"));
}

TEST_F(LaneTest, WhatIsOfLowPriorityDoesNotKeepOthersFromBeginningEarly) {
  Open<Early>();
  Calls there;
  lane_->Open(Queue::kLow, &backend_, std::make_unique<Plain>(&there));
  Request* const behind = Begin(ReduceOp::kSum, Priority::kLow);
  lane_->Prepare(*behind);
  EXPECT_THAT(calls_, IsEmpty()) << "it does not begin early itself";
  Add(behind);
  Request* const request = Begin();
  lane_->Prepare(*request);
  lane_->Prepare(*Begin(ReduceOp::kSum, Priority::kLow));
  EXPECT_EQ(*lane_->Advance(Queue::kLow), Progress::kDone);
  lane_->Pop(Queue::kLow);
  lane_->Ended(*behind);
  Add(request);
  EXPECT_EQ(*lane_->Advance(Queue::kCpu), Progress::kDone);
  EXPECT_THAT(calls_, ElementsAre("prepare", "start"));
  EXPECT_THAT(there, ElementsAre("start"));
}

TEST_F(LaneTest, WhatHasItsDataIsNotMoved) {
  Open<Plain>();
  Request* const before = Begin();
  Request* const request = Begin();
  float result = 0;
  request->parts[0].output = &result;
  Add(before);
  const float values[] = {1, 2};
  std::vector<std::string> data;
  for (const float& value : values) {
    data.emplace_back(reinterpret_cast<const char*>(&value), sizeof value);
  }
  Add(request, std::make_shared<std::vector<std::string>>(data));
  EXPECT_EQ(*lane_->Advance(Queue::kCpu), Progress::kDone);
  lane_->Pop(Queue::kCpu);
  EXPECT_EQ(result, 0) << "it is behind the other";
  EXPECT_EQ(*lane_->Advance(Queue::kCpu), Progress::kDone);
  EXPECT_EQ(result, 3);
  EXPECT_THAT(calls_, ElementsAre("start"));
  lane_->Pop(Queue::kCpu);
  data[1].pop_back();
  Add(Begin(), std::make_shared<std::vector<std::string>>(data));
  EXPECT_FALSE(lane_->Advance(Queue::kCpu).ok()) << "the plan is wrong";
}

TEST_F(LaneTest, WhatAnotherMayComeBeforeIsTakenBack) {
  Open<Early>();
  lane_->Prepare(*Begin());
  lane_->Prepare(*Begin());
  EXPECT_THAT(calls_, ElementsAre("prepare", "take back"));
}

TEST_F(LaneTest, WhatEndsBeforeItIsOrderedIsDropped) {
  Open<Early>();
  Request* const request = Begin();
  lane_->Prepare(*request);
  lane_->Ended(*request);
  EXPECT_THAT(calls_, ElementsAre("prepare", "drop"));
}

// It has other steps than the one that could be foreseen.
TEST_F(LaneTest, AnAdasumDoesNotBeginEarly) {
  Open<Early>();
  lane_->Prepare(*Begin(ReduceOp::kAdasum));
  EXPECT_THAT(calls_, IsEmpty());
}

TEST_F(LaneTest, NothingBeginsEarlyWhereThatIsNotPossible) {
  Open<Plain>();
  Request* const request = Begin();
  lane_->Prepare(*request);
  lane_->Ended(*request);
  EXPECT_THAT(calls_, IsEmpty());
  EXPECT_FALSE(lane_->SilentMember(MonotonicNow()).has_value());
}

// A send is over when the kernel has it.
TEST_F(LaneTest, LargePacketsThatAreLostCountForAWhileAfterAnOperationToo) {
  SilentFake* const probe = Open<SilentFake>();
  probe->silence = Silence{1, kSecond, /*is_of_large=*/true};
  EXPECT_FALSE(lane_->SilentMember(MonotonicNow()).has_value()) << "nothing was sent";
  Add(Begin());
  EXPECT_TRUE(lane_->SilentMember(MonotonicNow()).has_value());
  EXPECT_EQ(*lane_->Advance(Queue::kCpu), Progress::kDone);
  lane_->Pop(Queue::kCpu);
  EXPECT_TRUE(lane_->SilentMember(MonotonicNow()).has_value());
  EXPECT_FALSE(lane_->SilentMember(MonotonicNow() + 3'600 * kSecond).has_value());
  probe->silence->is_of_large = false;
  EXPECT_FALSE(lane_->SilentMember(MonotonicNow()).has_value()) << "nobody waits for it";
}

TEST_F(LaneTest, OperationsStartOneAfterTheOtherUnlessTheyAreEnqueued) {
  Open<Plain>();
  for (int i = 0; i < 2; ++i) Add(Begin());
  EXPECT_THAT(calls_, IsEmpty());
  EXPECT_EQ(*lane_->Advance(Queue::kCpu), Progress::kDone);
  EXPECT_THAT(calls_, ElementsAre("start"));
  lane_->Pop(Queue::kCpu);
  std::vector<Request*> enqueued;
  lane_->TakeEnqueued(Queue::kCpu, &enqueued);
  EXPECT_THAT(enqueued, IsEmpty());

  calls_.clear();
  EnqueuingFake* const queue = Open<EnqueuingFake>();
  Request* const first = Begin();
  Add(first);
  Add(Begin());
  EXPECT_THAT(calls_, ElementsAre("start", "start"));
  queue->next = std::make_shared<int>();
  lane_->TakeEnqueued(Queue::kCpu, &enqueued);
  EXPECT_THAT(enqueued, ElementsAre(first));
}

TEST_F(LaneTest, CountsABucketOfARequestUntilItIsDone) {
  Open<EnqueuingFake>();
  Request* const request = Begin();
  Add(request);
  EXPECT_EQ(request->buckets_left, 1);
  EXPECT_EQ(request->buckets_to_enqueue, 1);
  EXPECT_EQ(*lane_->Advance(Queue::kCpu), Progress::kDone);
  EXPECT_EQ(lane_->Pop(Queue::kCpu).front().requests[0], request);
  EXPECT_EQ(request->buckets_to_enqueue, 0) << "it ended before it was asked for";
  EXPECT_EQ(lane_->TakeFinishedBatches(), 1);
  std::vector<Request*> enqueued;
  lane_->TakeEnqueued(Queue::kCpu, &enqueued);
  EXPECT_THAT(enqueued, IsEmpty());
}

}  // namespace
}  // namespace rueda
