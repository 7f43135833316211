// What compression remembers, and what `auto` learns.
#include "ops/compression/state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rueda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr OpKind kKind = OpKind::kAllreduce;

TEST(CompressionStates, AreSavedAndLoaded) {
  CompressionStates saved;
  saved.Find(0, kKind, "w")->sent.values = {1, 2, 3};
  saved.Find(0, kKind, "w")->sums.values = {4};
  saved.Find(0, kKind, "b")->factor = {5, 6};
  saved.Find(1, kKind, "w")->sent.values = {9};
  const std::string bytes = *saved.Save(0);
  CompressionStates loaded;
  loaded.Find(0, kKind, "old")->sent.values = {7};
  ASSERT_TRUE(loaded.Load(0, {bytes}, 1, 0).ok());
  EXPECT_THAT(loaded.Find(0, kKind, "w")->sent.values, ElementsAre(1, 2, 3));
  EXPECT_THAT(loaded.Find(0, kKind, "w")->sums.values, ElementsAre(4));
  EXPECT_THAT(loaded.Find(0, kKind, "b")->factor, ElementsAre(5, 6));
  EXPECT_THAT(loaded.Find(0, kKind, "old")->sent.values, IsEmpty());
  EXPECT_THAT(loaded.Find(1, kKind, "w")->sent.values, IsEmpty()) << "another set's";
}

TEST(CompressionStates, GoToAsManyRanksOrTheirMeanToOthers) {
  CompressionStates one, other;
  one.Find(0, kKind, "w")->sent.values = {1, 2};
  one.Find(0, kKind, "w")->sums.values = {8};
  other.Find(0, kKind, "w")->sent.values = {3, 6};
  const std::string bytes[] = {*one.Save(0), *other.Save(0)};
  const std::vector<absl::string_view> both = {bytes[0], bytes[1]};
  CompressionStates loaded;
  ASSERT_TRUE(loaded.Load(0, both, 2, 1).ok());
  EXPECT_THAT(loaded.Find(0, kKind, "w")->sent.values, ElementsAre(3, 6));
  ASSERT_TRUE(loaded.Load(0, both, 3, 1).ok());
  EXPECT_THAT(loaded.Find(0, kKind, "w")->sent.values, ElementsAre(2, 4));
  EXPECT_THAT(loaded.Find(0, kKind, "w")->sums.values, IsEmpty());
}

TEST(CompressionStates, AreAnOperationsOfTheName) {
  CompressionStates states;
  states.Find(0, OpKind::kAllreduce, "w")->sent.values = {1};
  states.Find(0, OpKind::kReducescatter, "w")->sent.values = {2};
  ASSERT_TRUE(states.Load(0, {*states.Save(0)}, 1, 0).ok());
  EXPECT_THAT(states.Find(0, OpKind::kAllreduce, "w")->sent.values, ElementsAre(1));
  EXPECT_THAT(states.Find(0, OpKind::kReducescatter, "w")->sent.values, ElementsAre(2));
}

// What is to be compressed how is decided by all ranks alike, whichever of them loads.
TEST(CompressionStates, LoadingLeavesWhatAutoHasLearned) {
  CompressionStates states;
  const std::string nothing = *states.Save(0);
  states.Find(0, kKind, "w")->sent.values = {1};
  const std::string bytes = *states.Save(0);
  for (int i = 0; i < AutomaticChoice::kCandidates * AutomaticChoice::kTrials; ++i) {
    states.Find(0, kKind, "w")->automatic.Next(1 << 20);
  }
  ASSERT_TRUE(states.Load(0, {bytes}, 1, 0).ok());
  ASSERT_TRUE(states.Load(0, {nothing}, 1, 0).ok());
  EXPECT_THAT(states.Find(0, kKind, "w")->sent.values, IsEmpty());
  states.Find(0, kKind, "w")->automatic.Next(1 << 20);
  EXPECT_TRUE(states.Find(0, kKind, "w")->automatic.agrees());
}

// Members of other hosts, or another stripe: what is left out of these elements is not of those.
TEST(CompressionStates, OfStripesGoToTheSameAlone) {
  CompressionStates one, other, third;
  *one.Find(0, kKind, "w")->sent.Of(0, 2) = 8;
  *other.Find(0, kKind, "w")->sent.Of(2, 2) = 9;
  *third.Find(0, kKind, "w")->sent.Of(0, 2) = 7;
  const std::string bytes[] = {*one.Save(0), *other.Save(0), *third.Save(0)};
  const std::vector<absl::string_view> saved = {bytes[0], bytes[1], bytes[2]};
  CompressionStates loaded;
  ASSERT_TRUE(loaded.Load(0, saved, 3, 1).ok());
  EXPECT_EQ(*loaded.Find(0, kKind, "w")->sent.Of(2, 2), 9);
  EXPECT_EQ(*loaded.Find(0, kKind, "w")->sent.Of(0, 2), 0);
  ASSERT_TRUE(loaded.Load(0, saved, 2, 1).ok());
  EXPECT_EQ(*loaded.Find(0, kKind, "w")->sent.Of(0, 2), 0);
}

TEST(CompressionStates, RefuseDamageAndLeaveAllAsItWas) {
  CompressionStates states;
  states.Find(0, kKind, "w")->sent.values = {1, 2};
  const std::string bytes = *states.Save(0);
  for (size_t size = 0; size < bytes.size(); ++size) {
    if (size == 8) continue;  // nothing at all is whole
    const std::string cut = bytes.substr(0, size);
    EXPECT_EQ(states.Load(0, {cut}, 1, 0).code(), absl::StatusCode::kInvalidArgument) << size;
  }
  std::string longer = bytes;
  longer[33] = 127;  // how many numbers follow
  EXPECT_FALSE(states.Load(0, {longer}, 1, 0).ok());
  std::string infinite = bytes;
  infinite.replace(infinite.rfind(std::string("\0\0\x80\x3f", 4)), 4, "\x00\x00\x80\x7f", 4);
  EXPECT_FALSE(states.Load(0, {infinite}, 1, 0).ok());
  EXPECT_THAT(states.Find(0, kKind, "w")->sent.values, ElementsAre(1, 2));
}

TEST(CompressionStates, StayWhileSomethingIsUnderWay) {
  CompressionStates states;
  const std::string bytes = *states.Save(0);
  states.Began(0);
  EXPECT_TRUE(states.Save(1).ok()) << "another set's";
  EXPECT_EQ(states.Save(0).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(states.Load(0, {bytes}, 1, 0).code(), absl::StatusCode::kFailedPrecondition);
  states.Ended(0);
  EXPECT_TRUE(states.Load(0, {bytes}, 1, 0).ok());
}

// Runs the trials, of which each candidate takes so long, and returns what follows.
Compressor Learned(Nanos none, Nanos bf16, Nanos int8) {
  AutomaticChoice choice;
  const Nanos times[] = {none, bf16, int8};
  const Compressor candidates[] = {Compressor::kNone, Compressor::kBfloat16, Compressor::kInt8};
  for (int trial = 0; trial < AutomaticChoice::kTrials; ++trial) {
    for (int candidate = 0; candidate < 3; ++candidate) {
      EXPECT_EQ(choice.Next(1 << 20), candidates[candidate]);
      EXPECT_FALSE(choice.agrees());
      // The first is slow; then a link lets one of each pass at once.
      const Nanos times_now[] = {1'000'000, 1, times[candidate]};
      choice.Measured(times_now[trial]);
    }
  }
  EXPECT_EQ(choice.Next(1 << 20), Compressor::kNone) << "the ranks agree in it";
  EXPECT_TRUE(choice.agrees());
  choice.Decide(choice.times());
  choice.Measured(1);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(choice.Next(1 << 20), choice.choice());
    EXPECT_FALSE(choice.agrees());
  }
  return choice.choice();
}

TEST(AutomaticChoice, TakesWhatIsClearlyFastest) {
  EXPECT_EQ(Learned(1'000, 700, 500), Compressor::kInt8);
  EXPECT_EQ(Learned(1'000, 500, 700), Compressor::kBfloat16);
  EXPECT_EQ(Learned(1'000, 5'000, 9'000), Compressor::kNone);
  EXPECT_EQ(Learned(1'000, 950, 950), Compressor::kNone) << "not clearly";
}

TEST(AutomaticChoice, LeavesSmallTensorsAlone) {
  AutomaticChoice choice;
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(choice.Next(AutomaticChoice::kBytesMin - 1), Compressor::kNone);
    EXPECT_FALSE(choice.agrees());
    choice.Measured(1);
  }
}

}  // namespace
}  // namespace rueda
