// Who reports to whom, and for whom.
#include "controller/membership/leader_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rueda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::vector<Rank>> HostsOf(int hosts, int ranks_each) {
  std::vector<std::vector<Rank>> all(hosts);
  for (Rank rank = 0; rank < hosts * ranks_each; ++rank) all[rank / ranks_each].push_back(rank);
  return all;
}

TEST(LeaderTree, OfFewHostsIsAStar) {
  const LeaderTree tree(HostsOf(4, 2), 3);
  EXPECT_EQ(tree.depth(), 1);
  EXPECT_EQ(tree.ParentOf(0), -1);
  EXPECT_THAT(tree.ChildrenOf(0), ElementsAre(2, 4, 6));
  EXPECT_EQ(tree.ParentOf(6), 0);
  EXPECT_THAT(tree.ChildrenOf(6), IsEmpty());
  EXPECT_TRUE(tree.IsLeader(4));
  EXPECT_FALSE(tree.IsLeader(5));
  EXPECT_THAT(tree.RanksOf(4, SpeaksFor::kSubtree), ElementsAre(4, 5));
}

TEST(LeaderTree, OfOneHostHasNobodyElse) {
  const LeaderTree tree(HostsOf(1, 3), 3);
  EXPECT_EQ(tree.depth(), 0);
  EXPECT_THAT(tree.ChildrenOf(0), IsEmpty());
  EXPECT_THAT(tree.RanksOf(0, SpeaksFor::kSubtree), ElementsAre(0, 1, 2));
}

TEST(LeaderTree, SpeaksForBlocksOfNeighbours) {
  const LeaderTree tree(HostsOf(8, 1), 2);
  // 0 -> 1 (1 to 4), 5 (5 to 7); 1 -> 2 (2, 3), 4; 5 -> 6, 7; 2 -> 3
  EXPECT_THAT(tree.ChildrenOf(0), ElementsAre(1, 5));
  EXPECT_THAT(tree.ChildrenOf(1), ElementsAre(2, 4));
  EXPECT_THAT(tree.ChildrenOf(2), ElementsAre(3));
  EXPECT_EQ(tree.depth(), 3);
  EXPECT_THAT(tree.RanksOf(1, SpeaksFor::kSubtree), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(tree.RanksOf(1, SpeaksFor::kHost), ElementsAre(1));
  EXPECT_TRUE(tree.Covers(1, 4));
  EXPECT_FALSE(tree.Covers(1, 5));
}

// Ranks dealt out in turn: a host's are no neighbours.
TEST(LeaderTree, RanksOfAHostMayLieApart) {
  const LeaderTree tree(std::vector<std::vector<Rank>>{{0, 3}, {1, 4}, {2, 5}}, 1);
  EXPECT_THAT(tree.RanksOf(1, SpeaksFor::kSubtree), ElementsAre(1, 4, 2, 5));
  EXPECT_THAT(tree.RanksOf(4, SpeaksFor::kRank), ElementsAre(4));
  EXPECT_TRUE(tree.Covers(2, 5));
  EXPECT_FALSE(tree.Covers(2, 4));
  EXPECT_FALSE(tree.IsLeader(3));
}

// However many there are: one parent, no more children than allowed, and all below rank 0.
TEST(LeaderTree, IsATree) {
  for (const int hosts : {2, 33, 34, 1'000, 1'280}) {
    for (const int fan_out : {1, 2, 32}) {
      const LeaderTree tree(HostsOf(hosts, 2), fan_out);
      std::vector<int> below(2 * hosts, 1);
      for (Rank leader = 2 * hosts - 2; leader > 0; leader -= 2) {
        const Rank parent = tree.ParentOf(leader);
        ASSERT_LT(parent, leader);
        ASSERT_TRUE(tree.Covers(parent, leader));
        ASSERT_LE(tree.ChildrenOf(leader).size(), static_cast<size_t>(fan_out));
        ASSERT_EQ(tree.RanksOf(leader, SpeaksFor::kSubtree).size(), 2u * below[leader]);
        below[parent] += below[leader];
      }
      EXPECT_EQ(below[0], hosts);
    }
  }
  EXPECT_EQ(LeaderTree(HostsOf(1'280, 1), 32).depth(), 3);
}

}  // namespace
}  // namespace rueda
