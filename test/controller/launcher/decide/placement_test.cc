#include "controller/launcher/decide/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace rueda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Hosts = std::vector<HostSlots>;

// A placement whose hosts are all up, as soon as they are there.
struct Job {
  explicit Job(const Hosts& hosts, const Placement::Options& options = Roomy())
      : placement(options) {
    Set(hosts);
  }
  static Placement::Options Roomy() {
    Placement::Options options;
    options.processes_max = 1'000;
    return options;
  }
  // The slots that are withdrawn; those that are there again are `returned`.
  std::vector<Slot> Set(const Hosts& hosts) {
    Placement::Changes changes = placement.SetHosts(hosts);
    std::vector<Slot> withdrawn = std::move(changes.withdrawn);
    returned = std::move(changes.returned);
    for (int host = 0; host < placement.hosts(); ++host) placement.OnHostUp(host);
    return withdrawn;
  }
  // Starts what can be, and says where.
  std::vector<Slot> Fill(Nanos now = 0) {
    std::vector<Slot> slots;
    while (const std::optional<Slot> slot = placement.Next(now, awaited)) {
      placement.OnStarted(*slot);
      slots.push_back(*slot);
    }
    return slots;
  }
  void Fail(Slot slot, Nanos now) { placement.OnEnded(slot, /*failed=*/true, now); }
  void End(Slot slot) { placement.OnEnded(slot, /*failed=*/false, 0); }

  Placement placement;
  std::vector<Slot> returned;
  std::set<int> awaited;  // hosts
};

TEST(ElasticPlacement, ASlotThatIsThereAgainHasItsProcessBack) {
  Job job({{"a", 2}, {"b", 1}});
  EXPECT_THAT(job.Fill(), ElementsAre(0, 1, 2));
  EXPECT_THAT(job.returned, ElementsAre());
  EXPECT_THAT(job.Set({{"a", 1}}), ElementsAre(1, 2));
  EXPECT_THAT(job.returned, ElementsAre());
  job.End(2);
  EXPECT_THAT(job.Set({{"a", 2}, {"b", 1}}), ElementsAre());
  EXPECT_THAT(job.returned, ElementsAre(1)) << "that of b has ended";
  EXPECT_THAT(job.Fill(), ElementsAre(2));
}

TEST(ElasticPlacement, FillsTheHostsInTheirOrder) {
  Job job({{"a", 2}, {"b", 3}});
  EXPECT_EQ(job.placement.Next(0), 0);
  EXPECT_EQ(job.placement.Next(0), 0) << "until it is started there";
  EXPECT_THAT(job.Fill(), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(job.placement.running(), 5);
  for (Slot slot = 0; slot < 5; ++slot) job.End(slot);
  EXPECT_EQ(job.placement.running(), 0);
  job.Set({{"b", 3}, {"a", 2}});
  EXPECT_THAT(job.Fill(), ElementsAre(2, 3, 4, 0, 1)) << "in that which they have now";
}

TEST(ElasticPlacement, UsesHostsOnlyWhileTheyAreUp) {
  Placement placement(Job::Roomy());
  placement.SetHosts({{"a", 2}, {"b", 1}});
  EXPECT_EQ(placement.Next(0), std::nullopt);
  EXPECT_TRUE(placement.IsWanted(0, 0));
  placement.OnHostUp(1);
  EXPECT_EQ(placement.Next(0), 2);
  placement.OnHostUp(0);
  EXPECT_EQ(placement.Next(0), 0);
  placement.OnHostDown(0, /*failed=*/false, 0);
  EXPECT_EQ(placement.Next(0), 2);
  EXPECT_TRUE(placement.IsWanted(0, 0)) << "it has not failed";
}

TEST(ElasticPlacement, HasAsManyProcessesAsItMay) {
  Placement::Options options;
  options.processes_max = 3;
  Job job({{"a", 2}, {"b", 2}}, options);
  EXPECT_THAT(job.Fill(), ElementsAre(0, 1, 2));
  job.End(1);
  job.End(1);  // whoever is told twice counts once
  EXPECT_EQ(job.placement.running(), 2);
  EXPECT_THAT(job.Fill(), ElementsAre(1));
}

TEST(ElasticPlacement, StartsOthersBesideThoseThatAreToLeave) {
  Placement::Options options;
  options.processes_max = 2;
  Job job({{"a", 2}}, options);
  EXPECT_THAT(job.Fill(), ElementsAre(0, 1));
  EXPECT_THAT(job.Set({{"b", 3}}), ElementsAre(0, 1));
  const std::vector<Slot> others = job.Fill();
  EXPECT_EQ(others.size(), 2u) << "as many as it may have";
  for (const Slot slot : others) EXPECT_EQ(job.placement.HostOf(slot), 1);
  EXPECT_EQ(job.placement.running(), 4);
}

TEST(ElasticPlacement, LeavesASlotThatFailedAloneForTheCooldown) {
  Job job({{"a", 1}});
  EXPECT_THAT(job.Fill(), ElementsAre(0));
  job.Fail(0, 10 * kSecond);
  EXPECT_EQ(job.placement.running(), 0);
  EXPECT_EQ(job.placement.Next(10 * kSecond), std::nullopt);
  EXPECT_EQ(job.placement.Next(11 * kSecond - 1), std::nullopt);
  EXPECT_TRUE(job.placement.IsWanted(0, 10 * kSecond)) << "its host is none the worse";
  EXPECT_THAT(job.Fill(11 * kSecond), ElementsAre(0));
  job.End(0);
  EXPECT_THAT(job.Fill(11 * kSecond), ElementsAre(0)) << "one that ends well costs nothing";
}

TEST(ElasticPlacement, HasRoomForOneProcessOnAHostThatIsAwaited) {
  Placement::Options options;
  options.processes_max = 4;
  Job job({{"a", 2}, {"b", 2}, {"c", 2}}, options);
  EXPECT_THAT(job.Fill(), ElementsAre(0, 1, 2, 3));
  job.Fail(2, 0);
  job.Fail(3, 0);
  job.awaited = {1};
  EXPECT_THAT(job.Fill(), ElementsAre(4)) << "b cools down";
  EXPECT_THAT(job.Fill(kSecond), ElementsAre(2));
  EXPECT_THAT(job.Fill(10 * kSecond), IsEmpty());
  job.Fail(4, 10 * kSecond);
  EXPECT_THAT(job.Fill(10 * kSecond), ElementsAre(3))
      << "it has one already, and the first free slot";
  job.Fail(2, 20 * kSecond);
  job.Fail(3, 20 * kSecond);
  job.awaited = {};
  EXPECT_THAT(job.Fill(20 * kSecond), ElementsAre(4, 5));
}

TEST(ElasticPlacement, AHostThatIsGivenUpIsNotTriedAgain) {
  Placement::Options options = Job::Roomy();
  options.blame_hosts = true;
  Job job({{"a", 2}, {"b", 2}}, options);
  job.Fill();
  EXPECT_TRUE(job.placement.MayBeTried(1));
  job.Fail(2, 0);
  EXPECT_FALSE(job.placement.MayBeTried(1));
  EXPECT_TRUE(job.placement.MayBeTried(0));
  job.Set({{"b", 2}});
  EXPECT_FALSE(job.placement.MayBeTried(0));
}

TEST(ElasticPlacement, DoublesTheCooldownUpToTheMost) {
  Placement::Options options = Job::Roomy();
  options.cooldown_min = 2 * kSecond;
  options.cooldown_max = 7 * kSecond;
  Job job({{"a", 2}}, options);
  EXPECT_THAT(job.Fill(), ElementsAre(0, 1));
  Nanos now = 0;
  for (const Nanos cooldown : {2 * kSecond, 4 * kSecond, 7 * kSecond, 7 * kSecond}) {
    job.Fail(0, now);
    now += cooldown;
    EXPECT_THAT(job.Fill(now - 1), IsEmpty());
    EXPECT_THAT(job.Fill(now), ElementsAre(0));
  }
  job.Fail(1, now);
  EXPECT_THAT(job.Fill(now + 2 * kSecond), ElementsAre(1)) << "each slot has its own";
}

TEST(ElasticPlacement, HasNoLongerACooldownThanTheMostAtFirst) {
  Placement::Options options = Job::Roomy();
  options.cooldown_min = 9 * kSecond;
  options.cooldown_max = 5 * kSecond;
  Job job({{"a", 1}}, options);
  job.Fill();
  job.Fail(0, 0);
  EXPECT_THAT(job.Fill(5 * kSecond), ElementsAre(0));

  options.cooldown_min = options.cooldown_max = 0;
  Job at_once({{"a", 1}}, options);
  at_once.Fill();
  at_once.Fail(0, 0);
  EXPECT_THAT(at_once.Fill(), ElementsAre(0));
}

TEST(ElasticPlacement, UsesAnotherSlotMeanwhile) {
  Placement::Options options;
  options.processes_max = 2;
  Job job({{"a", 2}, {"b", 1}}, options);
  EXPECT_THAT(job.Fill(), ElementsAre(0, 1));
  job.Fail(0, 0);
  EXPECT_THAT(job.Fill(), ElementsAre(2));
  EXPECT_EQ(job.placement.Next(kSecond), std::nullopt) << "there are as many as there may be";
  job.End(2);
  EXPECT_THAT(job.Fill(kSecond), ElementsAre(0));
}

TEST(ElasticPlacement, LeavesAHostThatFailedAloneForAWhile) {
  Job job({{"a", 2}, {"b", 1}});
  Nanos now = 0;
  for (const Nanos cooldown : {kSecond, 2 * kSecond, 4 * kSecond}) {
    job.placement.OnHostDown(0, /*failed=*/true, now);
    job.placement.OnHostUp(0);  // too early
    EXPECT_FALSE(job.placement.IsWanted(0, now));
    EXPECT_TRUE(job.placement.IsWanted(1, now));
    EXPECT_EQ(job.placement.Next(now), 2) << "no slot of it";
    now += cooldown;
    EXPECT_FALSE(job.placement.IsWanted(0, now - 1));
    EXPECT_EQ(job.placement.Next(now - 1), 2);
    EXPECT_TRUE(job.placement.IsWanted(0, now));
    EXPECT_EQ(job.placement.Next(now), 0);
  }
  job.placement.OnHostDown(0, /*failed=*/false, now);
  EXPECT_TRUE(job.placement.IsWanted(0, now)) << "it was left in peace";
}

TEST(ElasticPlacement, BlamesAWholeHostForGoodWhereItIsToldTo) {
  Placement::Options options = Job::Roomy();
  options.blame_hosts = true;
  Job job({{"a", 2}, {"b", 2}}, options);
  job.Fill();
  job.End(2);
  EXPECT_THAT(job.Fill(), ElementsAre(2)) << "it has not failed";
  job.End(1);
  job.Fail(0, 0);
  const Nanos late = 1'000'000 * kSecond;
  EXPECT_FALSE(job.placement.IsWanted(0, late));
  EXPECT_THAT(job.Fill(late), IsEmpty()) << "slot 1 either";
  EXPECT_TRUE(job.placement.IsWanted(1, late));
  EXPECT_EQ(job.placement.deadline(kSecond), kForever);
  job.Set({{"b", 2}});
  job.Set({{"a", 2}, {"b", 2}});
  EXPECT_FALSE(job.placement.IsWanted(0, late)) << "coming again helps nothing";
}

TEST(SetHosts, AddsAHostBehindThoseThatAreKnown) {
  Job job({{"a", 2}});
  EXPECT_THAT(job.Fill(), ElementsAre(0, 1));
  EXPECT_THAT(job.Set({{"new", 2}, {"a", 2}}), IsEmpty());
  EXPECT_EQ(job.placement.hosts(), 2);
  EXPECT_EQ(job.placement.NameOf(0), "a");
  EXPECT_EQ(job.placement.NameOf(1), "new");
  EXPECT_EQ(job.placement.FirstSlotOf(1), 2);
  EXPECT_EQ(job.placement.SlotsThere(), 4);
  EXPECT_THAT(job.Fill(), ElementsAre(2, 3));
}

TEST(SetHosts, WithdrawsTheProcessesOfAHostThatGoes) {
  Placement::Options options;
  options.processes_max = 3;
  Job job({{"a", 2}, {"b", 3}}, options);
  EXPECT_THAT(job.Fill(), ElementsAre(0, 1, 2));
  EXPECT_THAT(job.Set({{"a", 2}}), ElementsAre(2)) << "in the others there is none";
  EXPECT_TRUE(job.placement.IsThere(0));
  EXPECT_FALSE(job.placement.IsThere(1));
  EXPECT_FALSE(job.placement.IsWanted(1, 0));
  EXPECT_EQ(job.placement.SlotsThere(), 2);
  EXPECT_EQ(job.placement.hosts(), 2);
  EXPECT_THAT(job.Set({{"a", 2}}), IsEmpty()) << "once";
  job.End(2);
  EXPECT_EQ(job.placement.Next(0), std::nullopt);
  EXPECT_THAT(job.Set({}), ElementsAre(0, 1));
  EXPECT_EQ(job.placement.SlotsThere(), 0);
}

TEST(SetHosts, AHostThatComesAgainIsTheOneThatWentAway) {
  Job job({{"a", 1}, {"b", 2}, {"c", 1}});
  EXPECT_THAT(job.Fill(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(job.Set({{"a", 1}, {"c", 1}}), ElementsAre(1, 2));
  job.Fail(1, 0);
  EXPECT_THAT(job.Set({{"c", 1}, {"b", 2}, {"a", 1}}), IsEmpty());
  EXPECT_EQ(job.placement.hosts(), 3);
  EXPECT_EQ(job.placement.NameOf(1), "b");
  EXPECT_EQ(job.placement.FirstSlotOf(1), 1);
  EXPECT_TRUE(job.placement.IsThere(1));
  EXPECT_THAT(job.Fill(), IsEmpty()) << "one slot has failed, and one is still in use";
  job.End(2);
  EXPECT_THAT(job.Fill(kSecond), ElementsAre(1, 2));
}

TEST(SetHosts, WithdrawsWhatIsBeyondTheSlotsThatAreLeft) {
  Job job({{"a", 4}, {"b", 1}});
  EXPECT_THAT(job.Fill(), ElementsAre(0, 1, 2, 3, 4));
  job.End(2);
  EXPECT_THAT(job.Set({{"a", 1}, {"b", 1}}), ElementsAre(1, 3));
  EXPECT_EQ(job.placement.SlotsOf(0), 1);
  EXPECT_EQ(job.placement.RoomOf(0), 4);
  EXPECT_THAT(job.Fill(), IsEmpty());
  EXPECT_THAT(job.Set({{"a", 3}, {"b", 1}}), IsEmpty());
  EXPECT_THAT(job.Fill(), ElementsAre(2)) << "1 is still in use";
  job.End(1);
  job.End(3);
  EXPECT_THAT(job.Fill(), ElementsAre(1)) << "3 is not there";
}

TEST(SetHosts, AHostGrowsAsFarAsItHasRoom) {
  Placement::Options options = Job::Roomy();
  options.room_min = 4;
  Job job({{"a", 1}, {"big", 6}, {"c", 1}}, options);
  EXPECT_EQ(job.placement.RoomOf(0), 4);
  EXPECT_EQ(job.placement.RoomOf(1), 6);
  EXPECT_THAT(job.Fill(), ElementsAre(0, 4, 5, 6, 7, 8, 9, 10));
  EXPECT_THAT(job.Set({{"a", 3}, {"big", 7}, {"c", 1}}), IsEmpty());
  EXPECT_EQ(job.placement.SlotsOf(1), 6);
  EXPECT_THAT(job.Fill(), ElementsAre(1, 2));
  job.Set({{"a", 100}, {"big", 6}, {"c", 2}});
  EXPECT_EQ(job.placement.SlotsOf(0), 4);
  EXPECT_EQ(job.placement.SlotsThere(), 12);
  EXPECT_THAT(job.Fill(), ElementsAre(3, 11));
}

TEST(SetHosts, NeverChangesTheNumbersOfSlots) {
  Placement::Options options = Job::Roomy();
  options.room_min = 3;
  Job job({{"a", 2}, {"b", 3}}, options);
  const auto look = [&](const std::string& when) {
    const int kHosts[] = {0, 0, 0, 1, 1, 1};
    for (Slot slot = 0; slot < 6; ++slot) {
      EXPECT_EQ(job.placement.HostOf(slot), kHosts[slot]) << slot << " " << when;
    }
    EXPECT_EQ(job.placement.FirstSlotOf(0), 0) << when;
    EXPECT_EQ(job.placement.FirstSlotOf(1), 3) << when;
  };
  look("at first");
  EXPECT_EQ(job.placement.HostOf(6), -1);
  EXPECT_EQ(job.placement.HostOf(-1), -1);
  job.Set({{"b", 1}});
  look("without a");
  job.Set({{"c", 4}, {"b", 3}, {"a", 3}});
  look("with c");
  EXPECT_EQ(job.placement.HostOf(6), 2);
  EXPECT_EQ(job.placement.HostOf(9), 2);
  EXPECT_EQ(job.placement.HostOf(10), -1);
}

TEST(Deadline, IsWhenTheNextSlotOrHostMayBeUsedAgain) {
  Job job({{"a", 2}, {"b", 1}});
  EXPECT_EQ(job.placement.deadline(0), kForever);
  job.Fill();
  job.Fail(0, 0);
  job.Fail(1, kSecond / 2);
  EXPECT_EQ(job.placement.deadline(0), kSecond);
  EXPECT_EQ(job.placement.deadline(kSecond), 3 * kSecond / 2) << "what has come is past";
  EXPECT_EQ(job.placement.deadline(3 * kSecond / 2), kForever);
  job.placement.OnHostDown(1, /*failed=*/true, 5 * kSecond);
  EXPECT_EQ(job.placement.deadline(5 * kSecond), 6 * kSecond);
  job.Set({{"a", 2}});
  EXPECT_EQ(job.placement.deadline(5 * kSecond), kForever) << "b is not there";
}

// Whoever looks at the deadlines, and when something has happened, misses nothing.
TEST(Deadline, NothingChangesBeforeIt) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    const auto up_to = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
    Placement::Options options;
    options.processes_max = 1 + up_to(6);
    options.room_min = 1 + up_to(4);
    options.cooldown_max = 8 * kSecond;
    Job job({{"a", 2}, {"b", 1}, {"c", 3}}, options);
    Placement& placement = job.placement;
    std::vector<Slot> running;
    Nanos now = 0;
    for (int step = 0; step < 60; ++step) {
      switch (up_to(6)) {
        case 0:
          job.Set({{"b", 1 + up_to(3)}, {"a", 1 + up_to(3)}});
          break;
        case 1:
          job.Set({{"c", 1 + up_to(4)}, {"a", 1}});
          break;
        case 2:
          placement.OnHostDown(up_to(3), up_to(2) == 0, now);
          break;
        case 3:
          placement.OnHostUp(up_to(3));
          break;
        case 4:
          if (running.empty()) break;
          placement.OnEnded(running.back(), up_to(2) == 0, now);
          running.pop_back();
          break;
        default:
          for (const Slot slot : job.Fill(now)) running.push_back(slot);
      }
      ASSERT_EQ(placement.running(), static_cast<int>(running.size()));
      const Nanos deadline = placement.deadline(now);
      ASSERT_GT(deadline, now);
      const Nanos before = deadline == kForever ? now + 100 * kSecond : deadline - 1;
      ASSERT_EQ(placement.Next(before), placement.Next(now)) << "seed " << seed;
      for (int host = 0; host < 3; ++host) {
        ASSERT_EQ(placement.IsWanted(host, before), placement.IsWanted(host, now)) << seed;
      }
      now += up_to(2'000) * kMillisecond;
    }
  }
}

TEST(ElasticPlacement, AHostThatIsBlamedStaysSoWhenItIsLost) {
  Placement::Options options = Job::Roomy();
  options.blame_hosts = true;
  Job job({{"a", 1}}, options);
  job.Fill();
  job.Fail(0, 0);
  job.placement.OnHostDown(0, /*failed=*/true, kSecond);
  EXPECT_FALSE(job.placement.IsWanted(0, 1'000 * kSecond));
}

}  // namespace
}  // namespace rueda
