#include "core/tensor/traits.h"

#include <gtest/gtest.h>

#include <limits>

namespace rueda {
namespace {

TEST(Traits, SayWhoGivesAndWhoGets) {
  OperationTraits traits;
  traits.root = 1;
  const struct {
    OpKind kind;
    bool root_gives, others_give, root_gets, others_get;
  } kRows[] = {
      {OpKind::kAllreduce, true, true, true, true}, {OpKind::kBroadcast, true, true, true, true},
      {OpKind::kReduce, true, true, true, false},   {OpKind::kGather, true, true, true, false},
      {OpKind::kScatter, true, false, true, true},  {OpKind::kBarrier, false, false, false, false},
  };
  for (const auto& row : kRows) {
    traits.kind = row.kind;
    EXPECT_EQ(traits.Gives(1), row.root_gives) << OpKindName(row.kind);
    EXPECT_EQ(traits.Gives(0), row.others_give) << OpKindName(row.kind);
    EXPECT_EQ(traits.Gets(1), row.root_gets) << OpKindName(row.kind);
    EXPECT_EQ(traits.Gets(0), row.others_get) << OpKindName(row.kind);
  }
  traits.kind = OpKind::kSendRecv;
  traits.peer = 2;
  EXPECT_TRUE(traits.Gives(1) && traits.Gets(2));
  EXPECT_FALSE(traits.Gives(2) || traits.Gets(1));
}

TEST(Traits, OfAKindGoTogether) {
  for (int kind = 0; kind < kOpKindCount; ++kind) {
    const KindTraits& traits = TraitsOf(static_cast<OpKind>(kind));
    SCOPED_TRACE(traits.name);
    EXPECT_EQ(traits.gives == Who::kNobody, traits.gets == Who::kNobody);
    EXPECT_TRUE(traits.tensors() || !(traits.reduces || traits.rooted || traits.fuses));
    EXPECT_TRUE(traits.reshapes || !traits.ragged) << "how many rows come out is not known before";
    EXPECT_TRUE(traits.rooted || (traits.gives != Who::kRoot && traits.gets != Who::kRoot));
  }
}

TEST(Scaling, IsBeforeAndAfter) {
  const Scaling scaling = {2, 3, 4};
  EXPECT_EQ(scaling.before(), (Scaling{2, 1, 1}));
  EXPECT_EQ(scaling.after(), (Scaling{1, 3, 4}));
  EXPECT_FALSE(scaling.none() || scaling.before().none() || scaling.after().none());
  EXPECT_TRUE(Scaling().none());
  EXPECT_EQ((Scaling{0.5, 3}).ToString(), "prescale 0.5 postscale 3");
  EXPECT_TRUE(scaling.finite());
  EXPECT_FALSE((Scaling{std::numeric_limits<double>::infinity()}).finite());
  EXPECT_FALSE((Scaling{1, std::numeric_limits<double>::quiet_NaN()}).finite());
}

}  // namespace
}  // namespace rueda
