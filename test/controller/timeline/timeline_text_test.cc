// Records as text: every event to the letter.
#include "controller/timeline/timeline_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace rueda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using What = TimelineRecord::What;

constexpr Nanos kBegan = 1'000'000;

TimelineText Text(TimelineOwner owner = {}) {
  owner.host = "a \"host\"";
  return TimelineText(owner, kBegan, 0, [](int thread) { return absl::StrCat("t", thread); });
}

// What is written from now on.
template <typename Write>
std::string Written(TimelineText& text, Write write) {
  text.Clear();
  write();
  return std::string(text.text());
}

std::string Written(TimelineText& text, TimelineRecord record) {
  return Written(text, [&] { text.Write(record); });
}

TimelineRecord Record(What what, uint32_t track) {
  TimelineRecord record = {};
  record.what = what;
  record.track = track;
  record.name = "ALLREDUCE";
  return record;
}

TimelineRecord Named(What what, uint32_t track, const char* text, Nanos since = kBegan) {
  TimelineRecord record = Record(what, track);
  record.since = since;
  record.text = new std::string(text);
  return record;
}

TimelineRecord Tensor(Nanos submitted, Nanos ordered, Nanos started, Nanos done) {
  TimelineRecord record = Record(What::kTensor, 7);
  record.submitted = submitted;
  record.ordered = ordered;
  record.started = started;
  record.done = done;
  record.bytes = 4096;
  record.bucket = 3;
  return record;
}

TimelineRecord Bucket(Nanos started, Nanos done) {
  TimelineRecord record = Record(What::kBucket, kFirstLaneTrack + 2);
  record.tensors = 5;
  record.row = 7;
  record.bucket = 3;
  record.started = started;
  record.done = done;
  record.bytes = 8192;
  return record;
}

// An event as it stands in the file, behind the one before.
std::string Event(const char* ph, uint32_t track, const char* name, const std::string& rest) {
  return absl::StrCat(",\n{\"ph\":\"", ph, "\",\"pid\":0,\"tid\":", track, ",\"name\":\"", name,
                      "\",", rest, "}");
}
std::string Span(uint32_t track, const char* name, const char* ts, const char* dur,
                 const std::string& args = "") {
  return Event("X", track, name,
               absl::StrCat("\"ts\":", ts, ",\"dur\":", dur,
                            args.empty() ? "" : absl::StrCat(",\"args\":{", args, "}")));
}

TEST(TimelineText, BeginsWithWhoseItIs) {
  const TimelineOwner owner = {3, 4, "", 123, 2, 500'000, 1'234};
  TimelineText text = Text(owner);
  const std::vector<std::string> lines = absl::StrSplit(text.text(), '\n');
  EXPECT_THAT(
      lines,
      ElementsAre(
          "[",
          R"x({"ph":"M","pid":3,"tid":0,"name":"process_name","args":)x"
          R"x({"name":"rank 3 (a \"host\")"}},)x",
          R"({"ph":"M","pid":3,"tid":0,"name":"process_sort_index","args":{"sort_index":3}},)",
          R"({"ph":"M","pid":3,"tid":0,"name":"thread_name","args":{"name":"events"}},)",
          R"({"ph":"M","pid":3,"tid":0,"name":"thread_sort_index","args":{"sort_index":0}},)",
          R"({"ph":"i","pid":3,"tid":0,"name":"TIMELINE_BEGIN","ts":1500.000,"s":"p","args":)"
          R"({"rank":3,"size":4,"host":"a \"host\"","pid":123,"membership":2,"unix_time_us":0,)"
          R"("clock_offset_ns":500000,"clock_uncertainty_ns":1234}})"));
}

TEST(TimelineText, ATensorHasThreePhases) {
  TimelineText text = Text();
  text.Write(Named(What::kName, 7, "w"));
  text.Write(Named(What::kLane, kFirstLaneTrack + 2, "shm"));
  const std::string where = R"("bucket":3,"tensors":5,"first":"w","backend":"shm")";
  EXPECT_EQ(Written(text, Bucket(1'000'300, 1'002'000)),
            Span(20'002, "ALLREDUCE", "1000.300", "1.700", R"("bytes":8192,)" + where));
  EXPECT_EQ(Written(text, Tensor(1'000'001, 1'000'099, 1'000'300, 1'002'000)),
            Span(7, "NEGOTIATE_ALLREDUCE", "1000.001", "0.098") +
                Span(7, "QUEUE", "1000.099", "0.201") +
                Span(7, "ALLREDUCE", "1000.300", "1.700", R"("bytes":4096,)" + where));
}

TEST(TimelineText, ABucketWhoseDataCameWithThePlanHasNoBackend) {
  TimelineText text = Text();
  text.Write(Named(What::kLane, kFirstLaneTrack + 2, "hierarchical"));
  TimelineRecord bucket = Bucket(1'000'300, 1'002'000);
  bucket.in_plan = 1;
  EXPECT_THAT(Written(text, bucket), HasSubstr(R"("backend":"plan")"));
}

TEST(TimelineText, ATrackIsNamedAndItsPlaceGiven) {
  TimelineText text = Text();
  EXPECT_EQ(Written(text, Named(What::kName, 7, "w")),
            Event("M", 7, "thread_name", R"("args":{"name":"w"})") +
                Event("M", 7, "thread_sort_index", R"("args":{"sort_index":20007})"));
  EXPECT_EQ(Written(text, Named(What::kLane, kFirstLaneTrack + 2, "shm")),
            Event("M", 20'002, "thread_name", R"x("args":{"name":"lane 2 (shm)"})x") +
                Event("M", 20'002, "thread_sort_index", R"("args":{"sort_index":3})"));
}

TEST(TimelineText, ABucketSaysHowLongItsCopiesTook) {
  TimelineText text = Text();
  TimelineRecord bucket = Bucket(kBegan, kBegan);
  bucket.pack = 12;
  bucket.unpack = 0;
  EXPECT_THAT(Written(text, bucket),
              HasSubstr(R"("bytes":8192,"memcpy_in_ns":12,"memcpy_out_ns":0,"bucket":3)"));
}

TEST(TimelineText, AnOperationHasThePhasesThatItCameTo) {
  TimelineText text = Text();
  EXPECT_EQ(Written(text, Tensor(1'000'001, 0, 0, 1'000'005)),
            Span(7, "NEGOTIATE_ALLREDUCE", "1000.001", "0.004"));
  const std::string negotiated = Span(7, "NEGOTIATE_ALLREDUCE", "1000.001", "0.001");
  EXPECT_EQ(Written(text, Tensor(1'000'001, 1'000'002, 0, 1'000'005)),
            negotiated + Span(7, "QUEUE", "1000.002", "0.003"));
  EXPECT_EQ(Written(text, Tensor(1'000'001, 1'000'002, 1'000'003, 1'000'005)),
            negotiated + Span(7, "QUEUE", "1000.002", "0.001") +
                Span(7, "ALLREDUCE", "1000.003", "0.002", R"("bytes":4096)"))
      << "whose bucket nobody has told";
  TimelineRecord without = Tensor(1'000'001, 1'000'002, 1'000'003, 1'000'005);
  without.bucket = 0;
  EXPECT_EQ(Written(text, without), Written(text, Tensor(without.submitted, without.ordered,
                                                         without.started, without.done)));
}

TEST(TimelineText, WhatBeganBeforeTheFileIsLeftOut) {
  TimelineText text = Text();
  EXPECT_EQ(Written(text, Tensor(kBegan - 1, kBegan, kBegan, kBegan)), "");
  EXPECT_EQ(Written(text, Tensor(0, kBegan, kBegan, kBegan)), "");
  EXPECT_NE(Written(text, Tensor(kBegan, kBegan, kBegan, kBegan)), "");
  EXPECT_EQ(Written(text, Bucket(kBegan - 1, kBegan)), "");
  TimelineRecord span = Record(What::kSpan, 7);
  span.started = kBegan - 1;
  span.done = kBegan;
  EXPECT_EQ(Written(text, span), "");
  TimelineRecord instant = Named(What::kInstant, 0, "old");
  instant.started = kBegan - 1;
  instant.done = kBegan;
  EXPECT_EQ(Written(text, instant), "");
  EXPECT_EQ(Written(text, Named(What::kName, 7, "of the file before", kBegan - 1)), "");
  EXPECT_EQ(Written(text, Named(What::kLane, kFirstLaneTrack, "shm", kBegan - 1)), "");
}

TEST(TimelineText, ATensorWhoseNameWasLostIsLeftOut) {
  TimelineText text = Text();
  TimelineRecord tensor = Tensor(kBegan, kBegan, kBegan, kBegan);
  tensor.track = 0;
  EXPECT_EQ(Written(text, tensor), "");
}

TEST(TimelineText, AThreadIsNamedOnItsFirstSpan) {
  TimelineText text = Text();
  text.Write(Named(What::kName, 7, "w"));
  TimelineRecord span = Record(What::kSpan, kFirstThreadTrack + 42);
  span.name = "WAIT";
  span.row = 7;
  span.started = kBegan;
  span.done = kBegan + 2'000'000'001;
  EXPECT_EQ(Written(text, span),
            Event("M", 100'042, "thread_name", R"("args":{"name":"thread t42 42"})") +
                Event("M", 100'042, "thread_sort_index", R"("args":{"sort_index":20000})") +
                Span(100'042, "WAIT", "1000.000", "2000000.001", R"("tensor":"w")"));
  span.row = 0;
  EXPECT_EQ(Written(text, span), Span(100'042, "WAIT", "1000.000", "2000000.001"));
}

TEST(TimelineText, AnInstantIsATickOfItsTrackOrALineThroughAll) {
  TimelineText text = Text();
  TimelineRecord instant = Named(What::kInstant, 7, "no \"shape\"");
  instant.name = "ERROR";
  instant.started = instant.done = kBegan;
  EXPECT_EQ(Written(text, instant),
            Event("i", 7, "ERROR", R"("ts":1000.000,"s":"t","args":{"text":"no \"shape\""})"));
  instant = Named(What::kInstant, kEventsTrack, "");
  instant.name = "STALL";
  instant.started = instant.done = kBegan;
  EXPECT_EQ(Written(text, instant),
            Event("i", 0, "STALL", R"("ts":1000.000,"s":"p","args":{"text":""})"));
}

// Also over several takes of the text.
TEST(TimelineText, NoEventGoesOverTheEndOfAPageThatFitsIntoOne) {
  TimelineText text = Text();
  std::string file;
  for (int i = 0; i < 500; ++i) {
    TimelineRecord instant = Named(What::kInstant, 0, std::string(i * 97 % 4'300, 'x').c_str());
    instant.name = "STALL";
    instant.started = instant.done = kBegan;
    text.Write(instant);
    if (i % 7 != 0) continue;
    absl::StrAppend(&file, text.text());
    text.Clear();
  }
  text.End(kBegan);
  absl::StrAppend(&file, text.text());
  int longer = 0;
  for (size_t begin = file.find(",\n"); begin != std::string::npos;) {
    const size_t next = file.find(",\n", begin + 1);
    const size_t end = file.find_last_not_of(' ', std::min(next, file.size()) - 1) + 1;
    if (end - begin > kTimelinePageBytes) {
      ++longer;
    } else {
      EXPECT_EQ(begin / kTimelinePageBytes, (end - 1) / kTimelinePageBytes) << begin;
    }
    begin = next;
  }
  EXPECT_GT(longer, 0);
}

TEST(TimelineText, LossesAreToldWhenTheyHappenAndInAllAtTheEnd) {
  TimelineText text = Text();
  EXPECT_EQ(Written(text, [&] { text.Dropped(5, 1'002'000); }),
            Event("i", 0, "DROPPED", R"("ts":1002.000,"s":"p","args":{"records":5})"));
  text.Dropped(7, 1'003'000);
  EXPECT_EQ(Written(text, [&] { text.End(1'004'000); }),
            Event("i", 0, "TIMELINE_END",
                  R"("ts":1004.000,"s":"p","args":{"events":3,"dropped_records":12})") +
                "\n]\n");
}

TEST(TimelineText, QuotesWhatJsonCantTakeAsItIs) {
  for (const auto& [text, quoted] : std::vector<std::pair<std::string, std::string>>{
           {"", R"("")"},
           {"layer.0/weight", R"("layer.0/weight")"},
           {"a\"b\\c", R"("a\"b\\c")"},
           {std::string("\0\n\x1f\x7f", 4), "\"\\u0000\\u000a\\u001f\x7f\""},
           {"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80", "\"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80\""},
           {"\x80", R"("\ufffd")"},
           {"\xc3", R"("\ufffd")"},
           {"\xc3(", R"("\ufffd(")"},
           {"\xc0\xaf", R"("\ufffd\ufffd")"},
           {"\xed\xa0\x80x", R"("\ufffd\ufffd\ufffdx")"},
           {"\xf4\x90\x80\x80", R"("\ufffd\ufffd\ufffd\ufffd")"},
           {"\xe0\x80\x80", R"("\ufffd\ufffd\ufffd")"},
           {"\xf8", R"("\ufffd")"}}) {
    EXPECT_EQ(JsonQuoted(text), quoted);
  }
}

}  // namespace
}  // namespace rueda
