#include "core/base/threads.h"

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <new>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/log.h"

namespace rueda {
namespace {

// While it lives, threads that this one starts block all signals but those of their own faults.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) {
      sigdelset(&blocked, fault);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Made when the library is loaded: there is no memory for it when it is needed.
const absl::Status& out_of_memory =
    *new absl::Status(absl::ResourceExhaustedError("out of memory"));

}  // namespace

absl::Status StartThread(absl::string_view what, const char* name, std::function<void()> body,
                         std::thread* thread) {
  const SignalsBlocked blocked;
  try {
    *thread = std::thread([body = std::move(body), name, rank = LogRank()] {
      SetLogRank(rank);
      pthread_setname_np(pthread_self(), name);
      body();
    });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("starting ", what, ": ", error.what()));
  }
  return absl::OkStatus();
}

absl::Status CurrentException() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return out_of_memory;
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  } catch (...) {
    return absl::InternalError("an exception of unknown type");
  }
}

}  // namespace rueda
