// Events as entries of the log. Each test's own thread.
#include "controller/bus/log_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/protocol/codec.h"
#include "test/support/log_memory.h"

namespace rueda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<Rank> kRanks = {4, 9};

// A log of two writers whose ranks are 4 and 9.
class LogCodec : public ::testing::Test {
 protected:
  // Writes the event and reads it back.
  ControlEvent Passed(const ControlEvent& event) {
    const absl::StatusOr<bool> written = AppendEvent(event, &log_);
    EXPECT_TRUE(written.ok() && *written) << written.status();
    EXPECT_TRUE(*log_.Read(&entry_));
    log_.PublishCursor();
    EXPECT_FALSE(IsPlan(entry_));
    absl::StatusOr<ControlEvent> decoded = DecodeLogEvent(entry_, kRanks);
    EXPECT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->rank, 9) << "the writer's rank, whatever the event says";
    EXPECT_EQ(decoded->what.index(), event.what.index());
    return *std::move(decoded);
  }

  static LogLayout Layout() {
    LogLayout layout;
    layout.writers = 2;
    layout.words = 64;
    layout.side_bytes = 4'096;
    return layout;
  }
  const testing::LogMemory memory_{Layout()};
  HostLog log_{memory_.data(), memory_.layout(), 1};
  LogEntry entry_;
};

SpecPtr Spec(const std::string& name, int parts = 1) {
  Signature signature;
  signature.kind = OpKind::kAllreduce;
  signature.reduce_op = ReduceOp::kSum;
  for (int i = 0; i < parts; ++i) signature.parts.push_back({DType::kFloat32, {4}});
  if (parts > 1) signature.part_names.assign(static_cast<size_t>(parts), "part");
  return MakeSpec(kWorldSet, name, signature);
}

TEST_F(LogCodec, AnAnnouncementById) {
  Announcement announcement;
  announcement.id = (1u << 30) - 1;
  announcement.waited = true;
  announcement.done = 65'535;
  const ControlEvent event = Passed({9, Announced{announcement}});
  EXPECT_FALSE(entry_.has_payload) << "one word";
  const Announcement& got = std::get<Announced>(event.what).announcement;
  EXPECT_EQ(got.id, announcement.id);
  EXPECT_TRUE(got.waited);
  EXPECT_EQ(got.done, 65'535);
  EXPECT_EQ(got.spec, nullptr);
  EXPECT_TRUE(got.extras.empty());
}

TEST_F(LogCodec, AnAnnouncementByIdWithExtras) {
  Announcement announcement;
  announcement.id = 7;
  announcement.extras.first_dims = {3, 4};
  announcement.extras.scaling.prescale = 2;
  const ControlEvent event = Passed({9, Announced{announcement}});
  const Announcement& got = std::get<Announced>(event.what).announcement;
  EXPECT_EQ(got.id, 7u);
  EXPECT_THAT(got.extras.first_dims, ElementsAre(3, 4));
  EXPECT_EQ(got.extras.scaling.prescale, 2);
}

TEST_F(LogCodec, AnAnnouncementBySpec) {
  Announcement announcement;
  announcement.spec = Spec("w");
  const ControlEvent event = Passed({9, Announced{announcement}});
  EXPECT_EQ(*std::get<Announced>(event.what).announcement.spec, *Spec("w"));
}

TEST_F(LogCodec, TheOtherEvents) {
  const ControlEvent waited = Passed({9, Waited{12, 65'535}});
  EXPECT_EQ(std::get<Waited>(waited.what).id, 12u);
  EXPECT_EQ(std::get<Waited>(waited.what).sequence, 65'535);
  const ControlEvent done = Passed({9, Done{255, 7}});
  EXPECT_EQ(std::get<Done>(done.what).lane, 255);
  EXPECT_EQ(std::get<Done>(done.what).count, 7);
  const ControlEvent expire = Passed({9, Expire{13, 8}});
  EXPECT_EQ(std::get<Expire>(expire.what).id, 13u);
  EXPECT_EQ(std::get<Expire>(expire.what).sequence, 8);
  const ControlEvent blocked = Passed({9, Blocked{Blocked::kStill, 65'535}});
  EXPECT_EQ(std::get<Blocked>(blocked.what).level, Blocked::kStill);
  EXPECT_EQ(std::get<Blocked>(blocked.what).question, 65'535);
  EXPECT_TRUE(std::holds_alternative<Asked>(Passed({9, Asked{}}).what));
  EXPECT_EQ(std::get<Wished>(Passed({9, Wished{255}}).what).bits, 255);
  EXPECT_FALSE(entry_.has_payload) << "one word";
  Passed({9, Leave{}});
}

TEST_F(LogCodec, APlanIsKnownAsOne) {
  const std::string packed = PackPlan({Forget{3}}, 1'000)[0];
  ASSERT_TRUE(AppendPlan(packed, &log_));
  ASSERT_TRUE(*log_.Read(&entry_));
  EXPECT_TRUE(IsPlan(entry_));
  EXPECT_EQ(entry_.payload, packed);
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeLogEvent(entry_, kRanks).status()));
}

TEST_F(LogCodec, WhatNeverFitsIsAnErrorAndWritesNothing) {
  Announcement announcement;
  announcement.spec = Spec("w", 1'000);
  const absl::Status status = AppendEvent({9, Announced{announcement}}, &log_).status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("does not fit the log"));
  EXPECT_FALSE(log_.HasNext());
}

TEST_F(LogCodec, WhatDoesNotFitNowIsToBeTriedAgain) {
  int written = 0;
  while (*AppendEvent({9, Leave{}}, &log_)) ++written;
  EXPECT_EQ(written, 32) << "this writer's half";
}

TEST_F(LogCodec, RefusesWordsThatMakeNoSense) {
  const auto decoded = [](LogEntry entry) { return DecodeLogEvent(entry, kRanks).status(); };
  LogEntry entry;
  for (const int kind : {0, 7, 11, 15}) {
    entry.word.kind = static_cast<uint8_t>(kind);
    EXPECT_TRUE(absl::IsInvalidArgument(decoded(entry))) << kind;
  }
  entry.word.kind = 10;  // a wish
  entry.word.field = 255;
  EXPECT_TRUE(decoded(entry).ok());
  entry.word.field = 256;
  EXPECT_TRUE(absl::IsInvalidArgument(decoded(entry)));
  entry.word.field = 0;
  entry.word.kind = 2;  // an announcement without its payload, though one is left from before
  wire::Announcement left;
  left.set_id(3);
  entry.payload = left.SerializeAsString();
  EXPECT_TRUE(absl::IsInvalidArgument(decoded(entry)));
  entry.has_payload = true;
  EXPECT_TRUE(decoded(entry).ok());
  entry.payload = "\xff\xff";
  EXPECT_TRUE(absl::IsInvalidArgument(decoded(entry)));
  entry.payload.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(decoded(entry))) << "no id and no spec";
  for (const int kind : {1, 3, 4, 5, 6, 8, 9, 10}) {
    entry.word.kind = static_cast<uint8_t>(kind);
    EXPECT_TRUE(absl::IsInvalidArgument(decoded(entry))) << kind << " with a payload";
  }
}

}  // namespace
}  // namespace rueda
