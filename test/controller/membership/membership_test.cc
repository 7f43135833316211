// Every transition, from every state: it happens where the picture in membership.h has it, once.
#include "controller/membership/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace rueda {
namespace {

using State = Membership::State;

enum class Step { kLeave, kBeginFarewell, kFail, kEnd };

bool Take(Step step, Membership* membership) {
  switch (step) {
    case Step::kLeave:
      return membership->Leave();
    case Step::kBeginFarewell:
      return membership->BeginFarewell(100);
    case Step::kFail:
      return membership->Fail();
    case Step::kEnd:
      return membership->End();
  }
  return false;
}

std::unique_ptr<Membership> At(State state) {
  auto membership = std::make_unique<Membership>();
  const bool farewell = state == State::kFarewell || state == State::kOver;
  if (state == State::kLeaving || farewell) membership->Leave();
  if (farewell) membership->BeginFarewell(100);
  if (state == State::kFailing || state == State::kFailed) membership->Fail();
  if (state == State::kOver || state == State::kFailed) membership->End();
  EXPECT_EQ(membership->state(), state);
  return membership;
}

TEST(Membership, TakesTheStepsOfThePictureAndNoOthers) {
  struct Edge {
    State from;
    Step step;
    State to;
  };
  const Edge edges[] = {
      {State::kRunning, Step::kLeave, State::kLeaving},
      {State::kLeaving, Step::kBeginFarewell, State::kFarewell},
      {State::kFarewell, Step::kEnd, State::kOver},
      {State::kRunning, Step::kFail, State::kFailing},
      {State::kLeaving, Step::kFail, State::kFailing},
      {State::kFarewell, Step::kFail, State::kFailing},
      {State::kFailing, Step::kEnd, State::kFailed},
  };
  for (const State from : {State::kRunning, State::kLeaving, State::kFarewell, State::kOver,
                           State::kFailing, State::kFailed}) {
    for (const Step step : {Step::kLeave, Step::kBeginFarewell, Step::kFail, Step::kEnd}) {
      State to = from;
      for (const Edge& edge : edges) {
        if (edge.from == from && edge.step == step) to = edge.to;
      }
      const std::unique_ptr<Membership> membership = At(from);
      EXPECT_EQ(Take(step, membership.get()), to != from);
      EXPECT_EQ(membership->state(), to);
      EXPECT_FALSE(Take(step, membership.get())) << "twice";
      EXPECT_EQ(membership->state(), to);
    }
  }
}

TEST(Membership, GoesOnUntilItIsOverOrFails) {
  for (const State state : {State::kRunning, State::kLeaving, State::kFarewell}) {
    EXPECT_TRUE(At(state)->goes_on());
    EXPECT_FALSE(At(state)->has_failed());
    EXPECT_FALSE(At(state)->has_ended());
  }
  EXPECT_FALSE(At(State::kOver)->goes_on());
  EXPECT_FALSE(At(State::kOver)->has_failed());
  EXPECT_TRUE(At(State::kOver)->has_ended());
  // While operations are completed with the failure nobody may take the job for ended.
  EXPECT_FALSE(At(State::kFailing)->goes_on());
  EXPECT_TRUE(At(State::kFailing)->has_failed());
  EXPECT_FALSE(At(State::kFailing)->has_ended());
  EXPECT_FALSE(At(State::kFailed)->goes_on());
  EXPECT_TRUE(At(State::kFailed)->has_failed());
  EXPECT_TRUE(At(State::kFailed)->has_ended());
}

TEST(Membership, AFarewellHasATimeOfItsOwn) {
  EXPECT_EQ(At(State::kLeaving)->farewell_until(), kForever);
  EXPECT_EQ(At(State::kFarewell)->farewell_until(), 100 + Membership::kFarewellPatience);
  for (const Step end : {Step::kEnd, Step::kFail}) {
    const std::unique_ptr<Membership> membership = At(State::kFarewell);
    ASSERT_TRUE(Take(end, membership.get()));
    EXPECT_EQ(membership->farewell_until(), kForever);
  }
}

}  // namespace
}  // namespace rueda
