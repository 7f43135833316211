// The flight recorder: rings of many threads, read while they are written.
#include "core/trace/recorder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/log.h"
#include "core/base/unique_fd.h"
#include "core/trace/old_dumps.h"

namespace rueda::trace {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = pread(fd, buffer, sizeof buffer, static_cast<off_t>(text.size()))) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

std::string Dumped() {
  const UniqueFd file(memfd_create("dump", MFD_CLOEXEC));
  Dump(file.get());
  return ReadAll(file.get());
}

std::string ContentOf(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

int Thread() {
  return static_cast<int>(syscall(SYS_gettid));
}

// The lines of one thread's ring in a dump, the heading first.
std::vector<std::string> RingOf(int thread, const std::string& dump) {
  std::vector<std::string> ring;
  bool inside = false;
  for (const absl::string_view line : absl::StrSplit(dump, '\n', absl::SkipEmpty())) {
    if (line[0] == '#') inside = absl::StartsWith(line, absl::StrCat("# thread ", thread, ","));
    if (inside) ring.emplace_back(line);
  }
  return ring;
}

// Runs `body` on a thread of its own and returns that thread's ring as it is afterwards.
template <typename Body>
std::vector<std::string> RecordedBy(Body body) {
  std::vector<std::string> ring;
  std::thread([&] {
    body();
    ring = RingOf(Thread(), Dumped());
  }).join();
  return ring;
}

void ExpectWellFormed(const std::string& dump) {
  static const std::regex kLine(
      "# rueda flight recorder, pid [0-9]+; times are CLOCK_MONOTONIC in ns, now [0-9]+|"
      "# thread [0-9]+, events so far [0-9]+|"
      "[0-9]+ rank -?[0-9]+ [a-z_]+ id [0-9]+ (a -?[0-9]+ b -?[0-9]+|name [ -~]{0,16})");
  int headings = 0;
  for (const absl::string_view line : absl::StrSplit(dump, '\n', absl::SkipEmpty())) {
    ASSERT_TRUE(std::regex_match(line.begin(), line.end(), kLine)) << line;
    headings += absl::StartsWith(line, "# rueda") ? 1 : 0;
  }
  EXPECT_EQ(headings, 1);
}

TEST(Recorder, WritesWhatWasRecorded) {
  const std::vector<std::string> ring = RecordedBy([] {
    SetLogRank(3);
    Record(Event::kSubmit, 7, 11, static_cast<uint64_t>(-2));
    Record(Event::kWake);
  });
  ASSERT_GE(ring.size(), 3u);
  EXPECT_THAT(ring[ring.size() - 2], ::testing::EndsWith(" rank 3 submit id 7 a 11 b -2"));
  EXPECT_THAT(ring.back(), ::testing::EndsWith(" rank 3 wake id 0 a 0 b 0"));
}

TEST(Recorder, AFileThatMayNotGrowRaisesNoSignal) {
  EXPECT_EXIT(
      {
        rlimit small;
        small.rlim_cur = small.rlim_max = 10;
        setrlimit(RLIMIT_FSIZE, &small);
        const std::string dump = Dumped();
        _exit(static_cast<int>(dump.size()));
      },
      ::testing::ExitedWithCode(10), "");
}

// Jobs that fail every day leave dumps where nobody looks.
TEST(OldDumps, DoNotPileUpInTheTemporaryDirectory) {
  std::string directory = ::testing::TempDir() + "dumps-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const auto leave = [&](const std::string& name, int hours_ago) {
    const std::string path = directory + "/" + name;
    std::ofstream(path) << "old";
    const timespec then = {time(nullptr) - hours_ago * 3'600 - hours_ago, 0};
    const timespec times[] = {then, then};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  };
  for (int hours = 1; hours <= 30; ++hours) leave(DumpName(1'000 + hours), hours);
  for (int pid = 1; pid <= 40; ++pid) leave(DumpName(pid), 0);
  leave("rueda-recorder.mine.txt", 100);
  leave("notes.txt", 100);

  const std::string before(absl::NullSafeStringView(getenv("TMPDIR")));
  setenv("TMPDIR", directory.c_str(), 1);
  SetDirectory("");
  EXPECT_TRUE(DumpToFile().ok());
  before.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", before.c_str(), 1);

  const auto left = [&](const std::string& name) {
    return access((directory + "/" + name).c_str(), F_OK) == 0;
  };
  for (int hours = 1; hours <= 30; ++hours) {
    EXPECT_EQ(left(DumpName(1'000 + hours)), hours <= 16) << hours;
  }
  for (int pid = 1; pid <= 40; ++pid) EXPECT_TRUE(left(DumpName(pid))) << "of this failure";
  for (const std::string& name :
       {DumpName(getpid()), std::string("rueda-recorder.mine.txt"), std::string("notes.txt")}) {
    EXPECT_TRUE(left(name)) << name;
  }
  std::filesystem::remove_all(directory);
}

TEST(OldDumps, AreLeftInADirectoryThatWasAskedFor) {
  std::string directory = ::testing::TempDir() + "dumps-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  for (int pid = 1; pid <= 30; ++pid) {
    const std::string path = directory + "/" + DumpName(pid);
    std::ofstream(path) << "old";
    const timespec times[2] = {{1'000, 0}, {1'000, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  SetDirectory(directory);
  EXPECT_TRUE(DumpToFile().ok());
  for (int pid = 1; pid <= 30; ++pid) {
    EXPECT_EQ(access((directory + "/" + DumpName(pid)).c_str(), F_OK), 0);
  }
  SetDirectory("");
  std::filesystem::remove_all(directory);
}

TEST(Recorder, MarksEveryRankThatThereCanBe) {
  for (const int rank : {-1, 0, 32'768, 65'535}) {
    const std::vector<std::string> ring = RecordedBy([&] {
      SetLogRank(rank);
      Record(Event::kInit);
    });
    EXPECT_THAT(ring.back(), HasSubstr(absl::StrCat(" rank ", rank, " init ")));
  }
}

TEST(Recorder, KeepsAThreadsLast1024EventsOldestFirst) {
  constexpr int kRecorded = 3 * kEventsPerThread + 476;
  uint64_t before = 0;
  const std::vector<std::string> ring = RecordedBy([&] {
    Record(Event::kInit);
    const std::string heading = RingOf(Thread(), Dumped()).front();
    before = std::stoull(heading.substr(heading.rfind(' ')));
    for (int i = 0; i < kRecorded; ++i) Record(Event::kOrder, static_cast<uint32_t>(i));
  });
  ASSERT_EQ(ring.size(), size_t{kEventsPerThread} + 1);
  EXPECT_THAT(ring.front(), HasSubstr(absl::StrCat("events so far ", before + kRecorded)));
  for (int i = 0; i < kEventsPerThread; ++i) {
    const std::string words = absl::StrCat(" order id ", kRecorded - kEventsPerThread + i, " a 0");
    ASSERT_THAT(ring[static_cast<size_t>(i) + 1], HasSubstr(words));
  }
}

TEST(Recorder, TimesOfAThreadDoNotGoBack) {
  const std::vector<std::string> ring = RecordedBy([] {
    for (int i = 0; i < 100; ++i) Record(Event::kSleep);
  });
  int64_t last = 0;
  for (size_t i = 1; i < ring.size(); ++i) {
    const int64_t time = std::stoll(ring[i]);
    ASSERT_GE(time, last);
    last = time;
  }
}

TEST(Recorder, NamesAreCutAndMadePrintable) {
  const std::vector<std::string> ring = RecordedBy([] {
    RecordName(1, "w");
    RecordName(2, "0123456789abcdef");
    RecordName(3, "0123456789abcdefg");
    RecordName(4, "a\n\x7f\xc3\xa4z");
    RecordName(5, "");
    RecordName(6, absl::string_view());
  });
  ASSERT_GE(ring.size(), 6u);
  const std::string* line = &ring[ring.size() - 6];
  EXPECT_THAT(line[0], ::testing::EndsWith(" define id 1 name w"));
  EXPECT_THAT(line[1], ::testing::EndsWith(" define id 2 name 0123456789abcdef"));
  EXPECT_THAT(line[2], ::testing::EndsWith(" define id 3 name 0123456789abcdef"));
  EXPECT_THAT(line[3], ::testing::EndsWith(" define id 4 name a????z"));
  EXPECT_THAT(line[4], ::testing::EndsWith(" define id 5 name "));
  EXPECT_THAT(line[5], ::testing::EndsWith(" define id 6 name "));
}

TEST(Recorder, AThreadsEventsOutliveIt) {
  int thread = 0;
  std::thread([&] {
    thread = Thread();
    Record(Event::kFail, 4'711);
  }).join();
  EXPECT_THAT(RingOf(thread, Dumped()).back(), HasSubstr(" fail id 4711 "));
}

TEST(Recorder, RingsAreHandedToNewThreads) {
  const auto rings = [] {
    const std::vector<std::string> lines = absl::StrSplit(Dumped(), '\n');
    return std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
      return absl::StartsWith(line, "# thread");
    });
  };
  std::thread([] { Record(Event::kInit); }).join();
  const auto before = rings();
  for (int i = 0; i < 50; ++i) std::thread([] { Record(Event::kInit); }).join();
  EXPECT_EQ(rings(), before);
}

TEST(Recorder, CanBeReadWhileOthersRecord) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (int i = 0; i < 3; ++i) {
    writers.emplace_back([&] {
      for (uint32_t n = 0; !stop.load(std::memory_order_relaxed); ++n) {
        Record(Event::kSubmit, n, n, n);
        RecordName(n, "some tensor's name");
      }
    });
  }
  for (int i = 0; i < 5; ++i) ExpectWellFormed(Dumped());
  stop = true;
  for (std::thread& writer : writers) writer.join();
}

class DumpFile : public ::testing::Test {
 protected:
  DumpFile() {
    char name[] = "/tmp/recorder_test.XXXXXX";
    directory_ = mkdtemp(name);
    SetDirectory(directory_);
    path_ = absl::StrCat(directory_, "/rueda-recorder.", getpid(), ".txt");
  }
  ~DumpFile() override {
    unlink(path_.c_str());
    rmdir(directory_.c_str());
    SetDirectory("");
    signal(SIGUSR2, SIG_DFL);
  }
  std::string directory_;
  std::string path_;
};

TEST_F(DumpFile, HoldsADumpForItsOwnerOnly) {
  Record(Event::kShutdown, 42);
  const absl::StatusOr<std::string> path = DumpToFile();
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(*path, path_);
  const std::string content = ContentOf(path_);
  EXPECT_THAT(content, StartsWith(absl::StrCat("# rueda flight recorder, pid ", getpid(), ";")));
  EXPECT_THAT(content, HasSubstr(" shutdown id 42 "));
  ExpectWellFormed(content);
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(DumpFile, ReplacesTheOneBefore) {
  std::ofstream(path_) << std::string(1 << 20, 'x');
  ASSERT_TRUE(DumpToFile().ok());
  ExpectWellFormed(ContentOf(path_));
}

TEST_F(DumpFile, IsNotWrittenThroughALink) {
  const std::string victim = absl::StrCat(directory_, "/victim");
  std::ofstream(victim) << "mine";
  ASSERT_EQ(symlink(victim.c_str(), path_.c_str()), 0);
  EXPECT_FALSE(DumpToFile().ok());
  EXPECT_EQ(ContentOf(victim), "mine");
  unlink(victim.c_str());
}

// As /tmp is everybody's: another file of this user's, under a second name.
TEST_F(DumpFile, IsNotWrittenThroughAHardLink) {
  const std::string victim = absl::StrCat(directory_, "/victim");
  std::ofstream(victim) << "mine";
  ASSERT_EQ(link(victim.c_str(), path_.c_str()), 0);
  EXPECT_FALSE(DumpToFile().ok());
  EXPECT_EQ(ContentOf(victim), "mine");
  unlink(victim.c_str());
}

TEST_F(DumpFile, IsNoPipeThatSomebodyReads) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_FALSE(DumpToFile().ok());  // nobody does; and it does not wait for one
  const UniqueFd reader(open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  EXPECT_FALSE(DumpToFile().ok());
  char byte;
  EXPECT_EQ(read(reader.get(), &byte, 1), 0);
}

TEST_F(DumpFile, ADirectoryThatIsNotThereIsAnErrorThatNamesIt) {
  SetDirectory("/nowhere/at/all");
  const absl::StatusOr<std::string> path = DumpToFile();
  EXPECT_TRUE(absl::IsNotFound(path.status())) << path.status();
  EXPECT_THAT(std::string(path.status().message()), HasSubstr("/nowhere/at/all/rueda-recorder."));
}

// Ranks that are threads fail together, and each writes the file.
TEST_F(DumpFile, OfSeveralThreadsAtOnceIsWhole) {
  for (uint32_t i = 0; i < 600; ++i) Record(Event::kSubmit, i);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&] {
      SetDirectory(directory_);
      for (int i = 0; i < 50; ++i) {
        Record(Event::kFail);
        EXPECT_TRUE(DumpToFile().ok());
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  ExpectWellFormed(ContentOf(path_));
}

TEST_F(DumpFile, IsWrittenOnSigusr2) {
  InstallSignalHandler();
  InstallSignalHandler();
  Record(Event::kReject, 99);
  errno = 7;
  ASSERT_EQ(raise(SIGUSR2), 0);
  EXPECT_EQ(errno, 7);
  EXPECT_THAT(ContentOf(path_), HasSubstr(" reject id 99 "));
}

TEST_F(DumpFile, TheProgramsOwnHandlerStays) {
  static std::atomic<int> calls{0};
  signal(SIGUSR2, [](int) { ++calls; });
  InstallSignalHandler();
  raise(SIGUSR2);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(access(path_.c_str(), F_OK), -1);
}

}  // namespace
}  // namespace rueda::trace
