// How jobs end: exit codes, the first failure, and that nothing is left behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "test/launcher/job.h"

namespace rueda {
namespace {

const std::string kHelper = LAUNCHER_HELPER;

// A rank that says who it is and stays until it is ended.
constexpr char kStay[] = "echo pid$RANK $$; exec sleep 1000";
// From a failure to SIGTERM, and what the machine may take for the rest.
constexpr Nanos kSoonAfterAFailure = 2 * kSecond + 2 * kSecond;
// One that does not even end when told to.
constexpr char kStayStubbornly[] = "trap '' TERM INT; echo pid$RANK $$; exec sleep 1000";

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Endings, AreZeroAndSilentWhenAllRanksExitWithZero) {
  Job job({"-np", "3", "true"});
  EXPECT_EQ(job.Wait(), 0);
  EXPECT_EQ(job.out(), "");
  EXPECT_EQ(job.err(), "");
}

TEST(Endings, TakeTheFirstFailuresExitCode) {
  for (const int code : {1, 77, 255}) {
    Job job({"-np", "3", "sh", "-c",
             "[ $RANK = 1 ] && exit " + std::to_string(code) + "; exec sleep 1000"});
    EXPECT_EQ(job.Wait(), code);
    EXPECT_TRUE(Contains(job.err(), "*     1")) << job.err();
    EXPECT_TRUE(
        Contains(job.err(), "exited with status " + std::to_string(code) + "  <- first failure"))
        << job.err();
    EXPECT_TRUE(Contains(job.err(), "ended by ruedarun (SIGTERM) after rank 1 failed"));
    EXPECT_TRUE(job.Processes().empty());
  }
}

TEST(Endings, AddTheSignalTo128) {
  Job job({"-np", "2", "sh", "-c", "[ $RANK = 0 ] && kill -SEGV $$; exec sleep 1000"});
  EXPECT_EQ(job.Wait(), 139);
  EXPECT_TRUE(Contains(job.err(), "killed by signal 11 (SIGSEGV)  <- first failure")) << job.err();
}

TEST(Endings, NameTheRankThatWasKilled) {
  Job job({"-np", "3", "sh", "-c", kStay});
  const pid_t killed = job.AwaitPid("[2] pid2 ");
  kill(killed, SIGKILL);
  EXPECT_EQ(job.Wait(Bound(kSoonAfterAFailure)), 137);
  EXPECT_TRUE(Contains(job.err(), "rank 2 (pid " + std::to_string(killed) +
                                      ") killed by signal 9 (SIGKILL); ending the others"))
      << job.err();
  EXPECT_TRUE(job.Processes().empty());
}

TEST(Endings, AreTheFirstFailuresEvenIfOthersFailOtherwise) {
  Job job({"-np", "2", "sh", "-c",
           "trap 'exit 5' TERM; trap 'exit 3' USR1; echo pid$RANK $$; "
           "while :; do sleep 1000 & wait; done"});
  job.AwaitPid("[0] pid0 ");
  const pid_t failing = job.AwaitPid("[1] pid1 ");
  Job other({"-np", "1", "true"});  // another job at the same time is no obstacle
  EXPECT_EQ(other.Wait(), 0);
  kill(failing, SIGUSR1);
  EXPECT_EQ(job.Wait(), 3);
  EXPECT_TRUE(Contains(job.err(), "exited with status 3  <- first failure")) << job.err();
  EXPECT_TRUE(Contains(job.err(), "exited with status 5\n")) << job.err();
}

// As when a rank aborts the job, and whoever waited for it is quicker to end.
TEST(Endings, AreThoseOfTheRankThatTheFirstToEndBlames) {
  Job job({"-np", "2", kHelper, "blame"});
  EXPECT_EQ(job.Wait(), 7);
  EXPECT_TRUE(Contains(job.err(), "the job ended after rank 1 failed; exit status 7")) << job.err();
  EXPECT_TRUE(Contains(job.err(), "exited with status 3\n")) << job.err();
  EXPECT_TRUE(Contains(job.err(), "exited with status 7  <- first failure")) << job.err();
}

TEST(Endings, ComeSoonAfterTheGraceWhenARankIgnoresSigterm) {
  Job job({"-np", "2", "--grace-seconds", "0.3", "sh", "-c", kStayStubbornly});
  job.AwaitPid("[0] pid0 ");
  kill(job.AwaitPid("[1] pid1 "), SIGKILL);
  const Nanos begin = MonotonicNow();
  EXPECT_EQ(job.Wait(Bound(2'300 * kMillisecond)), 137);
  EXPECT_GE(MonotonicNow() - begin, 300 * kMillisecond);
  EXPECT_TRUE(Contains(job.err(), "ended by ruedarun (SIGKILL) after rank 1 failed")) << job.err();
  EXPECT_TRUE(job.Processes().empty());
}

TEST(Endings, ComeForAStoppedRankToo) {
  Job job({"-np", "2", "--grace-seconds", "1000", "sh", "-c", kStay});
  const pid_t stopped = job.AwaitPid("pid0 ");
  const pid_t failing = job.AwaitPid("pid1 ");
  kill(stopped, SIGSTOP);
  ASSERT_TRUE(AwaitState(stopped, 'T'));
  kill(failing, SIGKILL);
  EXPECT_EQ(job.Wait(Bound(kSoonAfterAFailure)), 137);
  EXPECT_TRUE(Contains(job.err(), "ended by ruedarun (SIGTERM) after rank 1 failed")) << job.err();
  EXPECT_TRUE(job.Processes().empty());
}

TEST(Endings, ComeSoonAfterTheGraceForAStoppedRankThatIgnoresSigterm) {
  Job job({"-np", "2", "--grace-seconds", "0.3", "sh", "-c", kStayStubbornly});
  const pid_t stopped = job.AwaitPid("pid0 ");
  job.AwaitPid("pid1 ");
  kill(stopped, SIGSTOP);
  ASSERT_TRUE(AwaitState(stopped, 'T'));
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(Bound(2'300 * kMillisecond)), 143);
  EXPECT_TRUE(Contains(job.err(), "ended by ruedarun (SIGKILL) after SIGTERM")) << job.err();
  EXPECT_TRUE(job.Processes().empty());
}

// A rank that computes and does not learn of the failure: SIGTERM is its chance to save.
TEST(Endings, AfterAFailureSpareTheWorkersOfTheOthers) {
  Job job({"-np", "2", "--grace-seconds", "1000", "sh", "-c",
           "[ $RANK = 0 ] && exec " + kHelper + " save; " + kStay});
  job.Await("ready ");
  kill(job.AwaitPid("pid1 "), SIGKILL);
  EXPECT_EQ(job.Wait(Bound(kSoonAfterAFailure)), 137);
  EXPECT_TRUE(Contains(job.out(), "[0] SIGTERM: saved\n")) << job.out() << job.err();
  EXPECT_TRUE(job.Processes().empty());
}

// The other ranks learn of a failure from their own operations. SIGTERM must not be quicker than
// they are: what they have to say is what the user wants to read.
TEST(Endings, LetTheOtherRanksSayWhatTheyLost) {
  Job job({"-np", "2", kHelper, "lose"});
  EXPECT_EQ(job.Wait(), 137);
  EXPECT_TRUE(Contains(job.out(), "[0] lost rank 1\n")) << job.out() << job.err();
  EXPECT_TRUE(Contains(job.err(), "exited with status 6\n")) << job.err();
}

TEST(Endings, LeaveNoDaemonBehind) {
  for (const char* kind : {"plain", "stubborn"}) {
    Job job({"-np", "2", "--grace-seconds", "0.2", kHelper, "daemon", kind});
    const pid_t first = job.AwaitPid("daemon ");
    const pid_t second = job.AwaitPid("daemon ");
    EXPECT_EQ(job.Wait(), 0) << "the ranks did their work";
    EXPECT_EQ(ProcessState(first), 0);
    EXPECT_EQ(ProcessState(second), 0);
    EXPECT_EQ(job.err(), "");
    EXPECT_TRUE(job.Processes().empty());
  }
}

TEST(Endings, LeaveNoDaemonBehindAfterAFailure) {
  Job job({"-np", "2", "--grace-seconds", "0.2", "sh", "-c",
           kHelper + " daemon stubborn; [ $RANK = 1 ] && exit 4; exec sleep 1000"});
  EXPECT_EQ(job.Wait(), 4);
  EXPECT_TRUE(job.Processes().empty());
}

TEST(Endings, LeaveNoBackgroundProcessOfARankBehind) {
  Job job({"-np", "2", "sh", "-c", "sleep 1000 & echo started; exit 0"});
  EXPECT_EQ(job.Wait(), 0);
  EXPECT_TRUE(job.Processes().empty());
}

TEST(Endings, LeaveNothingBehindWhenRuedarunIsKilled) {
  Job job({"-np", "3", "sh", "-c", kHelper + " daemon stubborn; " + kStayStubbornly});
  for (int i = 0; i < 3; ++i) job.AwaitPid("daemon ");
  std::vector<pid_t> ranks;
  while (ranks.size() < 3) {
    for (const pid_t pid : job.Processes()) {
      std::ifstream name("/proc/" + std::to_string(pid) + "/comm");
      std::string word;
      if (name >> word && word == "sleep") ranks.push_back(pid);
    }
    if (ranks.size() < 3) ranks.clear();
  }
  kill(ranks[0], SIGSTOP);
  ASSERT_TRUE(AwaitState(ranks[0], 'T'));
  // Ruedarun, its supervisor, three ranks, three daemons; one in the middle of an exec hides.
  std::vector<pid_t> all;
  const Nanos deadline = MonotonicNow() + kHang;
  while (all.size() < 8 && MonotonicNow() < deadline) all = job.Processes();
  ASSERT_EQ(all.size(), 8u);
  job.Signal(SIGKILL);
  EXPECT_TRUE(AllEnd(all, Bound(kSecond)));
  EXPECT_TRUE(job.Processes().empty());
  EXPECT_EQ(job.Wait(), -SIGKILL);
}

TEST(Endings, LeaveNothingBehindWhenTheSupervisorIsKilled) {
  Job job({"-np", "2", "sh", "-c", kHelper + " daemon stubborn; " + kStayStubbornly});
  for (int i = 0; i < 2; ++i) job.AwaitPid("daemon ");
  kill(job.supervisor(), SIGKILL);
  EXPECT_EQ(job.Wait(Bound(kSecond)), 1);
  EXPECT_TRUE(Contains(job.err(), "its supervisor process (pid ")) << job.err();
  EXPECT_TRUE(Contains(job.err(), "killed by signal 9 (SIGKILL); killing all ranks")) << job.err();
  EXPECT_TRUE(Contains(job.err(), "after its supervisor process died")) << job.err();
  EXPECT_TRUE(job.Processes().empty());
}

TEST(Endings, ComeWhenTheSupervisorIsStopped) {
  Job job({"-np", "2", "--grace-seconds", "0", "sh", "-c", kStayStubbornly});
  job.AwaitPid("pid");
  job.AwaitPid("pid");
  const pid_t supervisor = job.supervisor();
  kill(supervisor, SIGSTOP);
  ASSERT_TRUE(AwaitState(supervisor, 'T'));
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(), 143);
  EXPECT_TRUE(job.Processes().empty());
}

TEST(Endings, WorkForManyRanks) {
  Job good({"-np", "64", "true"});
  EXPECT_EQ(good.Wait(), 0);
  Job bad({"-np", "64", "sh", "-c", "[ $RANK = 40 ] && exit 9; exec sleep 1000"});
  EXPECT_EQ(bad.Wait(), 9);
  EXPECT_TRUE(Contains(bad.err(), "other ranks were ended by ruedarun")) << bad.err();
  EXPECT_TRUE(bad.Processes().empty());
}

TEST(Endings, CollectOrphansWhileTheJobRuns) {
  // Each orphan is the supervisor's child; it must not stay a zombie. The first rank has ended.
  Job job({"-np", "2", "sh", "-c",
           "[ $RANK = 0 ] && exit 0; for i in 1 2 3 4 5; do (sh -c 'echo orphan $$' &); done; " +
               std::string(kStay)});
  std::vector<pid_t> orphans;
  for (int i = 0; i < 5; ++i) orphans.push_back(job.AwaitPid("orphan "));
  for (const pid_t orphan : orphans) EXPECT_TRUE(AwaitState(orphan, 0));
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(), 143);
}

TEST(Endings, TellTheOtherRanksWhyBeforeAnythingElse) {
  Job job({"-np", "2", kHelper, "verdict"});
  EXPECT_EQ(job.Wait(), 137);
  EXPECT_TRUE(Contains(job.out(), "[0] verdict 9 after ")) << job.out() << job.err();
}

TEST(Endings, Are127WhenThereIsNoSuchProgram) {
  Job in_path({"-np", "2", "no-such-program"});
  EXPECT_EQ(in_path.Wait(), 127);
  EXPECT_EQ(in_path.err(), "ruedarun: program 'no-such-program' not found in PATH\n");
  Job path({"-np", "2", "./no-such-program"});
  EXPECT_EQ(path.Wait(), 127);
  EXPECT_EQ(path.err(), "ruedarun: program './no-such-program' not found\n");
  Job empty({"-np", "2", ""});
  EXPECT_EQ(empty.Wait(), 127);
}

class Scripts : public testing::Test {
 protected:
  Scripts() : directory_(testing::TempDir() + "launcher-" + std::to_string(getpid())) {
    mkdir(directory_.c_str(), 0700);
  }
  ~Scripts() override { std::filesystem::remove_all(directory_); }
  std::string path() const { return directory_ + "/launcher-script"; }
  void Write(const std::string& text, mode_t mode) {
    std::ofstream(path()) << text;
    chmod(path().c_str(), mode);
  }
  const std::string directory_;
};

TEST_F(Scripts, AreRefusedWith126WhenNotExecutable) {
  Write("true\n", 0600);
  Job job({"-np", "2", path()});
  EXPECT_EQ(job.Wait(), 126);
  EXPECT_EQ(job.err(),
            "ruedarun: can't execute '" + path() + "': it is not marked as executable\n");
  Job directory({"-np", "2", directory_});
  EXPECT_EQ(directory.Wait(), 126);
}

TEST_F(Scripts, FailWith127WhenTheirInterpreterIsMissing) {
  Write("#!/no/such/interpreter\n", 0700);
  Job job({"-np", "2", path()});
  EXPECT_EQ(job.Wait(), 127);
  EXPECT_TRUE(Contains(job.err(), ": can't execute '" + path() + "': No such file or directory\n"))
      << job.err();
}

TEST_F(Scripts, WithoutAnInterpreterLineAreTheShells) {
  Write("echo script $RANK $1\n", 0700);
  Job job({"-np", "1", path(), "word"});
  EXPECT_EQ(job.Wait(), 0);
  EXPECT_EQ(job.out(), "[0] script 0 word\n");
}

TEST_F(Scripts, AreSuggestedWhenTheyAreInTheCurrentDirectory) {
  Write("true\n", 0700);
  Job::Setup setup;
  setup.directory = directory_;
  Job job({"-np", "1", "launcher-script"}, setup);
  EXPECT_EQ(job.Wait(), 127);
  EXPECT_EQ(
      job.err(),
      "ruedarun: program 'launcher-script' not found in PATH; did you mean './launcher-script'?\n");
}

TEST_F(Scripts, OfPythonAreSuggestedWithTheirInterpreter) {
  const std::string script = directory_ + "/train.py";
  std::ofstream(script) << "pass\n";
  Job::Setup setup;
  setup.directory = directory_;
  Job by_name({"-np", "1", "train.py"}, setup);
  EXPECT_EQ(by_name.Wait(), 127);
  EXPECT_EQ(by_name.err(),
            "ruedarun: program 'train.py' not found in PATH; did you mean 'python train.py'?\n");
  Job by_path({"-np", "1", "./train.py"}, setup);
  EXPECT_EQ(by_path.Wait(), 126);
  EXPECT_EQ(by_path.err(),
            "ruedarun: can't execute './train.py': it is not marked as executable; "
            "did you mean 'python ./train.py'?\n");
}

TEST(Endings, Are2ForAMistakeOnTheCommandLine) {
  Job typo({"-np", "2", "--output-dri", "x", "true"});
  EXPECT_EQ(typo.Wait(), 2);
  EXPECT_EQ(typo.err(),
            "ruedarun: unknown option --output-dri; did you mean --output-dir?\n"
            "Try ruedarun --help\n");
  Job later({"-np", "2", "--autotune", "true"});
  EXPECT_EQ(later.Wait(), 2);
  EXPECT_TRUE(Contains(later.err(), "option --autotune: not yet")) << later.err();
  Job how_many({"true"});
  EXPECT_EQ(how_many.Wait(), 2);
  EXPECT_EQ(how_many.err(), "ruedarun: how many ranks? -np N is missing\nTry ruedarun --help\n");
  Job too_many({"-np", "1025", "true"});
  EXPECT_EQ(too_many.Wait(), 2);
  EXPECT_EQ(
      too_many.err(),
      "ruedarun: option -np 1025: one host takes up to 1024 ranks; name more hosts with -H\n");
  Job missing({"-np", "2", "-x", "NOT_THERE", "true"});
  EXPECT_EQ(missing.Wait(), 2);
  EXPECT_TRUE(Contains(missing.err(), "option -x NOT_THERE: no such variable")) << missing.err();
  Job file({"--config-file", "/no/such/file", "true"});
  EXPECT_EQ(file.Wait(), 2);
  EXPECT_TRUE(Contains(file.err(), "opening /no/such/file")) << file.err();
  Job build({"--check-build"});
  EXPECT_EQ(build.Wait(), 0);
  EXPECT_TRUE(Contains(build.out(), "[X] C and C++: librueda.so")) << build.out();
  if (Contains(build.out(), "[X] NCCL")) {  // on a machine with a device, or without one
    EXPECT_TRUE(Contains(build.out(), "      built with NCCL ")) << build.out();
    EXPECT_FALSE(Contains(build.out(), "none")) << build.out();
    EXPECT_TRUE(Contains(build.out(), "device 0: ") ||
                Contains(build.out(), "can't be used here: "))
        << build.out();
  } else {
    EXPECT_TRUE(Contains(build.out(), "[ ] NCCL")) << build.out();
  }
  Job help({"--help"});
  EXPECT_EQ(help.Wait(), 0);
  EXPECT_TRUE(Contains(help.out(), "ruedarun -np N")) << help.out();
}

}  // namespace
}  // namespace rueda
