// Timelines in files: valid whenever they are stopped, as far as they got when the process was
// killed, and honest about what they lost.
#include "controller/timeline/timeline.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "test/support/check_timeline.h"

namespace rueda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TimelineComplaint;
using What = TimelineRecord::What;

class TimelineFile : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(path_); }
  std::string Content() const {
    std::ifstream file(path_);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void ExpectValid(const std::vector<std::string>& options = {}) const {
    EXPECT_EQ(TimelineComplaint(options, {path_}), "");
  }
  const std::string path_ = absl::StrCat(::testing::TempDir(), "/timeline-", getpid(), ".json");
};

// One bucket of `tensors` tensors on tracks 1, 2, ..., as the engine tells it.
bool AppendBucket(Timeline& timeline, uint32_t number, uint32_t tensors,
                  Nanos now = MonotonicNow()) {
  return timeline.Append(1 + tensors, [&](uint32_t i, TimelineRecord& record) {
    record.what = i == 0 ? What::kBucket : What::kTensor;
    record.track = i == 0 ? kFirstLaneTrack : i;
    record.row = 1;
    record.tensors = tensors;
    record.bucket = number;
    record.name = "ALLREDUCE";
    record.submitted = i == 0 ? 0 : now;
    record.ordered = i == 0 ? 0 : now;
    record.started = now;
    record.done = now;
    record.bytes = i == 0 ? tensors : 1;
  });
}

void NameTracks(Timeline& timeline, uint32_t tensors) {
  timeline.Name(What::kLane, kFirstLaneTrack, "shm", timeline.began());
  for (uint32_t i = 1; i <= tensors; ++i) {
    timeline.Name(What::kName, i, absl::StrCat("t", i), timeline.began());
  }
}

TEST_F(TimelineFile, HoldsWhatWasAppendedAndIsClosed) {
  Timeline timeline;
  EXPECT_FALSE(timeline.on());
  ASSERT_TRUE(timeline.Start(path_).ok());
  EXPECT_TRUE(timeline.on());
  NameTracks(timeline, 3);
  for (uint32_t i = 1; i <= 10; ++i) AppendBucket(timeline, i, 3);
  const Nanos now = MonotonicNow();
  timeline.Span("WAIT", Timeline::ThreadTrack(), 2, now, now + 5);
  timeline.Instant("STALL", kEventsTrack, "nobody came", now, now);
  EXPECT_TRUE(timeline.Stop().ok());
  EXPECT_FALSE(timeline.on());
  ExpectValid({"--tensor=t1=ALLREDUCE:10", "--tensor=t3=ALLREDUCE:10", "--span=WAIT",
               "--instant=STALL=nobody came"});
}

TEST_F(TimelineFile, NamesAreWhatTheyWere) {
  const std::string name = "a\"b\\c\n\t\x01'\xc3\xa4";
  Timeline timeline;
  ASSERT_TRUE(timeline.Start(path_).ok());
  timeline.Name(What::kName, 1, name, timeline.began());
  timeline.Name(What::kLane, kFirstLaneTrack, "shm", timeline.began());
  AppendBucket(timeline, 1, 1);
  EXPECT_TRUE(timeline.Stop().ok());
  ExpectValid({"--tensor=" + name + "=ALLREDUCE:1"});
}

TEST_F(TimelineFile, StartsAndStopsAsOftenAsOneLikes) {
  Timeline timeline;
  for (uint32_t round = 1; round <= 5; ++round) {
    ASSERT_TRUE(timeline.Start(path_).ok());
    NameTracks(timeline, 6 - round);  // the files get shorter
    AppendBucket(timeline, 1, 6 - round);
    EXPECT_TRUE(timeline.Stop().ok());
    ExpectValid({absl::StrCat("--tensor=t", 6 - round, "=ALLREDUCE:1"),
                 absl::StrCat("--tensor=t", 7 - round, "=ALLREDUCE:0")});
  }
}

TEST_F(TimelineFile, AMisplacedStartOrStopSaysSo) {
  Timeline timeline;
  EXPECT_EQ(timeline.Stop(), absl::FailedPreconditionError("the timeline is off"));
  ASSERT_TRUE(timeline.Start(path_).ok());
  EXPECT_EQ(timeline.Start(path_ + "x"),
            absl::FailedPreconditionError("the timeline is on already: " + path_));
  EXPECT_FALSE(std::filesystem::exists(path_ + "x"));
  EXPECT_TRUE(timeline.Stop().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(timeline.Stop()));
  ExpectValid();
}

TEST_F(TimelineFile, AnothersFileIsLeftAlone) {
  Timeline timeline, other;
  ASSERT_TRUE(timeline.Start(path_).ok());
  EXPECT_EQ(other.Start(path_),
            absl::FailedPreconditionError("another timeline is being written to " + path_));
  EXPECT_TRUE(timeline.Stop().ok());
  ExpectValid();
  EXPECT_TRUE(other.Start(path_).ok());
}

TEST_F(TimelineFile, APathThatCantBeWrittenIsNamed) {
  Timeline timeline;
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);  // which nobody reads
  EXPECT_THAT(std::string(timeline.Start(path_).message()), HasSubstr("opening the timeline"));
  ASSERT_EQ(unlink(path_.c_str()), 0);
  EXPECT_THAT(std::string(timeline.Start("/nowhere/t.json").message()),
              AllOf(HasSubstr("/nowhere/t.json"), HasSubstr("No such file or directory")));
  EXPECT_THAT(std::string(timeline.Start("/dev/full").message()),
              AllOf(HasSubstr("/dev/full"), HasSubstr("No space left on device")));
  EXPECT_FALSE(timeline.on());
  EXPECT_TRUE(timeline.Start(path_).ok()) << "all the same";
}

TEST_F(TimelineFile, IsClosedWithItsTimeline) {
  {
    Timeline timeline;
    ASSERT_TRUE(timeline.Start(path_).ok());
    NameTracks(timeline, 1);
    AppendBucket(timeline, 1, 1);
  }
  ExpectValid({"--tensor=t1=ALLREDUCE:1"});
}

// Whether it naps or sleeps by then.
TEST_F(TimelineFile, WhatIsAppendedGetsThereWithoutAStop) {
  Timeline timeline;
  ASSERT_TRUE(timeline.Start(path_).ok());
  for (int i = 0; i < 5; ++i) {
    const std::string text = absl::StrCat("event ", i);
    const Nanos now = MonotonicNow();
    timeline.Instant("STALL", kEventsTrack, text, now, now);
    while (Content().find(text) == std::string::npos) usleep(1'000);
    if (i == 2) usleep(300'000);  // time itself is under test: it goes to sleep
  }
}

// Fewer than the ring holds, so that nothing may be lost.
TEST_F(TimelineFile, IsWholeWheneverItIsStopped) {
  constexpr uint32_t kTensors = 5, kAhead = 100;
  Timeline timeline;
  std::atomic<bool> stopping{false};
  std::atomic<uint32_t> appended{0}, allowed{0};
  std::vector<std::thread> threads;
  threads.emplace_back([&] {  // the engine's part
    Nanos file = kForever;
    while (!stopping) {
      const Nanos now = MonotonicNow();
      const Nanos began = timeline.began();
      if (began == kForever || appended >= allowed) {
        std::this_thread::yield();
        continue;
      }
      if (began != file) NameTracks(timeline, kTensors);
      file = began;
      AppendBucket(timeline, ++appended, kTensors, now);
    }
  });
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (uint32_t last = 0; !stopping;) {
        const Nanos begin = MonotonicNow();
        const uint32_t now = appended;
        if (now != last && timeline.on()) {
          timeline.Span("WAIT", Timeline::ThreadTrack(), 0, begin, MonotonicNow());
        }
        last = now;
      }
    });
  }
  for (uint32_t round = 0; round < 12; ++round) {
    const uint32_t until = appended + 1 + round * round * 3;
    allowed = until + kAhead;
    ASSERT_TRUE(timeline.Start(path_).ok());
    while (appended < until) std::this_thread::yield();
    ASSERT_TRUE(timeline.Stop().ok());
    ExpectValid({"--span=ALLREDUCE"});
  }
  stopping = true;
  for (std::thread& thread : threads) thread.join();
}

// A pipe that nobody reads holds the writer up, and so fills the ring.
TEST_F(TimelineFile, WhatFindsNoRoomIsCounted) {
  const std::string pipe = path_ + ".pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const UniqueFd reader(open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  Timeline timeline;
  ASSERT_TRUE(timeline.Start(pipe).ok());
  NameTracks(timeline, 1);
  uint64_t refused = 0, taken = 0;
  while (refused < 100)
    ++(AppendBucket(timeline, static_cast<uint32_t>(taken + 1), 1) ? taken : refused);
  EXPECT_GE(taken, Timeline::kRecordsMax / 2 - 1);
  ASSERT_EQ(fcntl(reader.get(), F_SETFL, 0), 0);
  std::thread copier([&] {
    std::ofstream out(path_, std::ios::binary);
    char buffer[65536];
    for (ssize_t n; (n = read(reader.get(), buffer, sizeof buffer)) > 0;) out.write(buffer, n);
  });
  EXPECT_TRUE(timeline.Stop().ok());
  copier.join();
  unlink(pipe.c_str());
  ExpectValid({"--dropped", absl::StrCat("--tensor=t1=ALLREDUCE:", taken)});
  // A bucket of one tensor is two records; the refused took none of them, or only the first.
  EXPECT_THAT(Content(), Not(HasSubstr("\"dropped_records\":0}")));
  EXPECT_THAT(Content(), HasSubstr(absl::StrCat("\"dropped_records\":", 2 * refused, "}}\n]")));
}

TEST_F(TimelineFile, OfAKilledProcessIsValidAsFarAsItGot) {
  const pid_t child = fork();
  if (child == 0) {
    Timeline timeline;
    if (!timeline.Start(path_).ok()) _exit(1);
    NameTracks(timeline, 20);
    for (uint32_t number = 1;; ++number) AppendBucket(timeline, number, 20);
  }
  ASSERT_GT(child, 0);
  std::error_code none;
  while (!std::filesystem::exists(path_) || std::filesystem::file_size(path_, none) < 300'000) {
    ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0);
    usleep(100);
  }
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  ExpectValid({"--cut", "--dropped", "--tensor=t0=ALLREDUCE:0"});
  EXPECT_THAT(Content(), HasSubstr("{\"name\":\"t20\"}"));
}

TEST(TimelinePath, HasTheRankBeforeTheEnding) {
  EXPECT_EQ(TimelinePath("/a/t.json", "", 0), "/a/t.json");
  EXPECT_EQ(TimelinePath("/a/t.json", "", 3), "/a/t.3.json");
  EXPECT_EQ(TimelinePath("t", "", 0), "t");
  EXPECT_EQ(TimelinePath("/a.json/t", "", 12), "/a.json/t.12");
  EXPECT_EQ(TimelinePath("t.json", "membership2", 0), "t.membership2.json");
  EXPECT_EQ(TimelinePath("t.json", "membership2", 1), "t.membership2.1.json");
}

}  // namespace
}  // namespace rueda
