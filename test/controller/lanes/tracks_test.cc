// Which track of the timeline each tensor is on.
#include "controller/lanes/tracks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TracksTest : public ::testing::Test {
 protected:
  void TearDown() override {
    (void)timeline_.Stop();
    std::filesystem::remove(path_);
  }
  void Order(Request* request, const char* name, TensorId id) {
    Signature signature;
    signature.kind = OpKind::kAllreduce;
    signature.parts.push_back({DType::kFloat32, {2}});
    request->spec = MakeSpec(kWorldSet, name, signature);
    request->submitted_at = request->ordered_at = MonotonicNow();
    request->parts.resize(1);
    request->parts[0].shape = {2};
    tracks_.Ordered(request, id);
  }
  std::string Content() {
    EXPECT_TRUE(timeline_.Stop().ok());
    std::ifstream file(path_);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/tracks-", getpid(), ".json");
  Timeline timeline_;
  Tracks tracks_{&timeline_, 0};
};

TEST_F(TracksTest, ThereAreNoneWhileTheTimelineIsOff) {
  Request request;
  Order(&request, "weights", 1 << 16);
  EXPECT_EQ(request.track, 0u);
}

TEST_F(TracksTest, ATensorKeepsItsOwn) {
  ASSERT_TRUE(timeline_.Start(path_).ok());
  Request first, other, again, redefined;
  Order(&first, "weights", 1 << 16);
  Order(&other, "bias", 1 << 16 | 1);
  Order(&again, "weights", 1 << 16);
  Order(&redefined, "weights", 2 << 16);  // it was forgotten meanwhile, and has another id
  EXPECT_NE(first.track, 0u);
  EXPECT_NE(other.track, first.track);
  EXPECT_EQ(again.track, first.track);
  EXPECT_EQ(redefined.track, first.track);
}

TEST_F(TracksTest, WhatFailsIsToldWithTheReason) {
  ASSERT_TRUE(timeline_.Start(path_).ok());
  Request request;
  Order(&request, "weights", 1 << 16);
  request.status = absl::AbortedError("rank 2 was lost");
  tracks_.Ended(&request);
  tracks_.Note("JOIN", "all have joined");
  const std::string content = Content();
  EXPECT_THAT(content, HasSubstr("weights"));
  EXPECT_THAT(content, HasSubstr("rank 2 was lost"));
  EXPECT_THAT(content, HasSubstr("all have joined"));
}

// A bucket has told of it already.
TEST_F(TracksTest, WhatSucceedsIsToldByItsBuckets) {
  ASSERT_TRUE(timeline_.Start(path_).ok());
  Request request;
  Order(&request, "weights", 1 << 16);
  tracks_.Ended(&request);
  EXPECT_THAT(Content(), Not(HasSubstr("ALLREDUCE")));
}

}  // namespace
}  // namespace rueda
