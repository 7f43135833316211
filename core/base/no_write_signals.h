// Writes that fail, without the signals that would end the program.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <time.h>

namespace rueda {

// While it lives, a write of this thread's to a connection that is gone raises no SIGPIPE, and one
// past the limit on file sizes (RLIMIT_FSIZE) no SIGXFSZ, whatever the program does about those
// signals: the write fails with EPIPE or EFBIG. For threads that are not ours; ours block these
// signals anyway. Makes system calls only, and may run in a signal handler.
class NoWriteSignals {
 public:
  NoWriteSignals() {
    sigset_t pending;
    sigpending(&pending);
    sigemptyset(&raised_here_);
    sigset_t blocked;
    sigemptyset(&blocked);
    for (const int signal : {SIGPIPE, SIGXFSZ}) {
      sigaddset(&blocked, signal);
      if (sigismember(&pending, signal) == 0) sigaddset(&raised_here_, signal);
    }
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~NoWriteSignals() {
    constexpr timespec kNow = {0, 0};
    while (sigtimedwait(&raised_here_, nullptr, &kNow) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoWriteSignals(const NoWriteSignals&) = delete;
  NoWriteSignals& operator=(const NoWriteSignals&) = delete;

 private:
  sigset_t raised_here_;  // those that were not pending before
  sigset_t before_;
};

}  // namespace rueda
