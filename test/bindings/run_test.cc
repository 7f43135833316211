// rueda::run: ranks from a function call.
#include "rueda/run.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <poll.h>
#include <sys/syscall.h>

#include <cstring>
#include <filesystem>

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

struct Helper {
  pid_t pid = -1;
  int out = -1;

  using Variables = std::vector<std::pair<std::string, std::string>>;
  explicit Helper(const char* what, const Variables& variables = {}) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    const std::string program =
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / "run_helper";
    pid = fork();
    if (pid == 0) {
      dup2(ends[1], STDOUT_FILENO);
      for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
      execl(program.c_str(), program.c_str(), what, nullptr);
      _exit(127);
    }
    close(ends[1]);
    out = ends[0];
  }
  ~Helper() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    close(out);
  }

  // The next line; "" at the end.
  std::string Line() const {
    std::string line;
    for (char next; read(out, &next, 1) == 1 && next != '\n';) line += next;
    return line;
  }
  std::vector<std::string> Lines() const {
    std::vector<std::string> lines;
    for (std::string line; !(line = Line()).empty();) lines.push_back(line);
    return lines;
  }
};

TEST(Run, ReturnsWhatRanksReturn) {
  EXPECT_THAT(Helper("results").Lines(), ElementsAre("0 of 3: 3", "1 of 3: 3", "2 of 3: 3",
                                                     "100008 a3.000000", "100008 b3.000000"));
}

TEST(Run, ThrowsWhatTheFirstRankThatFailedHasThrown) {
  EXPECT_THAT(Helper("failures", {{"RUEDA_UNWIND_TIMEOUT_S", "0.1"}}).Lines(),
              ElementsAre("INTERNAL of rank 1: rank 1: what rank 1 says",
                          AllOf(StartsWith("INTERNAL of rank 2: rank 2: killed by signal 9")),
                          AllOf(StartsWith("INVALID_ARGUMENT of rank "), HasSubstr("'x'")),
                          "INTERNAL of rank 0: rank 0: what rank 0 says",
                          "INVALID_ARGUMENT of rank -1: run: 0 ranks; from 1 to 1024",
                          "INVALID_ARGUMENT of rank -1: run: 1025 ranks; from 1 to 1024"));
}

TEST(Run, InAProgramThatHasInitializedRanksAreRanksOfTheCall) {
  EXPECT_THAT(Helper("initialized").Lines(), ElementsAre("6", "6", "6", "0 of 1"));
}

TEST(Run, SaysThatARankNeverCameToTheCall) {
  EXPECT_THAT(Helper("lost").Line(), HasSubstr("exited with status 5 before it came"));
}

TEST(Run, NoRankOutlivesTheCaller) {
  const Helper helper("sleep");
  std::vector<pollfd> ranks;  // a pidfd can be read when its process has ended
  for (int rank = 0; rank < 3; ++rank) {
    const auto pid = static_cast<pid_t>(std::stoi(helper.Line()));
    ranks.push_back({.fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0)), .events = POLLIN});
    ASSERT_GE(ranks.back().fd, 0) << strerror(errno);
  }
  kill(helper.pid, SIGKILL);
  // The pipe ends with the last of them.
  EXPECT_EQ(helper.Line(), "");
  for (pollfd& rank : ranks) {
    EXPECT_EQ(poll(&rank, 1, 10'000), 1);
    close(rank.fd);
  }
}

TEST(Run, IsNotForRanks) {
  setenv("RUEDA_RANK", "0", 1);
  EXPECT_THROW(rueda::run([] {}, 2), rueda::Error);
  unsetenv("RUEDA_RANK");
}

// What mpirun, torchrun and ruedarun set.
TEST(Run, IsNotForRanksOfAnyLauncher) {
  const std::string job = "run_test-" + std::to_string(getpid());
  const auto variables = [&](const std::string& launcher,
                             const std::string& rank) -> Helper::Variables {
    if (launcher == "mpirun") {
      return {{"OMPI_COMM_WORLD_RANK", rank},
              {"OMPI_COMM_WORLD_SIZE", "2"},
              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
              {"PMIX_NAMESPACE", job}};
    }
    if (launcher == "torchrun") {
      return {{"TORCHELASTIC_RUN_ID", job}, {"RANK", rank}, {"WORLD_SIZE", "2"}};
    }
    return {{"RUEDA_RANK", rank}, {"RUEDA_SIZE", "2"}, {"RUEDA_JOB_ID", job}};
  };
  for (const char* launcher : {"mpirun", "torchrun", "ruedarun"}) {
    const Helper first("launched", variables(launcher, "0"));
    const Helper second("launched", variables(launcher, "1"));
    const std::string refused = "FAILED_PRECONDITION of rank -1: run: this process is a rank";
    EXPECT_THAT(first.Lines(),
                ElementsAre(StartsWith(refused), "rank 0 of 2", StartsWith(refused)));
    EXPECT_THAT(second.Lines(),
                ElementsAre(StartsWith(refused), "rank 1 of 2", StartsWith(refused)));
  }
}

// A launcher's only rank may.
TEST(Run, IsForOneRankOfALauncher) {
  EXPECT_THAT(Helper("results", {{"OMPI_COMM_WORLD_RANK", "0"},
                                 {"OMPI_COMM_WORLD_SIZE", "1"},
                                 {"PMIX_NAMESPACE", "run_test"}})
                  .Lines(),
              testing::SizeIs(5));
}

}  // namespace
