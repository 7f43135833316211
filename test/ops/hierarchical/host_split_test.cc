#include "ops/hierarchical/host_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rueda {
namespace {

using ::testing::ElementsAre;

Group GroupOn(std::vector<int> hosts, int self) {
  Group group;
  group.hosts = std::move(hosts);
  for (size_t i = 0; i < group.hosts.size(); ++i) group.ranks.push_back(static_cast<Rank>(10 + i));
  group.self = self;
  return group;
}

TEST(HostSplit, HostsComeInTheOrderOfTheirFirstMembers) {
  const HostSplit split = SplitByHost(GroupOn({7, 7, 2, 2, 5, 5}, 3));
  EXPECT_THAT(split.members, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5)));
  EXPECT_EQ(split.host, 1);
  EXPECT_EQ(split.local, 1);
  EXPECT_EQ(split.stripes, 2);
}

TEST(HostSplit, MembersMayAlternate) {
  const HostSplit split = SplitByHost(GroupOn({0, 1, 0, 1, 0}, 4));
  EXPECT_THAT(split.members, ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 3)));
  EXPECT_EQ(split.host, 0);
  EXPECT_EQ(split.local, 2);
}

TEST(HostSplit, TheSmallestHostSaysHowManySendAndReceive) {
  EXPECT_EQ(SplitByHost(GroupOn({0, 0, 0, 1}, 0)).stripes, 1);
  EXPECT_EQ(SplitByHost(GroupOn({0, 0, 0, 1, 1}, 0)).stripes, 2);
  std::vector<int> large(100, 0);
  large.insert(large.end(), 100, 1);
  EXPECT_EQ(SplitByHost(GroupOn(large, 150)).stripes, 16);
}

}  // namespace
}  // namespace rueda
