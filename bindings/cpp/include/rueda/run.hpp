/// \file
/// Ranks from a function call, without a launcher: what other libraries call spawn.
///
///     #include <rueda/run.hpp>
///
///     int main() {
///       const std::vector<double> losses = rueda::run([] { return Train(); }, 4);
///       ...
///     }
///
/// Each rank is a process of its own on this host: this program, started anew with its arguments.
/// The process goes through main() up to the same call. There it becomes a rank: it calls init, the
/// function and shutdown, and ends. What follows the call is for the caller alone.
///
/// **What precedes the call runs in every rank too.** Let it have no effects that must not happen
/// twice, and let it reach the same calls of run in the same order. An init() before the call makes
/// a world of one, in ranks too; run ends it there. Results of earlier calls are not computed
/// again.
///
/// Ranks are not forked, because neither torch's threads nor Rueda's survive a fork. A rank has
/// /dev/null for standard input, and the caller's standard output and error.
#ifndef RUEDA_RUN_HPP_
#define RUEDA_RUN_HPP_

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "rueda/rueda.hpp"

namespace rueda {
namespace detail {

// As many as the library takes on one host.
inline constexpr int kRunRanksMax = 1024;

// What the ranks of one call have returned, or how it failed.
struct RunOutcome {
  std::vector<std::string> results;  // by rank
  rueda_status status = RUEDA_OK;
  std::string error;
  int rank = -1;  // that failed first
};

// Bytes behind their number, through a pipe or a file.
inline void PutBytes(const std::string& bytes, std::string* to) {
  const uint64_t size = bytes.size();
  to->append(reinterpret_cast<const char*>(&size), sizeof size).append(bytes);
}
inline void PutNumber(int64_t number, std::string* to) {
  to->append(reinterpret_cast<const char*>(&number), sizeof number);
}
// False: there are not so many.
inline bool GetBytes(const std::string& from, size_t* at, std::string* bytes) {
  uint64_t size = 0;
  if (from.size() - *at < sizeof size) return false;
  std::memcpy(&size, from.data() + *at, sizeof size);
  if (from.size() - *at - sizeof size < size) return false;
  bytes->assign(from, *at + sizeof size, size);
  *at += sizeof size + size;
  return true;
}
inline bool GetNumber(const std::string& from, size_t* at, int64_t* number) {
  if (from.size() - *at < sizeof *number) return false;
  std::memcpy(number, from.data() + *at, sizeof *number);
  *at += sizeof *number;
  return true;
}

inline std::string Encode(const RunOutcome& outcome) {
  std::string text;
  PutNumber(outcome.status, &text);
  PutNumber(outcome.rank, &text);
  PutBytes(outcome.error, &text);
  PutNumber(static_cast<int64_t>(outcome.results.size()), &text);
  for (const std::string& result : outcome.results) PutBytes(result, &text);
  return text;
}
inline bool Decode(const std::string& text, size_t* at, RunOutcome* outcome) {
  int64_t status = 0;
  int64_t rank = 0;
  int64_t count = 0;
  if (!GetNumber(text, at, &status) || !GetNumber(text, at, &rank) ||
      !GetBytes(text, at, &outcome->error) || !GetNumber(text, at, &count)) {
    return false;
  }
  outcome->status = static_cast<rueda_status>(status);
  outcome->rank = static_cast<int>(rank);
  for (int64_t i = 0; i < count; ++i) {
    if (!GetBytes(text, at, &outcome->results.emplace_back())) return false;
  }
  return true;
}

inline bool WriteAll(int fd, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = write(fd, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) done += static_cast<size_t>(count);
  }
  return true;
}

[[noreturn]] inline void FailRun(const std::string& what) {
  throw Error(RUEDA_INTERNAL, "run: " + what + ": " + std::strerror(errno));
}

// This process's part in a call that another process has made: "CALL RANK RANKS RESULT EARLIER
// JOB", the last but one descriptors. It has not Rueda's prefix, as it is no setting.
inline constexpr const char* kRunVariable = "_RUEDA_RUN";

struct RunState {
  int calls = 0;                    // of this process so far
  std::vector<RunOutcome> earlier;  // a rank's: of the calls before its own
  int own = -1;                     // a rank's: the number of its call; else -1
  int rank = -1, ranks = -1, result = -1;
  std::string job;
  std::string log;  // of outcomes, for ranks to come

  RunState() {
    const char* const value = std::getenv(kRunVariable);
    if (value == nullptr) return;
    int file = -1;
    char name[128] = "";
    if (std::sscanf(value, "%d %d %d %d %d %127s", &own, &rank, &ranks, &result, &file, name) !=
        6) {
      throw Error(RUEDA_INVALID_ARGUMENT, std::string("run: ") + kRunVariable + "=" + value);
    }
    unsetenv(kRunVariable);  // not for processes that this one starts
    job = name;
    fcntl(result, F_SETFD, FD_CLOEXEC);
    std::ifstream stream("/proc/self/fd/" + std::to_string(file), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    close(file);
    size_t at = 0;
    earlier.resize(static_cast<size_t>(own));
    for (RunOutcome& outcome : earlier) {
      if (!Decode(text, &at, &outcome)) {
        throw Error(RUEDA_INTERNAL, "run: the results of earlier calls are cut short");
      }
    }
  }
  static RunState& Get() {
    static RunState state;
    return state;
  }
};

// In a rank: what it is there for. Ends the process.
[[noreturn]] inline void BeRunRank(const std::function<std::string()>& fn) {
  RunState& state = RunState::Get();
  std::string message;
  int status = 1;
  try {
    setenv("RUEDA_RANK", std::to_string(state.rank).c_str(), 1);
    setenv("RUEDA_SIZE", std::to_string(state.ranks).c_str(), 1);
    setenv("RUEDA_JOB_ID", state.job.c_str(), 1);
    if (is_initialized()) shutdown();  // of a world of one, before this was known to be a rank
    init();
    const std::string result = fn();
    shutdown();
    PutNumber(RUEDA_OK, &message);
    PutNumber(-1, &message);
    PutBytes(result, &message);
    status = 0;
  } catch (const Error& error) {
    PutNumber(error.status(), &message);
    PutNumber(error.rank(), &message);
    PutBytes(error.what(), &message);
  } catch (const std::exception& error) {
    PutNumber(RUEDA_INTERNAL, &message);
    PutNumber(-1, &message);
    PutBytes(error.what(), &message);
  } catch (...) {
    PutNumber(RUEDA_INTERNAL, &message);
    PutNumber(-1, &message);
    PutBytes("an exception not derived from std::exception", &message);
  }
  std::fflush(nullptr);
  WriteAll(state.result, message);
  _exit(status);
}

// The ranks' processes, from their start to their end.
class RunProcesses {
 public:
  RunProcesses() = default;
  RunProcesses(const RunProcesses&) = delete;
  // Whatever has happened, none is left.
  ~RunProcesses() {
    for (Process& process : processes_) {
      if (process.pid > 0) kill(process.pid, SIGKILL);
    }
    for (Process& process : processes_) Reap(&process);
  }

  void Start(int call, int ranks, const std::string& log) {
    const int earlier = memfd_create("earlier results", MFD_CLOEXEC);
    if (earlier < 0) FailRun("memfd_create");
    const Closer closer{earlier};
    if (!WriteAll(earlier, log)) FailRun("memfd");
    std::ifstream stream("/proc/self/cmdline", std::ios::binary);
    std::string words{std::istreambuf_iterator<char>(stream), {}};
    std::vector<char*> arguments;
    for (size_t at = 0; at < words.size(); at += std::strlen(&words[at]) + 1) {
      arguments.push_back(&words[at]);
    }
    arguments.push_back(nullptr);
    char program[4096] = "";  // by its name, for those who look at processes
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) FailRun("/proc/self/exe");
    static int jobs = 0;
    const std::string job =
        "run-" + std::to_string(getpid()) + "-" + std::to_string(++jobs) + "-" +
        std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
    for (int rank = 0; rank < ranks; ++rank) {
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) != 0) FailRun("pipe2");
      const Closer writer{ends[1]};
      processes_.push_back({.pid = -1, .out = ends[0], .text = ""});
      std::string part = std::string(kRunVariable) + "=" + std::to_string(call) + " " +
                         std::to_string(rank) + " " + std::to_string(ranks) + " " +
                         std::to_string(ends[1]) + " " + std::to_string(earlier) + " " + job;
      std::vector<char*> variables;
      for (char** entry = environ; *entry != nullptr; ++entry) variables.push_back(*entry);
      variables.push_back(part.data());
      variables.push_back(nullptr);
      const pid_t parent = getpid();
      const pid_t pid = fork();
      if (pid < 0) FailRun("fork");
      if (pid == 0)
        BeginRank(parent, ends[1], earlier, program, arguments.data(), variables.data());
      processes_.back().pid = pid;
    }
  }

  RunOutcome Wait() {
    RunOutcome outcome;
    outcome.results.resize(processes_.size());
    failures_.resize(processes_.size());
    size_t left = processes_.size();
    auto end = std::chrono::steady_clock::time_point::max();
    while (left > 0) {
      std::vector<pollfd> polls;
      for (const Process& process : processes_) polls.push_back({process.out, POLLIN, 0});
      int wait_ms = -1;
      if (first_ >= 0) {
        const auto now = std::chrono::steady_clock::now();
        // The others find out by themselves that a rank is lost, if they use Rueda.
        if (end == std::chrono::steady_clock::time_point::max())
          end = now + std::chrono::seconds(10);
        if (now >= end) break;
        wait_ms = static_cast<int>(
            std::chrono::duration_cast<std::chrono::milliseconds>(end - now).count() + 1);
      }
      if (poll(polls.data(), polls.size(), wait_ms) < 0 && errno != EINTR) FailRun("poll");
      for (size_t rank = 0; rank < polls.size(); ++rank) {
        if (polls[rank].fd >= 0 && polls[rank].revents != 0 && Read(rank, &outcome)) --left;
      }
    }
    if (first_ < 0) return outcome;
    // A rank that says that another one was lost may be heard of before it.
    size_t cause = static_cast<size_t>(first_);
    for (size_t i = 0; i < failures_.size(); ++i) {
      const int lost = failures_[cause].lost;
      if (lost < 0 || static_cast<size_t>(lost) >= failures_.size() ||
          failures_[static_cast<size_t>(lost)].status == RUEDA_OK) {
        break;
      }
      cause = static_cast<size_t>(lost);
    }
    // And so may those whose membership a rank has ended, before that rank says why.
    for (size_t i = 0; failures_[cause].status == RUEDA_ABORTED && i < failures_.size(); ++i) {
      const rueda_status status = failures_[i].status;
      if (status != RUEDA_OK && status != RUEDA_ABORTED) cause = i;
    }
    outcome.status = failures_[cause].status;
    outcome.rank = static_cast<int>(cause);
    outcome.error = "rank " + std::to_string(cause) + ": " + failures_[cause].text;
    return outcome;
  }

 private:
  struct Process {
    pid_t pid;
    int out;  // what it says; -1: it has said everything
    std::string text;
  };
  struct Failure {
    rueda_status status = RUEDA_OK;
    int lost = -1;  // the rank that it blames
    std::string text;
  };
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  };

  // After fork: nothing that needs a lock.
  [[noreturn]] static void BeginRank(pid_t parent, int result, int earlier, const char* program,
                                     char** arguments, char** variables) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    fcntl(result, F_SETFD, 0);
    fcntl(earlier, F_SETFD, 0);
    const int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, STDIN_FILENO);
    if (null > STDIN_FILENO) close(null);
    execve(program, arguments, variables);
    execve("/proc/self/exe", arguments, variables);  // the file is gone, or another one
    _exit(127);
  }

  // What the rank has said; whether it has ended.
  bool Read(size_t rank, RunOutcome* outcome) {
    Process& process = processes_[rank];
    char block[65536];
    const ssize_t count = read(process.out, block, sizeof block);
    if (count < 0 && errno == EINTR) return false;
    if (count > 0) {
      process.text.append(block, static_cast<size_t>(count));
      return false;
    }
    close(std::exchange(process.out, -1));
    const int how = Reap(&process);
    size_t at = 0;
    int64_t status = RUEDA_INTERNAL;
    int64_t lost = -1;
    std::string bytes;
    if (!GetNumber(process.text, &at, &status) || !GetNumber(process.text, &at, &lost) ||
        !GetBytes(process.text, &at, &bytes)) {
      status = RUEDA_INTERNAL;
      lost = -1;
      bytes = WIFSIGNALED(how) ? "killed by signal " + std::to_string(WTERMSIG(how)) + " (" +
                                     strsignal(WTERMSIG(how)) + ")"
                               : "exited with status " + std::to_string(WEXITSTATUS(how)) +
                                     " before it came to the end of its run() (or to it at all)";
    }
    if (status == RUEDA_OK) {
      outcome->results[rank] = std::move(bytes);
    } else {
      failures_[rank] = {static_cast<rueda_status>(status), static_cast<int>(lost),
                         std::move(bytes)};
      if (first_ < 0) first_ = static_cast<int>(rank);
    }
    return true;
  }

  static int Reap(Process* process) {
    if (process->out >= 0) close(std::exchange(process->out, -1));
    int how = 0;
    while (process->pid > 0 && waitpid(process->pid, &how, 0) < 0 && errno == EINTR) {
    }
    process->pid = -1;
    return how;
  }

  std::vector<Process> processes_;
  std::vector<Failure> failures_;  // by rank
  int first_ = -1;                 // of them
};

// Of the job that this process is a rank of; 1: it has not been started as one of several. Only the
// library knows all launchers, and it finds the other ranks, as they come to this call too.
inline int32_t RanksOfLauncher() {
  const int32_t initialized = rueda_size(rueda_current_context());
  if (initialized > 0) return initialized;
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  options.name = "run";  // so that it counts for nobody else
  options.flags = RUEDA_INIT_READ_ENVIRONMENT;
  rueda_context* context = nullptr;
  Check(rueda_init(RUEDA_VERSION, &options, &context), nullptr);
  const int32_t ranks = rueda_size(context);
  rueda_shutdown(context);
  rueda_context_destroy(context);
  return ranks;
}

inline std::vector<std::string> RunBytes(const std::function<std::string()>& fn, int ranks) {
  RunState& state = RunState::Get();
  const int call = state.calls++;
  if (call == state.own) BeRunRank(fn);
  RunOutcome outcome;
  if (call < state.own) {
    outcome = std::move(state.earlier[static_cast<size_t>(call)]);
  } else {
    if (ranks < 1 || ranks > kRunRanksMax) {
      throw Error(RUEDA_INVALID_ARGUMENT, "run: " + std::to_string(ranks) + " ranks; from 1 to " +
                                              std::to_string(kRunRanksMax));
    }
    if (std::getenv("RUEDA_RANK") != nullptr || RanksOfLauncher() > 1) {
      throw Error(RUEDA_FAILED_PRECONDITION,
                  "run: this process is a rank already, which a launcher has started: call init() "
                  "in it, or start it without the launcher");
    }
    RunProcesses processes;
    processes.Start(call, ranks, state.log);
    outcome = processes.Wait();
    state.log += Encode(outcome);
  }
  if (outcome.status != RUEDA_OK) {
    throw Error(outcome.status, outcome.error, /*recoverable=*/false, outcome.rank);
  }
  return std::move(outcome.results);
}

}  // namespace detail

/// Calls `fn` on `ranks` ranks and returns what it returned on each, by rank: a std::string, a
/// trivially copyable type, or nothing (then this returns nothing). In it Rueda is initialized.
/// For one thread at a time; not in a rank of a job.
///
/// If ranks fail, the others are ended after 10 s at the latest, and an Error says how the first
/// failed: `rank()` is its number; the text of what it has thrown, with its status if it was an
/// Error, else RUEDA_INTERNAL. None is left when this returns or throws, and none outlives the
/// calling thread. RUEDA_INVALID_ARGUMENT: `ranks` is not from 1 to 1024.
/// RUEDA_FAILED_PRECONDITION: a launcher has started this process as one of several ranks; and what
/// init() throws.
template <typename Fn>
auto run(Fn fn, int ranks) {
  using Result = std::invoke_result_t<Fn&>;
  if constexpr (std::is_void_v<Result>) {
    detail::RunBytes(
        [&] {
          fn();
          return std::string();
        },
        ranks);
  } else if constexpr (std::is_convertible_v<Result, std::string>) {
    return detail::RunBytes([&]() -> std::string { return fn(); }, ranks);
  } else {
    static_assert(std::is_trivially_copyable_v<Result>,
                  "results are strings of bytes, or of a trivially copyable type");
    std::vector<Result> results;
    for (const std::string& bytes : detail::RunBytes(
             [&] {
               const Result result = fn();
               return std::string(reinterpret_cast<const char*>(&result), sizeof result);
             },
             ranks)) {
      std::memcpy(&results.emplace_back(), bytes.data(), sizeof(Result));
    }
    return results;
  }
}

}  // namespace rueda

#endif  // RUEDA_RUN_HPP_
