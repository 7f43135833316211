// The record of a failure: what it says, and that it survives the trip. Each test's own thread.
#include "controller/failure/failure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/host/segment.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Failure Lost() {
  Failure failure;
  failure.rank = 2;
  failure.pid = 4'711;
  failure.host = "vm";
  failure.cause = "killed by signal 9 (SIGKILL)";
  failure.operation = "allreduce";
  failure.tensor = "g";
  failure.membership = 1;
  failure.recoverable = true;
  return failure;
}

TEST(Failure, SaysWhoWasLostHowAndOverWhat) {
  EXPECT_EQ(Lost().ToString(),
            "rank 2 (host vm, pid 4711) was lost: killed by signal 9 (SIGKILL), during allreduce "
            "'g'; membership 1");
  Failure unnamed = Lost();
  unnamed.tensor.clear();
  EXPECT_THAT(unnamed.ToString(), HasSubstr(", during allreduce; membership 1"));
  Failure idle = Lost();
  idle.operation.clear();
  EXPECT_THAT(idle.ToString(), HasSubstr("(SIGKILL); membership 1"));
  Failure awaited = Lost();
  awaited.awaiter = 1;
  EXPECT_THAT(awaited.ToString(),
              HasSubstr("(SIGKILL), while rank 1 awaited it in allreduce 'g'; "));
  Failure nobody;
  nobody.cause = "out of memory";
  EXPECT_EQ(nobody.ToString(), "out of memory; membership 0");
}

TEST(Failure, IsAnAbortWhateverItsCause) {
  const Failure failure = Lost();
  EXPECT_EQ(failure.ToStatus(), absl::AbortedError(failure.ToString()));
  EXPECT_TRUE(absl::IsAborted(Failure().ToStatus()));
}

TEST(Failure, SurvivesTheTrip) {
  Failure failure = Lost();
  failure.accuser = 0;
  failure.awaiter = 1;
  failure.culprit = 2;
  const Failure got = DecodeFailure(EncodeFailure(failure));
  EXPECT_EQ(got.rank, 2);
  EXPECT_EQ(got.accuser, 0);
  EXPECT_EQ(got.awaiter, 1);
  EXPECT_EQ(got.culprit, 2);
  EXPECT_EQ(DecodeFailure(EncodeFailure(Failure())).awaiter, -1);
  EXPECT_EQ(DecodeFailure(EncodeFailure(Failure())).culprit, -1);
  EXPECT_EQ(DecodeFailure(EncodeFailure(Failure())).accuser, -1);
  EXPECT_EQ(got.pid, 4'711);
  EXPECT_EQ(got.host, "vm");
  EXPECT_EQ(got.cause, failure.cause);
  EXPECT_EQ(got.operation, "allreduce");
  EXPECT_EQ(got.tensor, "g");
  EXPECT_EQ(got.membership, 1u);
  EXPECT_TRUE(got.recoverable);
  EXPECT_EQ(DecodeFailure(EncodeFailure(Failure())).rank, -1);
}

TEST(Failure, ALongCauseIsCutSoThatTheRecordFits) {
  for (const char* unit : {"x", "ä", "€", "😀"}) {
    for (size_t shift = 0; shift < 4; ++shift) {
      Failure failure = Lost();
      failure.cause = std::string(shift, '.');
      while (failure.cause.size() < 10'000) failure.cause += unit;
      failure.tensor = std::string(1'024, 't');
      const std::string record = EncodeFailure(failure);
      ASSERT_LE(record.size(), Segment::kFailureBytesMax);
      const Failure got = DecodeFailure(record);
      EXPECT_EQ(got.rank, 2) << unit << " " << shift;
      EXPECT_EQ(got.operation, "allreduce");
      ASSERT_GT(got.cause.size(), 900u);
      EXPECT_THAT(failure.cause, StartsWith(got.cause));
      EXPECT_EQ((got.cause.size() - shift) % strlen(unit), 0u) << "whole characters only";
    }
  }
}

TEST(Failure, ACauseThatIsNotUtf8IsPassedOn) {
  Failure failure = Lost();
  failure.cause = "a library said \xff\xfe";
  const Failure got = DecodeFailure(EncodeFailure(failure));
  EXPECT_EQ(got.rank, 2);
  EXPECT_EQ(got.cause, failure.cause);
}

TEST(Failure, WhatCannotBeReadStillFails) {
  const std::string record = EncodeFailure(Lost());
  for (size_t bytes = 0; bytes < record.size(); ++bytes) {
    const Failure got = DecodeFailure(record.substr(0, bytes));
    ASSERT_FALSE(got.ToStatus().ok()) << bytes;
    ASSERT_FALSE(got.cause.empty()) << bytes;
  }
  for (size_t i = 0; i < record.size(); ++i) {
    std::string bad = record;
    bad[i] = static_cast<char>(bad[i] ^ 0xFF);
    ASSERT_FALSE(DecodeFailure(bad).ToStatus().ok()) << i;
  }
  EXPECT_THAT(DecodeFailure("").cause, HasSubstr("can't be read"));
}

}  // namespace
}  // namespace rueda
