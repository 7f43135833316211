// What ranks tell each other when a job starts. PURE
#include "controller/rendezvous/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rueda {
namespace {

using ::testing::HasSubstr;

wire::Hellos Hellos(int count) {
  wire::Hellos hellos;
  for (int rank = 0; rank < count; ++rank) {
    hellos.add_hellos()->set_rank(rank);
    hellos.mutable_hellos(rank)->set_size(count);
  }
  return hellos;
}

absl::StatusCode CodeOf(const wire::Hellos& answer) {
  return UnpackHellos(answer.SerializeAsString(), 2).status().code();
}

TEST(Hellos, OfAllRanksAreTaken) {
  const auto hellos = UnpackHellos(Hellos(2).SerializeAsString(), 2);
  ASSERT_TRUE(hellos.ok()) << hellos.status();
  EXPECT_EQ(hellos->at(1).rank(), 1);
}

TEST(Hellos, RankZerosErrorIsEverybodys) {
  wire::Hellos answer;
  answer.set_error("rank 3 did not come");
  answer.set_code(static_cast<uint32_t>(absl::StatusCode::kDeadlineExceeded));
  const absl::Status status = UnpackHellos(answer.SerializeAsString(), 2).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 3 did not come"));
}

TEST(Hellos, AnAnswerThatIsNeitherAnErrorNorHellosOfAllRanksIsRefused) {
  EXPECT_EQ(CodeOf(Hellos(0)), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf(Hellos(1)), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf(Hellos(3)), absl::StatusCode::kFailedPrecondition);
  wire::Hellos strange;
  strange.set_error("an error that is none");
  EXPECT_EQ(CodeOf(strange), absl::StatusCode::kFailedPrecondition);
  strange.set_code(17);
  EXPECT_EQ(CodeOf(strange), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace rueda
