#include "controller/launcher/inheritance.h"

#include <errno.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace rueda {
namespace {

bool IsIgnored(int signal) {
  struct sigaction action;
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

absl::StatusOr<Inheritance> TakeOver() {
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
