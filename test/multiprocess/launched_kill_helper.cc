// A rank of the jobs that launched_kill_test starts: a user's program, with nothing but the C API.
//   launched_kill_helper ELEMENTS VICTIM DELAY_US [RESETS]
// keeps several allreduces of ELEMENTS floats in flight until they fail, and then says with what
// and exits with status 3. Rank VICTIM kills itself DELAY_US after its first round; -1: nobody
// does. Before that each rank in turn aborts the job, RESETS times in all, and all begin anew.
// RESETS -1: instead each rank has a child that keeps open what it has.
// RESETS -2: instead the ranks' children have a job of their own, and all of them end.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

constexpr int kInFlight = 3;
constexpr int kFailed = 3;

long long Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

[[noreturn]] void Die(const char* what) {
  printf("unexpected: %s: %s\n", what, rueda_last_error());
  fflush(stdout);
  _exit(1);
}

void SayWhatFailed(rueda_context* context, rueda_handle handle) {
  const long long now = Now();
  rueda_error error = RUEDA_ERROR_INIT;
  if (rueda_handle_error(context, handle, &error) != RUEDA_OK) Die("rueda_handle_error");
  printf("failed noticed=%lld code=%d recoverable=%d rank=%d pid=%d cause='%s' message='%s'\n", now,
         static_cast<int>(error.code), error.recoverable, error.rank, error.pid, error.cause,
         error.message);
  fflush(stdout);
}

// False once an allreduce has failed, which it says.
bool RunRound(rueda_context* context, std::vector<std::vector<float>>& data) {
  std::vector<std::unique_ptr<TensorOf>> tensors;
  std::vector<rueda_handle> handles;
  std::string refused;
  for (int t = 0; t < kInFlight && refused.empty(); ++t) {
    tensors.push_back(std::make_unique<TensorOf>(data[static_cast<size_t>(t)]));
    const std::string name = std::string("t").append(std::to_string(t));
    const rueda_operation operation = Allreduce(name.c_str(), tensors.back()->get(), RUEDA_MAX);
    rueda_handle handle = 0;
    const rueda_status status = rueda_submit(context, &operation, 1, nullptr, &handle);
    if (status == RUEDA_OK) {
      handles.push_back(handle);
    } else {
      if (status != RUEDA_ABORTED) Die("rueda_submit");
      refused = rueda_last_error();
    }
  }
  bool failed = false;
  for (const rueda_handle handle : handles) {
    if (rueda_wait(context, handle, RUEDA_FOREVER) != RUEDA_OK) {
      if (!failed) SayWhatFailed(context, handle);
      failed = true;
    }
    rueda_release(context, handle);
  }
  if (!failed && !refused.empty()) {  // the loss fell between two submissions
    printf("failed noticed=%lld code=%d message='%s'\n", Now(), static_cast<int>(RUEDA_ABORTED),
           refused.c_str());
    fflush(stdout);
    failed = true;
  }
  for (const std::vector<float>& each : data) {
    if (!failed && each[0] != 1) Die("a wrong maximum");
  }
  return !failed;
}

// One that nobody in this process hears of, which lives on until somebody kills it.
void LeaveAChild() {
  if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) != 0) return;
  while (true) pause();
}

rueda_context* Begin() {
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  options.flags = RUEDA_INIT_READ_ENVIRONMENT;
  rueda_context* context = nullptr;
  if (rueda_init(RUEDA_VERSION, &options, &context) != RUEDA_OK) Die("rueda_init");
  return context;
}

int End(rueda_context* context) {
  if (Execute(context, Barrier()) != RUEDA_OK) Die("a barrier");
  if (rueda_shutdown(context) != RUEDA_OK) Die("rueda_shutdown");
  rueda_context_destroy(context);
  return 0;
}

// As a data loader's worker that has a job with the others' workers.
void HaveAChildBegin() {
  const pid_t child = fork();
  if (child == 0) _exit(End(Begin()));
  int status = -1;
  if (waitpid(child, &status, 0) != child || status != 0) Die("the child");
}

int Main(long elements, int victim, int delay_us, int resets) {
  rueda_context* const context = Begin();
  if (resets == -2) {
    HaveAChildBegin();
    return End(context);
  }
  for (int i = 0; i < resets; ++i) {
    if (i % rueda_size(context) == rueda_rank(context)) (void)rueda_abort(context, "on purpose");
    const rueda_operation barrier = Barrier();
    while (rueda_execute(context, &barrier, 1, RUEDA_FOREVER, nullptr) == RUEDA_OK) continue;
    if (rueda_context_reset(context) != RUEDA_OK) Die("rueda_context_reset");
  }
  std::vector<std::vector<float>> data(kInFlight,
                                       std::vector<float>(static_cast<size_t>(elements), 1));
  // Before the first round: once that is over, all ranks have said it.
  printf("running %d\n", static_cast<int>(getpid()));
  fflush(stdout);
  bool ok = RunRound(context, data);
  if (resets < 0) LeaveAChild();  // all connections are there
  std::thread killer;
  if (ok && delay_us >= 0 && rueda_rank(context) == victim) {
    killer = std::thread([delay_us] {
      usleep(static_cast<useconds_t>(delay_us));
      printf("killed=%lld\n", Now());
      fflush(stdout);
      kill(getpid(), SIGKILL);
    });
  }
  while (ok) ok = RunRound(context, data);
  if (killer.joinable()) killer.join();
  rueda_context_destroy(context);
  return kFailed;
}

}  // namespace
}  // namespace rueda::testing

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) return 2;
  return rueda::testing::Main(atol(argv[1]), atoi(argv[2]), atoi(argv[3]),
                              argc == 5 ? atoi(argv[4]) : 0);
}
