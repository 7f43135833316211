#include "core/base/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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
#include <memory>
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

// What stands in proc(5)'s stat behind "pid (name, with any bytes) ", of a process or a thread;
// empty: it can't be seen.
class Stat {
 public:
  enum Field : size_t { kState = 3, kParent = 4, kFlags = 9, kThreads = 20, kExitCode = 52 };

  static Stat Of(int pid) { return Stat(absl::StrCat("/proc/", pid, "/stat")); }
  // Not an ifstream: ranks look at each other while they wait.
  explicit Stat(const std::string& path) {
    const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    char text[1024];
    const ssize_t n = file.valid() ? read(file.get(), text, sizeof text) : -1;
    gone_ = n < 0 && (errno == ENOENT || errno == ESRCH);
    const absl::string_view all(text, static_cast<size_t>(std::max<ssize_t>(n, 0)));
    const size_t name_end = all.rfind(')');
    if (name_end == absl::string_view::npos || all.size() < name_end + 3) return;
    fields_ = absl::StrSplit(all.substr(name_end + 2), ' ');
  }

  bool gone() const { return gone_; }
  // 0: it can't be seen.
  char state() const { return fields_.empty() || fields_[0].empty() ? '\0' : fields_[0][0]; }
  std::optional<int64_t> Number(Field field) const {
    int64_t number;
    const size_t at = field - kState;
    if (at >= fields_.size() || !absl::SimpleAtoi(fields_[at], &number)) return std::nullopt;
    return number;
  }
  // It has begun to end, and does not come back from the kernel.
  bool exiting() const {
    constexpr int64_t kPfExiting = 4;  // linux/sched.h
    return (Number(kFlags).value_or(0) & kPfExiting) != 0;
  }

 private:
  std::vector<std::string> fields_;
  bool gone_ = false;
};

// /proc may show the processes of another namespace.
bool IsProcOurs() {
  char self[16] = "";
  (void)!readlink("/proc/self", self, sizeof self - 1);
  return absl::StrCat(getpid()) == self;
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
  return Stat::Of(pid).state();
}

// Not glibc's pidfd_open: the header of 2.36 declares it as a C++ function.
UniqueFd OpenPidfd(int pid) {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

std::optional<int> WaitStatusUntilReaped(int pid) {
  if (ProcessState(pid) != 'Z' || !HasEnded(pid)) return std::nullopt;
  const std::optional<int64_t> status = Stat::Of(pid).Number(Stat::kExitCode);
  // Who may not look gets 0; he can't read such a link either (proc(5)).
  char link[64];
  const std::string path = absl::StrCat("/proc/", pid, "/ns/user");
  if (status == 0 && readlink(path.c_str(), link, sizeof link) < 0) return std::nullopt;
  return status;
}

std::optional<int> WaitStatusOfDying(int pid) {
  const Stat stat = Stat::Of(pid);
  const int64_t status = stat.Number(Stat::kExitCode).value_or(0);
  // Who may not look gets the status 0.
  if (!stat.exiting() || status == 0 || !IsProcOurs()) return std::nullopt;
  const std::string threads = absl::StrCat("/proc/", pid, "/task");
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(threads.c_str()), closedir);
  if (folder == nullptr) return std::nullopt;
  errno = 0;
  while (const dirent* const each = readdir(folder.get())) {
    if (each->d_name[0] == '.') continue;
    const Stat thread(absl::StrCat(threads, "/", each->d_name, "/stat"));
    if (!thread.exiting() && !thread.gone()) return std::nullopt;
    errno = 0;
  }
  return errno == 0 ? std::optional<int>(status) : std::nullopt;
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
  const Stat stat = Stat::Of(pid);
  return (stat.state() == 'Z' || stat.state() == 'X') &&
         stat.Number(Stat::kThreads).value_or(2) <= 1;
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
  return static_cast<int>(Stat::Of(pid).Number(Stat::kParent).value_or(-1));
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
