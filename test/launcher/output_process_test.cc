// What the ranks print arrives whole, marked, and byte by byte as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "test/launcher/job.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

const std::string kHelper = LAUNCHER_HELPER;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

class Directory {
 public:
  Directory() : path_(testing::TempDir() + "launcher-output-" + std::to_string(getpid())) {
    std::filesystem::remove_all(path_);
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

// The lines that begin with `letter`.
std::string LinesWith(char letter, const std::string& text) {
  std::string lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    if (text[begin] == letter) lines.append(text, begin, end - begin);
    begin = end;
  }
  return lines;
}

TEST(Output, IsMarkedWithTheRankAndKeepsItsStream) {
  Job job({"-np", "2", "sh", "-c", "echo out$RANK; echo; echo err$RANK >&2; printf last$RANK"});
  EXPECT_EQ(job.Wait(), 0);
  for (const int rank : {0, 1}) {
    const std::string number = std::to_string(rank);
    EXPECT_EQ(LinesOf(rank, job.out()), "out" + number + "\n\nlast" + number + "\n");
    EXPECT_EQ(LinesOf(rank, job.err()), "err" + number + "\n");
  }
}

TEST(Output, IsShownBeforeItsLineEnds) {
  for (const char* prefix : {"rank", "none"}) {
    Job job({"--prefix", prefix, "-np", "2", "sh", "-c",
             "test $RANK = 1 || printf 'Continue? '; exec sleep 1000"});
    job.AwaitText(std::string(prefix) == "rank" ? "[0] Continue? " : "Continue? ");
    job.Signal(SIGTERM);
    EXPECT_EQ(job.Wait(), 143);
  }
}

TEST(Output, OfTwoThatAreInTheMidstOfALineIsTornByTheLine) {
  Job job({"-np", "2", "sh", "-c", "printf 'a%s' $RANK; exec sleep 1000"});
  job.AwaitText("a0");
  job.AwaitText("a1");
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(), 143);
  EXPECT_THAT(job.out(), HasSubstr("[0] a0"));
  EXPECT_THAT(job.out(), HasSubstr("[1] a1"));
  EXPECT_THAT(job.out(), HasSubstr("\n["));
}

TEST(Output, ComesWhenTheLineIsThere) {
  Job job({"-np", "1", "sh", "-c", "echo now; exec sleep 1000"});
  job.Await("[0] now");
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(), 143);
}

TEST(Output, KeepsALineOfAMebibyteWhole) {
  Job job({"-np", "2", "sh", "-c", "head -c 1048576 /dev/zero | tr '\\0' x; echo"});
  EXPECT_EQ(job.Wait(), 0);
  const std::string line = std::string(1 << 20, 'x') + "\n";
  EXPECT_TRUE(LinesOf(0, job.out()) == line);
  EXPECT_TRUE(LinesOf(1, job.out()) == line);
}

// Both streams into one pipe, several megabytes of noise from four ranks at once, against the same
// noise written to files.
TEST(Output, IsNeitherTornNorChanged) {
  constexpr char kBytes[] = "3000000";
  Directory directory;
  Job files({"-np", "4", "--output-dir", directory.path(), kHelper, "lines", "7", kBytes});
  ASSERT_EQ(files.Wait(), 0);
  Job::Setup setup;
  setup.one_output = true;
  Job job({"-np", "4", kHelper, "lines", "7", kBytes}, setup);
  ASSERT_EQ(job.Wait(), 0);
  size_t bytes = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const std::string file = directory.path() + "/rank." + std::to_string(rank);
    const std::string lines = LinesOf(rank, job.out());
    bytes += lines.size() + 4 * static_cast<size_t>(std::count(lines.begin(), lines.end(), '\n'));
    EXPECT_GT(lines.size(), 3'000'000u);
    EXPECT_TRUE(LinesWith('o', lines) == ReadFile(file + ".out")) << "rank " << rank;
    EXPECT_TRUE(LinesWith('e', lines) == ReadFile(file + ".err") + "\n") << "rank " << rank;
  }
  EXPECT_EQ(bytes, job.out().size()) << "nothing else was printed";
}

TEST(Output, WaitsForASlowReader) {
  Job::Setup setup;
  setup.reads_output = false;
  Job job({"-np", "2", "sh", "-c", "yes a line of text | head -c 3000000; echo >&2"}, setup);
  job.AwaitFullPipe();
  EXPECT_FALSE(job.Ends(0));
  job.Resume();
  EXPECT_EQ(job.Wait(), 0);
  for (const int rank : {0, 1}) EXPECT_EQ(LinesOf(rank, job.out()).size(), 3'000'000u);
}

TEST(Output, ThatNobodyReadsDoesNotKeepTheJobFromEnding) {
  Job::Setup setup;
  setup.reads_output = false;
  Job job({"-np", "2", "sh", "-c", "yes a line of text"}, setup);
  job.AwaitFullPipe();
  const std::vector<pid_t> all = job.Processes();
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(Bound(3 * kSecond)), 143);
  EXPECT_TRUE(AllEnd(all, 0));
  EXPECT_TRUE(job.Processes().empty());
}

TEST(Output, ThatNobodyReadsIsKeptWhenARankFails) {
  Job::Setup setup;
  setup.reads_output = false;
  Job job({"-np", "2", "sh", "-c", "echo first $$; exec yes"}, setup);
  job.AwaitFullPipe();
  std::vector<pid_t> others;
  const Nanos deadline = MonotonicNow() + kHang;
  while (others.size() < 2 && MonotonicNow() < deadline) {  // one in the middle of an exec hides
    others = job.Processes();
    std::erase_if(others, [&](pid_t pid) { return pid == job.pid() || pid == job.supervisor(); });
  }
  ASSERT_EQ(others.size(), 2u);
  kill(others[0], SIGKILL);
  EXPECT_TRUE(AllEnd(others, Bound(4 * kSecond)));
  EXPECT_FALSE(job.Ends(0)) << "it has still something to say";
  job.Resume();
  EXPECT_EQ(job.Wait(), 137);
  EXPECT_NE(job.out().find("first"), std::string::npos);
  EXPECT_NE(job.err().find("<- first failure"), std::string::npos) << job.err();
}

// As behind `| head -1`.
TEST(Output, WithoutAReaderEndsTheJob) {
  Job chatty({"-np", "2", "sh", "-c", "while echo line; do sleep 0.01; done"});
  chatty.Await("line");
  const std::vector<pid_t> processes = chatty.Processes();
  chatty.CloseOutput();
  EXPECT_EQ(chatty.Wait(), 141);  // 128 + SIGPIPE
  EXPECT_TRUE(AllEnd(processes, kHang));
  const std::string line = "ruedarun: nobody reads the ranks' output any more; ending the job\n";
  EXPECT_EQ(chatty.err().find(line), chatty.err().rfind(line)) << chatty.err();
  EXPECT_THAT(chatty.err(), HasSubstr(line));
  EXPECT_THAT(chatty.err(), HasSubstr("the job ended after SIGPIPE; exit status 141"));
}

// The ranks may have something else to do than to print.
TEST(Output, WithoutAReaderIsNoMatterToASilentJob) {
  Job job({"-np", "2", "sh", "-c", "echo ready >&2; read line; echo done >&2"});
  job.AwaitError("ready");
  job.CloseOutput();
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("done"));
}

TEST(Output, ThatCanNotBeWrittenIsReportedOnce) {
  Job::Setup setup;
  setup.output_path = "/dev/full";
  Job job({"-np", "2", "sh", "-c", "head -c 3000000 /dev/zero; echo; echo done >&2"}, setup);
  EXPECT_EQ(job.Wait(), 0);
  EXPECT_EQ(LinesOf(0, job.err()), "done\n");
  const std::string report = "No space left on device";
  EXPECT_EQ(job.err().find(report), job.err().rfind(report));
  EXPECT_NE(job.err().find(report), std::string::npos) << job.err();
}

TEST(Output, WithoutPrefixIsTheRanksOwn) {
  Job one({"-np", "1", "--prefix", "none", "sh", "-c", "printf 'a\\n\\000\\377b'"});
  EXPECT_EQ(one.Wait(), 0);
  EXPECT_EQ(one.out(), std::string("a\n\0\377b", 5));
  Job two({"-np", "2", "--prefix", "none", "printf", "x"});
  EXPECT_EQ(two.Wait(), 0);
  EXPECT_EQ(two.out(), "x\nx") << "two ranks' lines are two lines";
}

TEST(OutputDirectory, HoldsEachRanksBytes) {
  Directory directory;
  const std::string path = directory.path() + "/deep/er";
  Job job({"-np", "2", "--output-dir", path, "sh", "-c",
           "printf \"$RUEDA_RECORDER_DIR $RANK\"; echo err$RANK >&2; exit $RANK"});
  EXPECT_EQ(job.Wait(), 1);
  EXPECT_EQ(job.out(), "");
  EXPECT_EQ(job.err().find("err"), std::string::npos) << "only its own messages";
  EXPECT_NE(job.err().find("<- first failure"), std::string::npos);
  for (const int rank : {0, 1}) {
    const std::string number = std::to_string(rank);
    EXPECT_EQ(ReadFile(path + "/rank." + number + ".out"), path + " " + number);
    EXPECT_EQ(ReadFile(path + "/rank." + number + ".err"), "err" + number + "\n");
  }
}

TEST(OutputDirectory, ThatCanNotBeMadeStopsTheJob) {
  Job job({"-np", "2", "--output-dir", "/dev/null/x", "true"});
  EXPECT_EQ(job.Wait(), 1);
  EXPECT_EQ(job.err(), "ruedarun: making /dev/null/x: Not a directory\n");
}

}  // namespace
}  // namespace rueda
