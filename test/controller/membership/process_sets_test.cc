// Process sets: ids, members, and what is refused. Each test's own thread.
#include "controller/membership/process_sets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "core/base/limits.h"

namespace rueda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ProcessSets, TheFirstIsTheWorld) {
  const ProcessSetTable table(3);
  EXPECT_EQ(table.end(), 1);
  EXPECT_EQ(table.world_size(), 3);
  EXPECT_EQ(table.Find(kWorldSet)->id, kWorldSet);
  EXPECT_THAT(table.Find(kWorldSet)->ranks, ElementsAre(0, 1, 2));
}

TEST(ProcessSets, IdsFollowTheOrderOfAdding) {
  ProcessSetTable table(4);
  EXPECT_EQ(*table.Add({1, 3}), 1);
  EXPECT_EQ(*table.Add({0}), 2);
  EXPECT_EQ(*table.Add({0, 1, 2}), 3);
  EXPECT_THAT(table.Find(1)->ranks, ElementsAre(1, 3));
  EXPECT_EQ(table.Find(3)->id, 3);
}

TEST(ProcessSets, UnknownIdsAreNotFound) {
  const ProcessSetTable table(2);
  for (const SetId id : {-1, 1, INT32_MAX, INT32_MIN}) EXPECT_EQ(table.Find(id), nullptr) << id;
}

TEST(ProcessSets, PointersStayValid) {
  ProcessSetTable table(300);
  const ProcessSet* world = table.Find(kWorldSet);
  for (Rank rank = 0; rank < 200; ++rank) ASSERT_TRUE(table.Add({rank}).ok());
  EXPECT_EQ(table.Find(kWorldSet), world);
  EXPECT_EQ(world->size(), 300);
}

TEST(ProcessSets, AMembersIndexIsItsPlace) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    ProcessSet set;
    for (Rank rank = 0; rank < 40; ++rank) {
      if (random() % 3 != 0) set.ranks.push_back(rank);
    }
    for (Rank rank = -2; rank < 43; ++rank) {
      const auto it = std::find(set.ranks.begin(), set.ranks.end(), rank);
      const int place = it == set.ranks.end() ? -1 : static_cast<int>(it - set.ranks.begin());
      ASSERT_EQ(set.IndexOf(rank), place) << "rank " << rank << ", trial " << trial;
      ASSERT_EQ(set.Contains(rank), place >= 0);
    }
  }
}

TEST(ProcessSets, RefusesWhatIsNoSetOfRanks) {
  ProcessSetTable table(3);
  const auto refusal = [&](const std::vector<Rank>& ranks) {
    EXPECT_EQ(table.Check(ranks), table.Add(ranks).status());
    EXPECT_TRUE(absl::IsInvalidArgument(table.Check(ranks)));
    return std::string(table.Check(ranks).message());
  };
  EXPECT_EQ(refusal({}), "a process set needs at least one rank");
  EXPECT_EQ(refusal({0, 3}), "process set {0, 3}: 3 is not a rank; the world has ranks 0 to 2");
  EXPECT_THAT(refusal({-1}), HasSubstr("-1 is not a rank"));
  EXPECT_THAT(refusal({1, 0}), HasSubstr("must be ascending"));
  EXPECT_THAT(refusal({1, 1}), HasSubstr("each named once"));
  EXPECT_EQ(table.end(), 1);
}

TEST(ProcessSets, RefusesASecondOfTheSameRanks) {
  ProcessSetTable table(3);
  EXPECT_EQ(table.Add({0, 1, 2}).status(),
            absl::AlreadyExistsError("process set {0, 1, 2} exists already, as set 0"));
  ASSERT_TRUE(table.Add({1, 2}).ok());
  EXPECT_EQ(table.Check({1, 2}),
            absl::AlreadyExistsError("process set {1, 2} exists already, as set 1"));
}

TEST(ProcessSets, AreBounded) {
  ProcessSetTable table(kProcessSetsMax + 1);
  for (Rank rank = 1; rank < kProcessSetsMax; ++rank) ASSERT_TRUE(table.Add({rank}).ok());
  EXPECT_EQ(table.end(), kProcessSetsMax);
  EXPECT_TRUE(absl::IsResourceExhausted(table.Check({0, 1})));
  EXPECT_TRUE(absl::IsResourceExhausted(table.Add({0, 1}).status()));
  EXPECT_EQ(table.end(), kProcessSetsMax);
}

TEST(ProcessSets, AnIdThatIsFreeAgainIsGivenToTheNextOfAnotherGeneration) {
  ProcessSetTable table(4, {{{0, 1}, {2, 3}}});
  EXPECT_EQ(table.Find(2)->generation, 0u);
  ASSERT_TRUE(table.Remove(1).ok());
  EXPECT_EQ(table.Find(1), nullptr);
  EXPECT_EQ(table.Find({0, 1}), nullptr);
  EXPECT_TRUE(absl::IsNotFound(table.Remove(1)));
  EXPECT_TRUE(absl::IsInvalidArgument(table.Remove(kWorldSet)));
  EXPECT_EQ(*table.Add({1, 2}), 1);
  EXPECT_EQ(table.Find(1)->generation, 1u);
  EXPECT_EQ(table.Find({1, 2})->id, 1);
  EXPECT_EQ(*table.Add({0, 1}), 3);
}

TEST(ProcessSets, AListInASettingIsRead) {
  const auto sets = ParseProcessSets("1,0;2-4;0,3-5", 6);
  ASSERT_TRUE(sets.ok()) << sets.status();
  EXPECT_THAT(*sets, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3, 4), ElementsAre(0, 3, 4, 5)));
  EXPECT_TRUE(ParseProcessSets("", 2)->empty());
  for (const char* bad : {"6", "-1", "2-1", "1,,2", "1;", "a", "0-9", "1,1", "0,1;1,0", "0-5"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseProcessSets(bad, 6).status())) << bad;
  }
  // No list is longer than the world, however long the text.
  EXPECT_THAT(std::string(ParseProcessSets("0-4,0-4", 6).status().message()),
              HasSubstr("'0-4' names a rank a second time"));
}

}  // namespace
}  // namespace rueda
