#include "test/support/run_ranks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "test/support/sanitized.h"

namespace rueda::testing {
namespace {

#ifdef RUEDA_TEST_EMULATED
constexpr int kPatienceMs = 500'000;
#else
constexpr int kPatienceMs = kSanitized ? 180'000 : 60'000;
#endif

// A job id that no other test has, and a secret that the ranks inherit.
struct Job {
  Job() {
    static std::atomic<int> count{0};
    id = "test-" + std::to_string(getpid()) + "-" + std::to_string(count++);
    secret_fd = memfd_create("test-secret", 0);
    EXPECT_EQ(write(secret_fd, "0123456789abcdef0123456789abcdef", 32), 32);
  }
  ~Job() { close(secret_fd); }
  std::string id;
  int secret_fd;
};

rueda_status JoinProcess(const RunOptions& options, const Job& job, int rank,
                         rueda_context** context) {
  std::vector<std::string> words = {"rank",      std::to_string(rank),
                                    "size",      std::to_string(options.size),
                                    "job_id",    job.id,
                                    "secret_fd", std::to_string(job.secret_fd)};
  for (const auto* knobs : {&options.setup.knobs, &options.knobs}) {
    for (const auto& [name, value] : *knobs) {
      words.push_back(name);
      words.push_back(value);
    }
  }
  std::vector<const char*> pointers;
  for (const std::string& word : words) pointers.push_back(word.c_str());
  rueda_init_options init = RUEDA_INIT_OPTIONS_INIT;
  init.knobs = pointers.data();
  init.knob_count = pointers.size() / 2;
  return rueda_init(RUEDA_VERSION, &init, context);
}

rueda_status JoinThread(const RunOptions& options, rueda_group* group, int rank,
                        rueda_context** context) {
  std::vector<const char*> pointers;
  for (const auto* knobs : {&options.setup.knobs, &options.knobs}) {
    for (const auto& [name, value] : *knobs) {
      pointers.push_back(name.c_str());
      pointers.push_back(value.c_str());
    }
  }
  rueda_init_options init = RUEDA_INIT_OPTIONS_INIT;
  init.knobs = pointers.data();
  init.knob_count = pointers.size() / 2;
  init.group = group;
  init.group_rank = rank;
  return rueda_init(RUEDA_VERSION, &init, context);
}

bool OthersSleep() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::ifstream file(task.path() / "stat");
    std::string line;  // "1234 (name) S ..."; nothing if it has ended
    std::getline(file, line);
    const size_t name_end = line.rfind(')');
    if (name_end != std::string::npos && line.substr(name_end + 2, 1) != "S") return false;
  }
  return true;
}

bool HaveGloo() {
#ifdef RUEDA_TEST_HAVE_GLOO
  return true;
#else
  return false;
#endif
}

}  // namespace

void AwaitSleepOfOthers() {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (!OthersSleep() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void PrintTo(const Setup& setup, std::ostream* out) {
  *out << setup.name;
}

std::vector<Setup> ShmSetups() {
  return {{"threads", Ranks::kThreads, {}}, {"processes", Ranks::kProcesses, {}}};
}

std::vector<Setup> AllSetups() {
  std::vector<Setup> setups = ShmSetups();
  setups.push_back({"threads_tcp", Ranks::kThreads, {{"bus", "tcp"}}});
  // Each rank leads itself, below the one before: the longest way to the root that there is.
  setups.push_back(
      {"processes_chain", Ranks::kProcesses, {{"bus", "tcp"}, {"leader_fan_out", "1"}}});
  if (HaveGloo()) {
    setups.push_back({"processes_gloo", Ranks::kProcesses, {{"backend", "gloo"}}});
    setups.push_back({"processes_two_hosts", Ranks::kProcesses, {{"hosts_fake", "2"}}, 2});
    // Here small operations are moved as large ones are, and not by the plan.
    setups.push_back({"threads_two_hosts",
                      Ranks::kThreads,
                      {{"hosts_fake", "2"}, {"inline_bytes", "0"}, {"cross", "gloo"}},
                      2});
  }
  return setups;
}

std::vector<Setup> FewSetups() {
  std::vector<Setup> setups = AllSetups();
  std::erase_if(setups, [](const Setup& setup) {
    return setup.name != "threads" && setup.name != "processes" &&
           setup.name != "processes_two_hosts";
  });
  return setups;
}

std::vector<Setup> HostsSetups() {
  if (!HaveGloo()) return {};
  return {{"processes_three_hosts", Ranks::kProcesses, {{"hosts_fake", "3"}}, 3},
          {"processes_two_hosts_gloo",
           Ranks::kProcesses,
           {{"hosts_fake", "2"}, {"backend", "gloo"}},
           2}};
}

std::vector<int> StartProcesses(const RunOptions& options,
                                const std::function<void(int, const Join&)>& body) {
  auto job = std::make_shared<Job>();
  std::vector<int> pids;
  std::fflush(nullptr);
  for (int rank = 0; rank < options.size; ++rank) {
    // A child inherits locks that other threads hold, with nobody to release them:
    // AddressSanitizer's allocator, other than glibc's, does not take care of that. The threads of
    // a device that ran in this process end by themselves after their context.
    AwaitSleepOfOthers();
    const int pid = fork();
    if (pid == 0) {
      // Ranks that share a GPU, which NCCL before 2.30 refuses, unless they seem to be on two
      // hosts.
      if (getenv("TEST_NCCL_HOSTIDS") != nullptr) {
        setenv("NCCL_HOSTID", std::to_string(rank).c_str(), 1);
      }
      body(rank,
           [&](rueda_context** context) { return JoinProcess(options, *job, rank, context); });
      std::fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    EXPECT_GT(pid, 0);
    pids.push_back(pid);
  }
  return pids;
}

int AwaitProcess(int pid) {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  pollfd wait = {pidfd, POLLIN, 0};
  const bool ended = poll(&wait, 1, kPatienceMs) == 1;
  close(pidfd);
  if (!ended) kill(pid, SIGKILL);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return ended ? status : -1;
}

void RunJoiners(const RunOptions& options, const std::function<void(int, const Join&)>& body) {
  if (options.setup.ranks == Ranks::kProcesses) {
    const std::vector<int> pids = StartProcesses(options, body);
    for (int rank = 0; rank < options.size; ++rank) {
      const int status = AwaitProcess(pids[rank]);
      EXPECT_EQ(status, 0) << "rank " << rank
                           << (status == -1 ? " hung" : " failed; its output is above");
    }
    return;
  }
  rueda_group* group = nullptr;
  ASSERT_EQ(rueda_group_create(options.size, &group), RUEDA_OK);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.size; ++rank) {
    threads.emplace_back([&, rank] {
      body(rank,
           [&](rueda_context** context) { return JoinThread(options, group, rank, context); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  rueda_group_destroy(group);
}

void RunRanks(const RunOptions& options, const std::function<void(rueda_context*, int)>& body) {
  RunJoiners(options, [&](int rank, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << "rank " << rank << ": " << rueda_last_error();
    body(context, rank);
    const rueda_status status = rueda_shutdown(context);
    if (!options.may_fail) {
      EXPECT_EQ(status, RUEDA_OK) << "rank " << rank << ": " << rueda_last_error();
    }
    rueda_context_destroy(context);
  });
}

}  // namespace rueda::testing
