// The launcher process: passes signals on to the supervisor process, prints what the ranks write,
// and says how the job ended.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "controller/launcher/channel.h"
#include "controller/launcher/output.h"
#include "controller/launcher/report.h"
#include "core/base/clock.h"
#include "core/base/unique_fd.h"

namespace rueda {

struct FrontOptions {
  std::string program;  // as messages call it
  std::string host;
  int ranks = 1;
  bool verbose = false;
  Nanos grace = 5 * kSecond;
  std::vector<pid_t> other_children;  // that this process had before it was ruedarun
};

// Owner: main; its only thread. It has forked the supervisor and adopts orphans itself, should that
// die. SIGCHLD is blocked and SIGPIPE is ignored. `signal_fd`: a signalfd, not blocking, of the
// signals to take, which are blocked too.
class Front {
 public:
  Front(FrontOptions options, Channel channel, pid_t supervisor, UniqueFd supervisor_pidfd,
        UniqueFd signal_fd, Output* output);

  // Until the job is over and everything is printed. The exit code.
  int Run();

 private:
  void WatchJob();
  void Drain();
  void OnSignals();
  void OnMessages();
  void OnRankEnded(const Message& message);
  // The supervisor did not end the job as it should have.
  void OnSupervisorLost(int wait_status);
  void SayWhyNotStarted(const Message& message);
  void Say(const std::string& text);
  int TimeoutMs(Nanos deadline) const;

  const FrontOptions options_;
  Channel channel_;
  const pid_t supervisor_;
  const UniqueFd supervisor_pidfd_;
  const UniqueFd signal_fd_;
  Output* const output_;
  std::vector<RankEnding> ranks_;
  JobEnding ending_;
  bool finished_ = false;         // the supervisor has said so
  bool supervisor_gone_ = false;  // and is collected
  bool said_why_not_started_ = false;
  int ending_signals_ = 0;  // how often we were asked to end
  // When a supervisor that does not answer, or a reader of our output, is waited for no longer.
  Nanos patience_ = kForever;
};

}  // namespace rueda
