// Writes to connections that are gone.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <time.h>

namespace rueda {

// While it lives, a write of this thread's to a connection that is gone raises no SIGPIPE, whatever
// the program does about that signal. For libraries that write without MSG_NOSIGNAL, on a thread
// that is not ours.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoBrokenPipe() {
    sigset_t pending;
    sigpending(&pending);
    if (!was_pending_ && sigismember(&pending, SIGPIPE) == 1) {
      constexpr timespec kNow = {0, 0};
      sigtimedwait(&pipe_, nullptr, &kNow);
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_;
};

}  // namespace rueda
