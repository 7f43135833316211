// Errors that name a rank, and their trip in a roster. Each test's own thread.
#include "controller/protocol/lost.h"

#include <gtest/gtest.h>

namespace rueda {
namespace {

TEST(Lost, AnErrorKeepsItsRankAndCodeOnTheWay) {
  const absl::Status error = ErrorOfRank(3, absl::ResourceExhaustedError("rank 3 failed to start"));
  const absl::Status heard = ErrorOf(RosterOfError(error));
  EXPECT_EQ(heard, error);
  EXPECT_EQ(LostRank(heard), 3);
  EXPECT_EQ(LostRank(ErrorOf(RosterOfError(LostError(0, "it is gone")))), 0);
}

TEST(Lost, OtherErrorsNameNobody) {
  const absl::Status error = absl::FailedPreconditionError("two sizes");
  EXPECT_EQ(LostRank(error), std::nullopt);
  EXPECT_EQ(LostRank(ErrorOf(RosterOfError(error))), std::nullopt);
  EXPECT_EQ(LostRank(absl::OkStatus()), std::nullopt);
}

TEST(Lost, WhatIsNoErrorIsNone) {
  EXPECT_TRUE(ErrorOf(wire::Roster()).ok());
  wire::Roster roster = RosterOfError(absl::InternalError("x"));
  roster.set_code(99);  // no code that there is
  EXPECT_TRUE(ErrorOf(roster).ok());
}

}  // namespace
}  // namespace rueda
