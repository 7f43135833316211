// Who sits where. Each test's own thread.
#include "controller/membership/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace rueda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Topology, OneHostHasEverybody) {
  const Topology topology = MakeTopology({"h", "h", "h"});
  EXPECT_EQ(topology.world_size(), 3);
  ASSERT_EQ(topology.hosts.size(), 1u);
  EXPECT_THAT(topology.hosts[0].ranks, ElementsAre(0, 1, 2));
  EXPECT_EQ(topology.ranks[2].local_rank, 2);
  EXPECT_EQ(topology.ranks[2].cross_rank, 0);
  EXPECT_EQ(topology.ranks[2].cross_size, 1);
  EXPECT_EQ(topology.local_size(1), 3);
  EXPECT_TRUE(topology.homogeneous());
}

// Hosts b (ranks 0, 3, 4) and a (1, 2).
TEST(Topology, RanksOfAHostNeedNotBeNeighbours) {
  const Topology topology = MakeTopology({"b", "a", "a", "b", "b"});
  ASSERT_EQ(topology.hosts.size(), 2u);
  EXPECT_EQ(topology.hosts[0].id, "b") << "in the order of their lowest ranks";
  EXPECT_THAT(topology.hosts[0].ranks, ElementsAre(0, 3, 4));
  EXPECT_THAT(topology.hosts[1].ranks, ElementsAre(1, 2));
  EXPECT_FALSE(topology.homogeneous());
  EXPECT_EQ(&topology.host_of(4), &topology.hosts[0]);
  EXPECT_EQ(topology.local_size(2), 2);
  const RankPlace& last = topology.ranks[4];
  EXPECT_EQ(last.local_rank, 2);
  EXPECT_EQ(last.cross_rank, 0) << "the other host has no third rank";
  EXPECT_EQ(last.cross_size, 1);
  EXPECT_EQ(topology.ranks[2].cross_rank, 1);
  EXPECT_EQ(topology.ranks[2].cross_size, 2);
}

// Local ranks number each host's ranks, cross ranks those that share a local rank.
TEST(Topology, PlacesAreDense) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::string> ids;
    const int size = 1 + static_cast<int>(random() % 30);
    for (int rank = 0; rank < size; ++rank) ids.push_back(std::to_string(random() % 6));
    const Topology topology = MakeTopology(ids);
    std::set<std::pair<int, int>> by_host, by_local_rank;
    for (Rank rank = 0; rank < size; ++rank) {
      const RankPlace& place = topology.ranks[rank];
      ASSERT_EQ(topology.hosts[place.host].id, ids[rank]) << "seed " << seed;
      ASSERT_EQ(topology.hosts[place.host].ranks[place.local_rank], rank) << "seed " << seed;
      ASSERT_LT(place.cross_rank, place.cross_size) << "seed " << seed;
      ASSERT_TRUE(by_host.emplace(place.host, place.local_rank).second) << "seed " << seed;
      ASSERT_TRUE(by_local_rank.emplace(place.local_rank, place.cross_rank).second)
          << "seed " << seed;
    }
  }
}

TEST(Topology, PretendedHostsAreBlocksOfEqualSize) {
  const absl::StatusOr<std::vector<std::string>> ids = FakeHostIds(6, 2);
  ASSERT_TRUE(ids.ok()) << ids.status();
  const Topology topology = MakeTopology(*ids);
  ASSERT_EQ(topology.hosts.size(), 2u);
  EXPECT_THAT(topology.hosts[0].ranks, ElementsAre(0, 1, 2));
  EXPECT_THAT(topology.hosts[1].ranks, ElementsAre(3, 4, 5));
}

TEST(Topology, PretendedHostsThatDoNotDivideTheRanksAreRefused) {
  for (const int hosts : {-1, 0, 4, 7}) {
    const absl::Status status = FakeHostIds(6, hosts).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << hosts;
    EXPECT_THAT(std::string(status.message()), HasSubstr("6 ranks can't be split"));
  }
}

}  // namespace
}  // namespace rueda
