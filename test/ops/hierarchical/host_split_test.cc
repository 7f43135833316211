#include "ops/hierarchical/host_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rueda {
namespace {

using ::testing::ElementsAre;

Members MembersOn(std::vector<int> hosts, int self) {
  Members members;
  members.hosts = std::move(hosts);
  for (size_t i = 0; i < members.hosts.size(); ++i) {
    members.ranks.push_back(static_cast<Rank>(10 + i));
  }
  members.self = self;
  return members;
}

TEST(HostSplit, HostsComeInTheOrderOfTheirFirstMembers) {
  const HostSplit split = SplitByHost(MembersOn({7, 7, 2, 2, 5, 5}, 3));
  EXPECT_THAT(split.members, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5)));
  EXPECT_EQ(split.host, 1);
  EXPECT_EQ(split.local, 1);
  EXPECT_EQ(split.stripes, 2);
}

TEST(HostSplit, MembersMayAlternate) {
  const HostSplit split = SplitByHost(MembersOn({0, 1, 0, 1, 0}, 4));
  EXPECT_THAT(split.members, ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 3)));
  EXPECT_EQ(split.host, 0);
  EXPECT_EQ(split.local, 2);
}

TEST(HostSplit, TheSmallestHostSaysHowManySendAndReceive) {
  EXPECT_EQ(SplitByHost(MembersOn({0, 0, 0, 1}, 0)).stripes, 1);
  EXPECT_EQ(SplitByHost(MembersOn({0, 0, 0, 1, 1}, 0)).stripes, 2);
  std::vector<int> large(100, 0);
  large.insert(large.end(), 100, 1);
  EXPECT_EQ(SplitByHost(MembersOn(large, 150)).stripes, 16);
}

}  // namespace
}  // namespace rueda
