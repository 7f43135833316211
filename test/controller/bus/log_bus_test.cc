// The bus of one host: who wakes whom.
#include "controller/bus/log_bus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "test/controller/negotiation/job.h"
#include "test/support/log_memory.h"

namespace rueda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two ranks over one log, each with what it has to announce.
class Buses {
 public:
  Buses() {
    CoordinatorOptions options;
    options.world_size = 2;
    for (Rank rank = 0; rank < 2; ++rank) {
      members_.push_back(std::make_unique<Member>(rank, 2, options.process_sets));
      members_.back()->Submit(0, testing::Named("t"), CallExtras(), /*waited=*/true);
      buses_.push_back(std::make_unique<LogBus>(
          std::make_unique<HostLog>(memory_.data(), memory_.layout(), rank), rank, options,
          [this, rank](Rank woken) { woken_[rank].push_back(woken); }));
    }
  }

  void Announce(Rank rank) {
    while (const ControlEvent* event = members_[rank]->Next()) {
      ASSERT_TRUE(*buses_[rank]->Send(*event));
      members_[rank]->Pop();
    }
  }
  // How many items of the plan the rank can read now.
  size_t Poll(Rank rank) {
    Plan plan;
    EXPECT_TRUE(buses_[rank]->Poll(0, &plan).ok());
    return plan.size();
  }
  bool LastLook(Rank rank) { return buses_[rank]->LastLook(); }
  // Whom the rank has woken since the last call.
  std::vector<Rank> TakeWoken(Rank rank) { return std::exchange(woken_[rank], {}); }
  std::atomic<uint64_t>& head() { return *static_cast<std::atomic<uint64_t>*>(memory_.data()); }

 private:
  const testing::LogMemory memory_{LogLayout::For(2)};
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::unique_ptr<LogBus>> buses_;
  std::vector<Rank> woken_[2];
};

TEST(LogBus, WhoseEntryCompletesSomethingWakesTheOthers) {
  Buses buses;
  buses.Announce(0);
  buses.Poll(0);
  EXPECT_THAT(buses.TakeWoken(0), IsEmpty());
  buses.Announce(1);
  EXPECT_GT(buses.Poll(1), 0u);
  EXPECT_THAT(buses.TakeWoken(1), ElementsAre(0));
  EXPECT_GT(buses.Poll(0), 0u);
  EXPECT_THAT(buses.TakeWoken(0), IsEmpty());
}

// Rank 0 is interrupted between taking its place in the log and publishing its word. What rank 1
// writes behind it completes something, but rank 1 can't read that far, and goes to sleep.
TEST(LogBus, WhoPublishesLateWakesThoseWhoHaveWrittenBehindIt) {
  Buses buses;
  buses.head() = 1;
  buses.Announce(1);
  EXPECT_EQ(buses.Poll(1), 0u);
  EXPECT_FALSE(buses.LastLook(1));
  const uint64_t end = buses.head();
  buses.head() = 0;
  buses.Announce(0);
  buses.head() = end;
  EXPECT_GT(buses.Poll(0), 0u);
  EXPECT_THAT(buses.TakeWoken(0), ElementsAre(1));
  EXPECT_GT(buses.Poll(1), 0u);
}

}  // namespace
}  // namespace rueda
