#include "controller/launcher/host/inheritance.h"

#include <errno.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "core/base/process.h"

namespace rueda {
namespace {

bool IsIgnored(int signal) {
  struct sigaction action;
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// What ruedarun can't do without, and old kernels and filters of system calls don't have.
absl::Status CheckSystemCalls() {
  const auto refused = [](const char* call) {
    return absl::FailedPreconditionError(
        absl::StrCat("this system refuses ", call, " (", strerror(errno),
                     "), by which ruedarun watches the ranks: it needs Linux 5.4 or newer, and a "
                     "container whose filter of system calls (seccomp) allows it"));
  };
  const UniqueFd self = OpenPidfd(getpid());
  if (!self.valid()) return refused("pidfd_open");
  siginfo_t info;
  const int waited =
      waitid(P_PIDFD, static_cast<id_t>(self.get()), &info, WEXITED | WNOHANG | WNOWAIT);
  if (waited != 0 && errno != ECHILD) return refused("waitid");  // this is no child of its own
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Inheritance> TakeOver() {
  RUEDA_RETURN_IF_ERROR(CheckSystemCalls());
  Inheritance inheritance;
  inheritance.ignores_hangup = IsIgnored(SIGHUP);
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2, SIGCONT}) sigaddset(&signals, signal);
  for (const int signal : {SIGINT, SIGHUP, SIGTSTP}) {
    if (!IsIgnored(signal)) sigaddset(&signals, signal);
  }
  for (const int each : {SIGTERM, SIGUSR1, SIGUSR2, SIGCONT, SIGCHLD}) signal(each, SIG_DFL);
  for (const int each : {SIGPIPE, SIGXFSZ}) signal(each, SIG_IGN);  // the write fails
  sigset_t blocked = signals;
  sigaddset(&blocked, SIGCHLD);
  sigprocmask(SIG_SETMASK, &blocked, nullptr);

  getrlimit(RLIMIT_NOFILE, &inheritance.open_files);
  rlimit all = inheritance.open_files;
  all.rlim_cur = all.rlim_max;  // two pipes for each rank
  setrlimit(RLIMIT_NOFILE, &all);

  inheritance.signals.reset(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!inheritance.signals.valid()) return ErrnoStatus(errno, "making a signalfd");
  return inheritance;
}

int NextSignal(int signals) {
  signalfd_siginfo info;
  const bool there = read(signals, &info, sizeof info) == static_cast<ssize_t>(sizeof info);
  return there ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace rueda
