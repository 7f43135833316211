#include "core/base/process.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace rueda {
namespace {

constexpr int kNoQuota = 1 << 20;

int CoresOf(double quota, double period) {
  return quota > 0 && period > 0 ? std::max(1, static_cast<int>(std::ceil(quota / period)))
                                 : kNoQuota;
}

// Of one cgroup, version 2: "150000 100000", or "max 100000".
int QuotaCoresOf(const std::string& cgroup) {
  std::ifstream file(absl::StrCat("/sys/fs/cgroup", cgroup, "/cpu.max"));
  double quota = 0, period = 0;
  return file >> quota >> period ? CoresOf(quota, period) : kNoQuota;
}

// Whole cores of the tightest quota, rounded up; a large number when there is none.
int QuotaCores() {
  int cores = QuotaCoresOf("");
  std::ifstream own("/proc/self/cgroup");
  std::string line;
  while (std::getline(own, line)) {
    if (!absl::StartsWith(line, "0::/")) continue;  // a hierarchy of version 1
    for (std::string path = line.substr(3); path.size() > 1; path.resize(path.rfind('/'))) {
      cores = std::min(cores, QuotaCoresOf(path));
    }
  }
  double quota = 0, period = 0;
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (quota_file >> quota && period_file >> period) cores = std::min(cores, CoresOf(quota, period));
  return cores;
}

// "state parent ...", of "pid (name, with any bytes) state parent ..."; empty: it can't be seen.
std::string StatOf(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text, '\0');
  const size_t name_end = text.rfind(')');
  return name_end == std::string::npos ? "" : text.substr(std::min(name_end + 2, text.size()));
}

// glibc has names of signals (sigabbrev_np) only since 2.32.
constexpr std::pair<int, const char*> kSignals[] = {
    {SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},       {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
    {SIGTRAP, "SIGTRAP"}, {SIGABRT, "SIGABRT"},     {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
    {SIGKILL, "SIGKILL"}, {SIGUSR1, "SIGUSR1"},     {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"},
    {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"},     {SIGTERM, "SIGTERM"}, {SIGSTKFLT, "SIGSTKFLT"},
    {SIGCHLD, "SIGCHLD"}, {SIGCONT, "SIGCONT"},     {SIGSTOP, "SIGSTOP"}, {SIGTSTP, "SIGTSTP"},
    {SIGTTIN, "SIGTTIN"}, {SIGTTOU, "SIGTTOU"},     {SIGURG, "SIGURG"},   {SIGXCPU, "SIGXCPU"},
    {SIGXFSZ, "SIGXFSZ"}, {SIGVTALRM, "SIGVTALRM"}, {SIGPROF, "SIGPROF"}, {SIGWINCH, "SIGWINCH"},
    {SIGPOLL, "SIGPOLL"}, {SIGPWR, "SIGPWR"},       {SIGSYS, "SIGSYS"}};

// Null: a real-time signal, or none.
const char* NameOfSignal(int signal) {
  const auto* const found = std::find_if(std::begin(kSignals), std::end(kSignals),
                                         [&](const auto& named) { return named.first == signal; });
  return found == std::end(kSignals) ? nullptr : found->second;
}

}  // namespace

std::string WaitStatusText(int status) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    const char* name = NameOfSignal(signal);
    return absl::StrCat("killed by signal ", signal,
                        name == nullptr ? "" : absl::StrCat(" (", name, ")"));
  }
  return absl::StrCat("exited with status ", WEXITSTATUS(status));
}

char ProcessState(int pid) {
  const std::string stat = StatOf(pid);
  return stat.empty() ? '\0' : stat[0];
}

// Not glibc's pidfd_open: the header of 2.36 declares it as a C++ function.
UniqueFd OpenPidfd(int pid) {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

std::optional<int> WaitStatusUntilReaped(int pid) {
  if (ProcessState(pid) != 'Z' || !HasEnded(pid)) return std::nullopt;
  const std::string stat = StatOf(pid);
  const std::vector<absl::string_view> fields = absl::StrSplit(stat, ' ');
  constexpr size_t kExitCode = 49;  // proc(5): the 52nd, of which the state is the third
  int status;
  if (fields.size() <= kExitCode || !absl::SimpleAtoi(fields[kExitCode], &status)) {
    return std::nullopt;
  }
  // Who may not look gets 0; he can't read such a link either (proc(5)).
  char link[64];
  const std::string path = absl::StrCat("/proc/", pid, "/ns/user");
  if (status == 0 && readlink(path.c_str(), link, sizeof link) < 0) return std::nullopt;
  return status;
}

bool HasEnded(int pid) {
  const UniqueFd pidfd = OpenPidfd(pid);
  if (pidfd.valid()) {
    pollfd end = {pidfd.get(), POLLIN, 0};
    return poll(&end, 1, 0) == 1;
  }
  if (errno == ESRCH || (kill(pid, 0) != 0 && errno == ESRCH)) return true;
  // A sandbox without pidfds. Where other threads run on, 'Z' is the state of the main thread
  // alone.
  const std::string stat = StatOf(pid);
  const std::vector<absl::string_view> fields = absl::StrSplit(stat, ' ');
  constexpr size_t kThreads = 17;
  int threads;
  return fields.size() > kThreads && (fields[0] == "Z" || fields[0] == "X") &&
         absl::SimpleAtoi(fields[kThreads], &threads) && threads <= 1;
}

size_t MakeRoomForDescriptors(size_t count) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return count;
  constexpr rlim_t kOthers = 64;  // of a program that has a low limit
  const rlim_t wanted = std::max(limit.rlim_cur / 2, kOthers) + count;
  if (limit.rlim_cur >= wanted) return limit.rlim_cur;
  rlimit more = limit;
  more.rlim_cur = std::min(limit.rlim_max, wanted);
  return (setrlimit(RLIMIT_NOFILE, &more) == 0 ? more : limit).rlim_cur;
}

bool IsTraced() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int tracer;
    if (word == "TracerPid:") return status >> tracer && tracer != 0;
  }
  return false;
}

int ParentOf(int pid) {
  const std::string stat = StatOf(pid);
  const std::vector<absl::string_view> fields = absl::StrSplit(stat, ' ');
  int parent;
  return fields.size() >= 2 && absl::SimpleAtoi(fields[1], &parent) ? parent : -1;
}

std::string SignalName(int signal) {
  const char* name = NameOfSignal(signal);
  return name == nullptr ? absl::StrCat("signal ", signal) : name;
}

std::vector<int> AllowedCores() {
  cpu_set_t sets[16] = {};  // of 1,024 CPUs each
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof sets, sets) != 0) return cores;
  for (int core = 0; core < static_cast<int>(8 * sizeof sets); ++core) {
    if (CPU_ISSET_S(static_cast<size_t>(core), sizeof sets, sets)) cores.push_back(core);
  }
  return cores;
}

int UsableCores() {
  return std::max(1, std::min(static_cast<int>(AllowedCores().size()), QuotaCores()));
}

}  // namespace rueda
