#include "test/torch/ranks.h"

#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

extern char** environ;

namespace rueda::test {
namespace {

// On standard output: a filter that matches nothing must not pass for success.
constexpr const char* kBodyHasRun = "the body has run";

struct Child {
  pid_t pid = -1;
  int out = -1;
  int err = -1;
};

std::string Slurp(int fd) {
  std::string text;
  char block[4096];
  lseek(fd, 0, SEEK_SET);
  for (ssize_t got; (got = read(fd, block, sizeof(block))) > 0;) {
    text.append(block, static_cast<size_t>(got));
  }
  close(fd);
  return text;
}

// This process's environment with `changes`, as posix_spawn takes it. Without RUEDA_'s variables,
// and without GoogleTest's: a program that runs as a rank has one case to run, whichever share of
// the cases its parent has.
std::vector<std::string> Environment(const Variables& changes) {
  std::vector<std::string> words;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string word = *entry;
    bool replaced = word.starts_with("RUEDA_") && !word.starts_with("RUEDA_VENV");
    replaced |= word.starts_with("GTEST_");
    for (const auto& [name, value] : changes) replaced |= word.starts_with(name + "=");
    if (!replaced) words.push_back(word);
  }
  for (const auto& [name, value] : changes) words.push_back(name + "=" + value);
  return words;
}

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

Child Start(std::vector<std::string> words, const Variables& changes) {
  Child child;
  child.out = memfd_create("out", MFD_CLOEXEC);
  child.err = memfd_create("err", MFD_CLOEXEC);
  std::vector<std::string> variables = Environment(changes);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, child.out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, child.err, STDERR_FILENO);
  const int error = posix_spawnp(&child.pid, words[0].c_str(), &actions, nullptr,
                                 Pointers(words).data(), Pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("can't start " + words[0] + ": " + strerror(error));
  return child;
}

// What a rank does with the test's body.
void BeRank(const std::function<void()>& body) {
  std::string error;
  try {
    init();
    body();
    if (!testing::Test::HasFailure()) shutdown();
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  if (!error.empty()) ADD_FAILURE() << error;
  if (testing::Test::HasFailure()) LeaveWithoutShutdown();
  std::puts(kBodyHasRun);
}

}  // namespace

// Not by way of destructors, which would wait for the other ranks.
void LeaveWithoutShutdown() {
  const bool failed = testing::Test::HasFailure();
  if (!failed) std::puts(kBodyHasRun);
  std::fflush(nullptr);
  _exit(failed ? 1 : 0);
}

std::vector<Ended> RunProgram(int ranks, const std::vector<std::string>& words,
                              const Variables& environment, int limit_s) {
  static int jobs = 0;
  // For control connections over TCP, which hosts_fake makes.
  static const int secret_fd = memfd_create("test-secret", 0);
  if (jobs == 0) {
    EXPECT_EQ(write(secret_fd, "0123456789abcdef0123456789abcdef", 32), 32);
  }
  const std::string job = "test-" + std::to_string(getpid()) + "-" + std::to_string(++jobs);
  std::vector<Child> children;
  for (int rank = 0; rank < ranks; ++rank) {
    Variables changes = environment;
    changes.emplace_back("RUEDA_RANK", std::to_string(rank));
    changes.emplace_back("RUEDA_SIZE", std::to_string(ranks));
    changes.emplace_back("RUEDA_JOB_ID", job);
    changes.emplace_back("RUEDA_SECRET_FD", std::to_string(secret_fd));
    changes.emplace_back("OMP_NUM_THREADS", "1");
    // Ranks that share a GPU, which NCCL before 2.30 refuses, unless they seem to be on two hosts.
    if (std::getenv("TEST_NCCL_HOSTIDS") != nullptr) {
      changes.emplace_back("NCCL_HOSTID", std::to_string(rank));
    }
    children.push_back(Start(words, changes));
  }
  std::vector<Ended> ended;
  int left_ms = 1000 * limit_s;
  for (const Child& child : children) {
    int status = 0;
    while (waitpid(child.pid, &status, WNOHANG) == 0) {
      if (left_ms <= 0) kill(child.pid, SIGKILL);
      usleep(5000);
      left_ms -= 5;
    }
    ended.push_back(
        {WIFEXITED(status) ? WEXITSTATUS(status) : -1, Slurp(child.out), Slurp(child.err)});
  }
  return ended;
}

void RunRanks(int ranks, const std::function<void()>& body, const Variables& environment) {
  if (std::getenv("RUEDA_RANK") != nullptr) {
    if (std::atoi(std::getenv("RUEDA_SIZE")) == ranks) BeRank(body);
    return;
  }
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter =
      std::string("--gtest_filter=") + test.test_suite_name() + "." + test.name();
  const std::vector<Ended> ended = RunProgram(ranks, {"/proc/self/exe", filter}, environment);
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_TRUE(ended[rank].status == 0 && ended[rank].out.find(kBodyHasRun) != std::string::npos)
        << "rank " << rank << " of " << ranks << ":\n"
        << ended[rank].out << ended[rank].err;
  }
}

}  // namespace rueda::test
