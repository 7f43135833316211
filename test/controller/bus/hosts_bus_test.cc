// The bus of a job on several hosts, at rank 0: what its peers get wrong ends the membership.
#include "controller/bus/hosts_bus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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

// Two ranks of one host, on threads. Who has nothing to do looks a few times, and then sleeps as
// the engine does: it says so, looks once more, and waits for its bell. A wake that is lost is a
// bell that never rings. Without one of the two wakes it fails at once; x86 never shows that a
// fence before them is missing (six runs of three million turns each), as the log has locked
// instructions.
class OnThreads {
 public:
  OnThreads() {
    CoordinatorOptions options;
    options.world_size = 2;
    options.leaders =
        std::make_shared<const LeaderTree>(std::vector<std::vector<Rank>>{{0, 1}}, /*fan_out=*/32);
    for (Rank rank = 0; rank < 2; ++rank) {
      ranks_[rank].member = std::make_unique<Member>(rank, 2, options.process_sets);
      ranks_[rank].bus = std::make_unique<HostsBus>(
          std::make_unique<HostLog>(memory_.data(), memory_.layout(), rank),
          std::vector<Rank>{0, 1}, rank, options,
          [this](Rank woken) {
            if (ranks_[woken].asleep.load(std::memory_order_relaxed)) ranks_[woken].bell.release();
          },
          &courier_);
    }
  }

  // One operation after another, until `turns` have been ordered.
  void Play(Rank self, int turns) {
    for (int turn = 0; turn < turns; ++turn) {
      ranks_[self].member->Submit(static_cast<Token>(turn), testing::Named("t"), CallExtras(),
                                  /*waited=*/true);
      int looks = turn * 7 % 1'001;
      for (bool ordered = false; !ordered;) {
        ASSERT_NO_FATAL_FAILURE(Say(self));
        ASSERT_NO_FATAL_FAILURE(Look(self, &ordered));
        if (ordered || looks-- > 0) continue;
        ASSERT_TRUE(Sleep(self)) << "nobody rang at " << turn;
      }
    }
  }

 private:
  struct NoCourier : Courier {
    void SendEventsUp(std::string) override {}
    void SendPlanDown(const std::string&) override {}
  };
  struct OneRank {
    std::unique_ptr<Member> member;
    std::unique_ptr<HostsBus> bus;
    std::atomic<bool> asleep{false};
    std::counting_semaphore<> bell{0};
  };

  void Say(Rank self) {
    OneRank& rank = ranks_[self];
    while (const ControlEvent* event = rank.member->Next()) {
      const absl::StatusOr<bool> sent = rank.bus->Send(*event);
      ASSERT_TRUE(sent.ok()) << sent.status();
      if (!*sent) return;
      rank.member->Pop();
    }
  }

  void Look(Rank self, bool* ordered) {
    OneRank& rank = ranks_[self];
    Plan plan;
    ASSERT_TRUE(rank.bus->Poll(0, &plan).ok());
    std::vector<Action> actions;
    for (const PlanItem& item : plan) ASSERT_TRUE(rank.member->Apply(item, &actions).ok());
    for (const Action& action : actions) {
      const auto* launch = std::get_if<Launch>(&action);
      if (launch == nullptr) continue;
      *ordered = true;
      rank.member->CompletedBatch(launch->lane);
    }
    if (rank.bus->TakeDone(kWorldSet, rank.member->completed_on(kWorldSet))) {
      rank.member->AnnounceDone(kWorldSet);
    }
  }

  // False: what it should have been rung for came without a ring.
  bool Sleep(Rank self) {
    OneRank& rank = ranks_[self];
    rank.bus->BeforeSleep();
    while (rank.bell.try_acquire()) {
    }
    rank.asleep.store(true, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool rung = rank.bus->LastLook() || rank.bell.try_acquire_for(std::chrono::seconds(20));
    rank.asleep.store(false, std::memory_order_relaxed);
    return rung;
  }

  const testing::LogMemory memory_{LogLayout::For(2)};
  NoCourier courier_;
  OneRank ranks_[2];
};

TEST(HostsBus, NoWakeIsLost) {
  constexpr int kTurns = 20'000;
  OnThreads ranks;
  std::thread other([&] { ranks.Play(1, kTurns); });
  ranks.Play(0, kTurns);
  other.join();
}

}  // namespace
}  // namespace rueda
