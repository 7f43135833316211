// Jobs under the real ruedarun that are killed at a random moment of an allreduce: a rank by kill
// -9, ruedarun by kill -9 or Ctrl-C. Every other rank is told what was lost, ruedarun says who was
// the first, and nothing is left: no process, no name in /dev/shm, no socket, no file but the dumps
// of the flight recorder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "test/launcher/job.h"

namespace rueda {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr int kKillTrials = 50;
constexpr int kEndTrials = 10;  // of each other kind
constexpr int kNobody = -1;

// More in test/soak/run.sh.
int ResetTrials() {
  const char* const asked = getenv("SOAK_RESET_KILLS");
  return asked == nullptr ? 4 : atoi(asked);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

std::vector<std::string> FilesIn(const std::string& directory) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    files.push_back(entry.path().filename().string());
  }
  return files;
}

// The named unix sockets of the system, by their number.
std::vector<std::pair<std::string, std::string>> NamedSockets() {
  std::vector<std::pair<std::string, std::string>> sockets;
  std::istringstream lines(ReadFile("/proc/net/unix"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
    if (words.size() == 8) sockets.emplace_back(words[6], words[7]);
  }
  return sockets;
}

// A name that appears between these two is another test's, unless one of our processes has it.
std::set<std::string> SocketNamesOf(const std::vector<pid_t>& processes) {
  std::set<std::string> owned;
  for (const pid_t pid : processes) {
    std::error_code gone;
    for (const auto& fd :
         std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), gone)) {
      owned.insert(std::filesystem::read_symlink(fd.path(), gone).string());
    }
  }
  std::set<std::string> names;
  for (const auto& [number, name] : NamedSockets()) {
    if (owned.contains("socket:[" + number + "]")) names.insert(name);
  }
  return names;
}

// A job in the middle of its allreduces.
class RunningJob {
 public:
  struct Options {
    int ranks = 2;
    long elements = 1;
    int victim = kNobody;  // kills itself, so long after all are running
    int delay_us = -1;
    bool terminal = false;
    int resets = 0;          // so often a rank aborts the job, before it runs on
    bool two_hosts = false;  // pretended ones
  };

  explicit RunningJob(const Options& options)
      : options_(options),
        directory_(absl::StrCat(testing::TempDir(), "launched-kill-", getpid())) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
    Job::Setup setup;
    setup.environment = {{"TMPDIR", directory_},
                         {"RUEDA_LOG_LEVEL", "error"},
                         {"RUEDA_HOSTS_FAKE", options.two_hosts ? "2" : "0"}};
    setup.terminal = options.terminal;
    job_ = std::make_unique<Job>(
        std::vector<std::string>{"-np", std::to_string(options.ranks), LAUNCHED_KILL_HELPER,
                                 std::to_string(options.elements), std::to_string(options.victim),
                                 std::to_string(options.delay_us), std::to_string(options.resets)},
        setup);
    for (int rank = 0; rank < options.ranks; ++rank) {
      pids_.push_back(job_->AwaitPid(absl::StrCat("[", rank, "] running ")));
    }
    if (options.delay_us >= 0) return;  // it may be over already
    processes_ = job_->Processes();
    EXPECT_EQ(processes_.size(), pids_.size() + 2) << "ruedarun and its supervisor too";
    sockets_ = SocketNamesOf(processes_);
    EXPECT_FALSE(sockets_.empty()) << "or nobody would see one that is left";
    for (const pid_t pid : pids_) {
      const std::string maps = ReadFile(absl::StrCat("/proc/", pid, "/maps"));
      EXPECT_THAT(maps, HasSubstr("/memfd:rueda"));
      EXPECT_THAT(maps, Not(HasSubstr("/dev/shm"))) << "what has no name can't be left";
    }
  }
  ~RunningJob() { std::filesystem::remove_all(directory_); }

  Job& job() { return *job_; }
  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }

  // After its end.
  void ExpectNothingLeft() {
    EXPECT_TRUE(AllEnd(processes_, Bound(kSecond)));
    EXPECT_TRUE(job_->Processes().empty());
    for (const auto& [number, name] : NamedSockets()) {
      EXPECT_FALSE(sockets_.contains(name)) << "left: " << name;
    }
    for (const std::string& file : FilesIn("/dev/shm")) {
      EXPECT_THAT(file, Not(HasSubstr("rueda"))) << "left in /dev/shm";
    }
    for (const std::string& file : FilesIn(directory_)) {
      const bool is_dump = std::any_of(pids_.begin(), pids_.end(), [&](pid_t pid) {
        return file == absl::StrCat("rueda-recorder.", pid, ".txt");
      });
      EXPECT_TRUE(is_dump) << "left: " << file;
    }
  }

 private:
  const Options options_;
  const std::string directory_;
  std::unique_ptr<Job> job_;
  std::vector<pid_t> pids_;
  std::vector<pid_t> processes_;
  std::set<std::string> sockets_;
};

Nanos NumberAfter(const std::string& text, const std::string& key) {
  const size_t at = text.find(key);
  return at == std::string::npos ? 0 : std::stoll(text.substr(at + key.size()));
}

// A rank's account of its failed allreduce. Returns when it noticed.
Nanos ExpectToldOfLoss(const std::string& lines, int victim, pid_t victim_pid) {
  const size_t begin = lines.find("failed ");
  if (begin == std::string::npos) {
    ADD_FAILURE() << "it was not told. Its output: " << lines;
    return 0;
  }
  const std::string line = lines.substr(begin, lines.find('\n', begin) - begin);
  // The cause is the launcher's word. Without the fields there was no operation to have failed.
  const std::string cause = "killed by signal 9 \\(SIGKILL\\)";
  EXPECT_THAT(line, MatchesRegex(absl::StrCat(
                        "failed noticed=[0-9]+ code=10( recoverable=1 rank=", victim,
                        " pid=", victim_pid, " cause='", cause, "')? message='rank ", victim,
                        " \\(host [^ ]+, pid ", victim_pid, "\\) was lost: ", cause, "[,;].*")));
  return NumberAfter(line, "noticed=");
}

// 4 bytes go in one step, 4 MB in many.
long RandomElements(std::mt19937& random) {
  const long kElements[] = {1, 1'000, 250'000, 1'000'000};
  return kElements[random() % 4];
}

TEST(LaunchedKill, OfARankIsToldToAllOthersAndNamedByRuedarun) {
  std::mt19937 random(20'240'607);
  std::vector<Nanos> took;
  for (int trial = 0; trial < kKillTrials && !HasFailure(); ++trial) {
    const int ranks = trial % 2 == 0 ? 2 : 4;
    const int victim = static_cast<int>(random() % static_cast<unsigned>(ranks));
    const int delay_us = static_cast<int>(random() % 10'000);
    const bool by_itself = trial % 4 < 2;
    SCOPED_TRACE(absl::StrCat("trial ", trial, ", victim ", victim, " of ", ranks,
                              by_itself ? ", by itself" : ""));
    RunningJob running(
        {ranks, RandomElements(random), by_itself ? victim : kNobody, by_itself ? delay_us : -1});
    Nanos killed_at = 0;
    if (!by_itself) {
      usleep(static_cast<useconds_t>(delay_us));  // the moment is meant to be random
      killed_at = MonotonicNow();
      kill(running.pid(victim), SIGKILL);
    }
    Job& job = running.job();
    EXPECT_EQ(job.Wait(), 128 + SIGKILL);
    if (by_itself) killed_at = NumberAfter(job.out(), "killed=");
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == victim) continue;
      SCOPED_TRACE(absl::StrCat("rank ", rank));
      const Nanos noticed_at =
          ExpectToldOfLoss(LinesOf(rank, job.out()), victim, running.pid(victim));
      took.push_back(noticed_at - killed_at);
      EXPECT_LE(took.back(), Bound(kSecond));
    }
    EXPECT_THAT(job.err(), HasSubstr(absl::StrCat("after rank ", victim, " failed; exit status")));
    EXPECT_THAT(job.err(), ContainsRegex(absl::StrCat("\\*     ", victim, " +", running.pid(victim),
                                                      " .* killed by signal 9 \\(SIGKILL\\)  <- "
                                                      "first failure")));
    EXPECT_THAT(job.err(), HasSubstr("exited with status 3\n")) << "after they had said why";
    running.ExpectNothingLeft();
  }
  std::sort(took.begin(), took.end());
  ASSERT_FALSE(took.empty());
  std::printf("from the kill to the survivors' error: p50 %.2f ms, slowest %.2f ms of %zu\n",
              static_cast<double>(took[took.size() / 2]) / 1e6,
              static_cast<double>(took.back()) / 1e6, took.size());
}

// Between hosts nothing tells of a killed rank whose child keeps its connections open, but the
// launcher; these do not even watch for silence.
TEST(LaunchedKill, OfARankWhoseChildLivesOnIsToldToOtherHosts) {
  constexpr int kVictim = 1;
  for (int trial = 0; trial < kEndTrials && !HasFailure(); ++trial) {
    SCOPED_TRACE(absl::StrCat("trial ", trial));
    char folder[] = "/tmp/rueda-launched-kill-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    Job::Setup setup;
    setup.environment = {{"RUEDA_LOG_LEVEL", "error"},
                         {"RUEDA_SHARED_DIR", folder},
                         {"RUEDA_NETWORK_INTERFACE", "lo"},
                         {"RUEDA_HEARTBEAT_LIMIT_S", "0"},
                         {"TMPDIR", folder}};
    Job job({"-np", "3", "sh", "-c",
             absl::StrCat("export RUEDA_HOST_ID=$RANK RUEDA_LOCAL_RANK=0 RUEDA_LOCAL_SIZE=1; exec ",
                          LAUNCHED_KILL_HELPER, " 1000 ", kVictim, " 0 -1")},
            setup);
    const pid_t victim = job.AwaitPid(absl::StrCat("[", kVictim, "] running "));
    EXPECT_EQ(job.Wait(), 128 + SIGKILL) << job.err();
    for (const int rank : {0, 2}) {
      SCOPED_TRACE(absl::StrCat("rank ", rank));
      const Nanos noticed = ExpectToldOfLoss(LinesOf(rank, job.out()), kVictim, victim);
      EXPECT_LE(noticed - NumberAfter(job.out(), "killed="), Bound(kSecond));
    }
    EXPECT_TRUE(job.Processes().empty());
    std::filesystem::remove_all(folder);
  }
}

// What a start under ruedarun needs (the secret, the board and its bell) is there after a fork too.
TEST(LaunchedStart, AForkedChildHasAJobOfItsOwn) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  // ThreadSanitizer knows no threads there; AddressSanitizer's allocator may stay locked.
  GTEST_SKIP() << "sanitizers do not know a child of a process that has threads";
#endif
  for (const char* hosts : {"0", "2"}) {
    Job::Setup setup;
    setup.environment = {{"RUEDA_HOSTS_FAKE", hosts}};
    Job job({"-np", "2", LAUNCHED_KILL_HELPER, "1", "-1", "0", "-2"}, setup);
    EXPECT_EQ(job.Wait(), 0) << job.out() << job.err();
    EXPECT_EQ(job.err(), "");
  }
}

// Who aborted a membership that all have left behind has no part in the end of a later one.
TEST(LaunchedKill, AfterAbortsAndResetsNamesTheKilledRank) {
  std::mt19937 random(20'240'611);
  for (int trial = 0; trial < ResetTrials() && !HasFailure(); ++trial) {
    RunningJob::Options options;
    options.two_hosts = trial % 2 == 1;
    options.ranks = options.two_hosts ? 4 : 3;
    const int victim = static_cast<int>(random() % static_cast<unsigned>(options.ranks));
    SCOPED_TRACE(absl::StrCat("trial ", trial, ", victim ", victim));
    options.resets = 100 + trial % 3;  // another was the last to abort
    RunningJob running(options);
    kill(running.pid(victim), SIGKILL);
    Job& job = running.job();
    EXPECT_EQ(job.Wait(), 128 + SIGKILL);
    for (int rank = 0; rank < options.ranks; ++rank) {
      if (rank == victim) continue;
      SCOPED_TRACE(absl::StrCat("rank ", rank));
      (void)ExpectToldOfLoss(LinesOf(rank, job.out()), victim, running.pid(victim));
    }
    EXPECT_THAT(job.err(), HasSubstr(absl::StrCat("after rank ", victim, " failed; exit status")));
    EXPECT_THAT(job.err(), ContainsRegex(absl::StrCat("\\*     ", victim, " +", running.pid(victim),
                                                      " .* killed by signal 9 \\(SIGKILL\\)  <- "
                                                      "first failure")));
    running.ExpectNothingLeft();
  }
}

// It would have been waited for to the end of the time limit.
TEST(LaunchedStart, ARankThatEndsBeforeItIsNamedByAll) {
  for (const int victim : {0, 1}) {
    Job job({"-np", "3", "sh", "-c",
             absl::StrCat("[ $RANK = ", victim, " ] && exit 0; exec ", LAUNCHED_KILL_HELPER,
                          " 1 -1 -1")});
    EXPECT_EQ(job.Wait(), 1);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_THAT(job.out(), ContainsRegex(absl::StrCat(
                                 "\\[", rank, "\\] unexpected: rueda_init: rank ", victim,
                                 " \\(pid [0-9]+\\) exited with status 0 before the start")));
    }
    EXPECT_THAT(job.err(), ContainsRegex(absl::StrCat("\\* +", victim, " .*<- first failure")));
  }
}

TEST(LaunchedKill, OfRuedarunEndsAllRanksAndLeavesNothing) {
  std::mt19937 random(20'240'608);
  for (int trial = 0; trial < kEndTrials && !HasFailure(); ++trial) {
    SCOPED_TRACE(absl::StrCat("trial ", trial));
    RunningJob running({trial % 2 == 0 ? 2 : 4, RandomElements(random)});
    usleep(static_cast<useconds_t>(random() % 10'000));
    running.job().Signal(SIGKILL);
    EXPECT_EQ(running.job().Wait(), -SIGKILL);
    running.ExpectNothingLeft();
  }
}

TEST(LaunchedKill, OfTheSupervisorEndsAllRanksAndLeavesNothing) {
  std::mt19937 random(20'240'609);
  for (int trial = 0; trial < kEndTrials && !HasFailure(); ++trial) {
    SCOPED_TRACE(absl::StrCat("trial ", trial));
    RunningJob running({trial % 2 == 0 ? 2 : 4, RandomElements(random)});
    usleep(static_cast<useconds_t>(random() % 10'000));
    kill(running.job().supervisor(), SIGKILL);
    EXPECT_EQ(running.job().Wait(), 1);
    running.ExpectNothingLeft();
  }
}

TEST(LaunchedKill, ByCtrlCLeavesNothing) {
  std::mt19937 random(20'240'610);
  for (int trial = 0; trial < kEndTrials && !HasFailure(); ++trial) {
    SCOPED_TRACE(absl::StrCat("trial ", trial));
    const bool terminal = trial % 2 == 0;
    RunningJob running({trial % 4 < 2 ? 2 : 4, RandomElements(random), kNobody, -1, terminal});
    usleep(static_cast<useconds_t>(random() % 10'000));
    if (terminal) {
      running.job().Type("\x03");
    } else {
      running.job().Signal(SIGINT);
    }
    EXPECT_EQ(running.job().Wait(), 128 + SIGINT);
    running.ExpectNothingLeft();
  }
}

}  // namespace
}  // namespace rueda
