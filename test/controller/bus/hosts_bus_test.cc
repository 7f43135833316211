// The bus of a job on several hosts, at the root: what its peers get wrong ends the membership.
#include "controller/bus/hosts_bus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "controller/bus/log_codec.h"
#include "test/controller/negotiation/job.h"
#include "test/support/log_memory.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

// Rank 0's bus, with rank 1 on its host and ranks 2 and 3 on another.
class Root : public ::testing::Test, public Courier {
 protected:
  Root() {
    CoordinatorOptions options;
    options.world_size = 4;
    options.leaders = std::make_shared<const LeaderTree>(testing::TwoHosts());
    bus_ = std::make_unique<HostsBus>(
        std::make_unique<HostLog>(memory_.data(), memory_.layout(), 0), std::vector<Rank>{0, 1}, 0,
        options, [](Rank) {}, this);
  }
  void SendEventsUp(std::string) override {}
  void SendPlanDown(const std::string&) override {}

  // Looks until there is nothing more to come.
  absl::Status LookOn() {
    std::vector<std::string> reports;
    for (Nanos now = 0; now != kForever;) {
      const absl::StatusOr<Nanos> next = bus_->CheckDeadlines(now, &reports);
      RUEDA_RETURN_IF_ERROR(next.status());
      now = *next;
    }
    return absl::OkStatus();
  }

  const testing::LogMemory memory_{LogLayout::For(2)};
  HostLog neighbour_{memory_.data(), memory_.layout(), 1};
  std::unique_ptr<HostsBus> bus_;
};

TEST_F(Root, FailsByWhatShowsOnlyWhenItIsOverdue) {
  // A sum has no first dimensions; a host that holds it back for its other rank does not look.
  Announced announced;
  announced.announcement.spec = testing::Named("broken");
  announced.announcement.extras.first_dims = {1, 2, 3, 4, 5};
  ASSERT_TRUE(*AppendEvent({1, announced}, &neighbour_));
  Plan plan;
  ASSERT_TRUE(bus_->Poll(0, &plan).ok());
  const absl::Status status = LookOn();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
}

TEST_F(Root, GoesOnWhereNothingIsWrong) {
  Announced announced;
  announced.announcement.spec = testing::Named("late");
  ASSERT_TRUE(*AppendEvent({1, announced}, &neighbour_));
  Plan plan;
  ASSERT_TRUE(bus_->Poll(0, &plan).ok());
  std::vector<std::string> reports;
  const absl::StatusOr<Nanos> next = bus_->CheckDeadlines(0, &reports);
  ASSERT_TRUE(next.ok());
  EXPECT_TRUE(bus_->CheckDeadlines(*next, &reports).ok());
}

}  // namespace
}  // namespace rueda
