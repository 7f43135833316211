// What ranks tell each other when a job starts. PURE
#include "controller/rendezvous/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/limits.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

// Of hosts with `per_host` ranks each.
std::vector<wire::Hello> Hellos(int count, int per_host = 1) {
  std::vector<wire::Hello> hellos(static_cast<size_t>(count));
  for (int rank = 0; rank < count; ++rank) {
    const std::string host = std::to_string(rank / per_host);
    wire::Hello& hello = hellos[static_cast<size_t>(rank)];
    hello.set_rank(rank);
    hello.set_size(count);
    hello.set_host_id("0ccd3d2c-79c9-4f83-a6ff-1d0a60d7c9c5/4026531840/1000/" + host);
    hello.set_host_name("node" + host + ".cluster.example");
    hello.set_data_address("10.0.0." + host);
    hello.set_pid(100'000 + rank);
    hello.set_version("0.1.0");
    hello.add_agreed()->set_name("cycle_time_ms");
  }
  hellos[0].set_bus_address("10.0.0.0:4000");
  return hellos;
}

absl::StatusCode CodeOf(const wire::Roster& roster) {
  return HellosOf(roster, 2).status().code();
}

TEST(Roster, SaysWhereEverybodyIs) {
  std::vector<wire::Hello> given = Hellos(5, 2);
  given[1].set_pid_namespace(4'026'532'000);  // in a container of its own
  const auto hellos = HellosOf(MakeRoster(given), 5);
  ASSERT_TRUE(hellos.ok()) << hellos.status();
  ASSERT_EQ(hellos->size(), 5u);
  for (size_t rank = 0; rank < 5; ++rank) {
    const wire::Hello& hello = hellos->at(rank);
    EXPECT_EQ(hello.rank(), static_cast<int>(rank));
    EXPECT_EQ(hello.host_id(), given[rank].host_id());
    EXPECT_EQ(hello.host_name(), given[rank].host_name());
    EXPECT_EQ(hello.data_address(), given[rank].data_address());
    EXPECT_EQ(hello.pid(), given[rank].pid());
    EXPECT_EQ(hello.pid_namespace(), given[rank].pid_namespace());
    EXPECT_EQ(hello.bus_address(), given[rank].bus_address());
  }
}

// Of a host's ranks the one with the least address space left decides for all.
TEST(Roster, SaysHowMuchRoomEachHostHas) {
  std::vector<wire::Hello> given = Hellos(6, 2);
  given[2].set_room(700);
  given[3].set_room(300);
  given[5].set_room(0);
  const auto hellos = HellosOf(MakeRoster(given), 6);
  ASSERT_TRUE(hellos.ok()) << hellos.status();
  for (const size_t rank : {0, 1}) EXPECT_FALSE(hellos->at(rank).has_room());
  for (const size_t rank : {2, 3}) EXPECT_EQ(hellos->at(rank).room(), 300u);
  for (const size_t rank : {4, 5}) {
    EXPECT_TRUE(hellos->at(rank).has_room());
    EXPECT_EQ(hellos->at(rank).room(), 0u);
  }
}

// All get it, and rank 0 can't have more ranks than fit a frame.
TEST(Roster, TakesAFewBytesARank) {
  EXPECT_LT(MakeRoster(Hellos(4'096, 8)).ByteSizeLong(), 4'096u * 6 + 512u * 120);
  EXPECT_LT(MakeRoster(Hellos(kRanksMax, 1)).ByteSizeLong(), kControlFrameBytesMax);
}

TEST(Roster, RankZerosErrorIsEverybodys) {
  const wire::Roster roster = RosterOfError(absl::DeadlineExceededError("rank 3 did not come"));
  const absl::Status status = HellosOf(roster, 2).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 3 did not come"));
  EXPECT_EQ(ErrorOf(roster), status);
  EXPECT_TRUE(ErrorOf(MakeRoster(Hellos(2))).ok());
}

TEST(Roster, ThatIsNeitherAnErrorNorOfAllRanksIsRefused) {
  EXPECT_EQ(CodeOf(wire::Roster()), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf(MakeRoster(Hellos(1))), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf(MakeRoster(Hellos(3))), absl::StatusCode::kFailedPrecondition);
  wire::Roster nowhere = MakeRoster(Hellos(2));
  nowhere.set_place(1, 2);
  EXPECT_EQ(CodeOf(nowhere), absl::StatusCode::kDataLoss);
  wire::Roster swollen = MakeRoster(Hellos(2));
  swollen.mutable_places(0)->set_host_name(std::string(5'000, 'n'));
  EXPECT_EQ(CodeOf(swollen), absl::StatusCode::kDataLoss);
  wire::Roster short_of_one = MakeRoster(Hellos(2));
  short_of_one.mutable_pid()->RemoveLast();
  EXPECT_EQ(CodeOf(short_of_one), absl::StatusCode::kFailedPrecondition);
  wire::Roster strange;
  strange.set_error("an error that is none");
  EXPECT_EQ(CodeOf(strange), absl::StatusCode::kFailedPrecondition);
  strange.set_code(17);
  EXPECT_EQ(CodeOf(strange), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace rueda
