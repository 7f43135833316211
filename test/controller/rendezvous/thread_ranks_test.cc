// Ranks that are threads of one process, and one of them that can't start.
#include "controller/rendezvous/thread_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "test/controller/rendezvous/offer.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

constexpr size_t kLogBytes = 1 << 16;
constexpr Nanos kPatience = 60 * kSecond;

class ThreadRanksTest : public ::testing::Test {
 protected:
  static wire::Hello HelloOf(Rank rank) {
    wire::Hello hello;
    hello.set_rank(rank);
    hello.set_size(2);
    return hello;
  }
  std::unique_ptr<Meeting> Join(Rank rank) { return group_->Join(group_, rank, "context"); }
  static absl::StatusOr<Neighbourhood> Introduce(Meeting* meeting, Rank rank,
                                                 Nanos patience = kPatience) {
    return meeting->Introduce({0, 1}, rank, MakeOffer(), kLogBytes, MonotonicNow() + patience);
  }
  static void ExpectCause(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(), HasSubstr("rank 1 failed to start: no descriptors"));
  }

  const std::shared_ptr<ThreadRanks> group_ = std::make_shared<ThreadRanks>(2);
  const absl::Status why_ = absl::ResourceExhaustedError("no descriptors");
};

TEST_F(ThreadRanksTest, OneThatWaitsIsToldThatAnotherCannotStart) {
  auto waits = std::async(std::launch::async, [&] {
    return Join(0)->Gather(HelloOf(0), MonotonicNow() + kPatience).status();
  });
  Join(1)->GiveUp(1, why_);
  ExpectCause(waits.get());
}

TEST_F(ThreadRanksTest, OneThatComesLaterIsTold) {
  Join(1)->GiveUp(1, why_);
  ExpectCause(Join(0)->Gather(HelloOf(0), MonotonicNow() + kPatience).status());
  // And the next time they meet.
  auto second = std::async(std::launch::async, [&] {
    return Join(1)->Gather(HelloOf(1), MonotonicNow() + kPatience).status();
  });
  EXPECT_EQ(Join(0)->Gather(HelloOf(0), MonotonicNow() + kPatience).status(), absl::OkStatus());
  EXPECT_EQ(second.get(), absl::OkStatus());
}

TEST_F(ThreadRanksTest, NobodyIsIntroducedToOneThatCannotStart) {
  auto first = std::async(std::launch::async, [&]() -> absl::Status {
    const std::unique_ptr<Meeting> meeting = Join(0);
    // It may be told here already.
    RUEDA_RETURN_IF_ERROR(meeting->Gather(HelloOf(0), MonotonicNow() + kPatience).status());
    return Introduce(meeting.get(), 0).status();
  });
  const std::unique_ptr<Meeting> meeting = Join(1);
  EXPECT_TRUE(meeting->Gather(HelloOf(1), MonotonicNow() + kPatience).ok());
  meeting->GiveUp(1, why_);
  ExpectCause(first.get());
}

TEST_F(ThreadRanksTest, OneThatIsNotIntroducedInTimeIsNamed) {
  const std::unique_ptr<Meeting> meeting = Join(0);
  const absl::Status status = Introduce(meeting.get(), 0, kMillisecond).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("rank 1 left the start of the job"));
}

}  // namespace
}  // namespace rueda
