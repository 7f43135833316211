// What the ranks of a host leave each other when one has failed, in a real segment.
#include "controller/runtime/failure_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "controller/runtime/wishes.h"
#include "ops/host/segment.h"

namespace rueda {
namespace {

class FailureRecordTest : public ::testing::Test {
 protected:
  FailureRecordTest() : member_(0, 3) {
    world_.topology = MakeTopology({"here", "here", "there"});
    world_.infos = {{10, "here"}, {11, "here"}, {12, "there"}};
    world_.membership = 4;
    absl::StatusOr<std::unique_ptr<Segment>> segment = Segment::Create(2, 0);
    EXPECT_TRUE(segment.ok()) << segment.status();
    world_.neighbourhood.segment = *std::move(segment);
    std::vector<Bells> bells(2);
    for (Bells& each : bells) {
      each.background = *Doorbell::Create();
      each.waiter = *Doorbell::Create();
    }
    neighbours_.emplace(world_.neighbourhood.segment.get(), 0, std::move(bells));
    record_.emplace(&world_, &*neighbours_, &member_, &in_flight_);
  }
  // This rank has an operation of the world under way.
  void Begin(Request* request, const char* name, Nanos submitted_at) {
    Signature signature;
    signature.kind = OpKind::kAllreduce;
    request->spec = MakeSpec(kWorldSet, name, signature);
    request->submitted_at = submitted_at;
    in_flight_.push_back(request);
  }
  Failure Read() {
    const std::optional<std::string> record = record_->Read(0);
    EXPECT_TRUE(record.has_value());
    return record.has_value() ? DecodeFailure(*record) : Failure();
  }

  World world_;
  Member member_;
  std::vector<Request*> in_flight_;
  std::optional<Neighbours> neighbours_;
  std::optional<FailureRecord> record_;
};

TEST_F(FailureRecordTest, SaysWhoAndWhere) {
  EXPECT_FALSE(record_->exists());
  record_->Write({.rank = 1, .cause = "killed"});
  EXPECT_TRUE(record_->exists());
  const Failure failure = Read();
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.accuser, 0);
  EXPECT_EQ(failure.pid, 11);
  EXPECT_EQ(failure.host, "here");
  EXPECT_EQ(failure.cause, "killed");
  EXPECT_EQ(failure.membership, 4u);
}

TEST_F(FailureRecordTest, TheFirstStays) {
  record_->Write({.rank = 1, .cause = "killed"});
  record_->Write({.rank = 2, .cause = "silent"});
  EXPECT_EQ(Read().rank, 1);
}

TEST_F(FailureRecordTest, NamesTheOldestOperationThatAwaitsTheLostRank) {
  Request younger, older;
  Begin(&younger, "younger", 20);
  Begin(&older, "older", 10);
  in_flight_.push_back(nullptr);
  record_->Write({.rank = 2, .cause = "silent"});
  const Failure failure = Read();
  EXPECT_EQ(failure.awaiter, 0);
  EXPECT_EQ(failure.operation, "allreduce");
  EXPECT_EQ(failure.tensor, "older");
}

TEST_F(FailureRecordTest, KeepsWhatTheAccuserKnewOfTheOperation) {
  Request own;
  Begin(&own, "own", 10);
  record_->Write({.rank = 2, .accuser = 1, .operation = "barrier", .awaiter = 1, .tensor = "b"});
  const Failure failure = Read();
  EXPECT_EQ(failure.accuser, 1);
  EXPECT_EQ(failure.operation, "barrier");
  EXPECT_EQ(failure.tensor, "b");
}

TEST_F(FailureRecordTest, ARankThatIsNoneIsNotLookedUp) {
  record_->Write({.rank = -1, .cause = "rank 0 aborted the job"});
  EXPECT_EQ(Read().host, "");
}

TEST(Wishes, TheFirstReasonStays) {
  Wishes wishes;
  EXPECT_FALSE(wishes.any());
  wishes.Leave();
  EXPECT_TRUE(wishes.any());
  EXPECT_TRUE(wishes.leave());
  EXPECT_FALSE(wishes.abort());
  wishes.Abort("first");
  wishes.Abort("second");
  EXPECT_TRUE(wishes.abort());
  EXPECT_EQ(wishes.reason(), "first");
}

}  // namespace
}  // namespace rueda
