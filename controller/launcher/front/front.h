// The launcher process while the job runs: passes signals on to the ranks' hosts and news of
// failures between them, prints what the ranks write, and says how the job ended.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "controller/launcher/decide/first_failure.h"
#include "controller/launcher/decide/rank_plan.h"
#include "controller/launcher/decide/report.h"
#include "controller/launcher/front/output.h"
#include "controller/launcher/host/host_ranks.h"
#include "core/base/clock.h"
#include "core/base/unique_fd.h"

namespace rueda {

struct FrontOptions {
  std::string program;  // as messages call it
  int ranks = 1;
  bool verbose = false;
  Nanos grace = 5 * kSecond;
  Nanos host_timeout = 30 * kSecond;  // of what looks after a host's ranks
  Nanos stop_after = kForever;        // when the ranks are warned
};

struct FrontHost {
  JobHost place;
  std::unique_ptr<HostRanks> ranks;
  int unanswered = 0;  // questions
};

// Owner: main; its only thread. `signal_fd`: a signalfd, not blocking, of the signals to take,
// which are blocked too; SIGPIPE is ignored.
class Front {
 public:
  Front(FrontOptions options, std::vector<FrontHost> hosts, UniqueFd signal_fd, Output* output);

  // Until the job is over and everything is printed. The exit code.
  int Run();

 private:
  void WatchJob();
  void Drain();
  bool AllGone() const;
  void OnSignals();
  void OnReaderGone();
  // An agent got a signal that ends the job.
  void OnAgentSignal(size_t host, int signal);
  // Whether those on the hosts are still there: asked now and then.
  void AskHosts();
  Nanos AskEvery() const;
  void OnMessages(size_t host);
  void OnMessage(size_t host, const Message& message);
  bool MayBeAwaited(const RankEnding& rank) const;
  void OnRankEnded(size_t host, const Message& message);
  void SayFirstFailure();
  // What happened to the host's ranks is not known, or known by now.
  void OnHostLost(size_t host);
  void EndOthers(size_t host);
  void SayWhyNotStarted(size_t host, const Message& message);
  std::string RankText(Rank rank) const;
  int ExitCode() const;
  void Say(const std::string& text);
  int TimeoutMs(Nanos deadline) const;

  const FrontOptions options_;
  std::vector<FrontHost> hosts_;
  const UniqueFd signal_fd_;
  Output* const output_;
  std::vector<RankEnding> ranks_;
  FirstFailure first_failure_;
  JobEnding ending_;
  bool start_failed_ = false;
  int finished_code_ = 0;   // of the first host that finished with another than 0
  int ending_signals_ = 0;  // how often we were asked to end
  // When a host that does not answer, or a reader of our output, is waited for no longer.
  Nanos patience_ = kForever;
  Nanos ask_at_ = 0;
  const Nanos started_ = MonotonicNow();
  Nanos stop_at_ = DeadlineAfter(started_, options_.stop_after);  // when the ranks are warned
};

}  // namespace rueda
