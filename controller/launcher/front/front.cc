#include "controller/launcher/front/front.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "controller/launcher/decide/report.h"
#include "controller/launcher/decide/supervisor.h"
#include "controller/launcher/front/patience.h"
#include "controller/launcher/host/inheritance.h"

namespace rueda {
namespace {

// A job that has just been started may wait for all of its ranks.
constexpr Nanos kStartWatched = 60 * kSecond;
constexpr size_t kHostsToldMax = 256;

}  // namespace

Front::Front(FrontOptions options, std::vector<FrontHost> hosts, UniqueFd signal_fd, Output* output)
    : options_(std::move(options)),
      hosts_(std::move(hosts)),
      signal_fd_(std::move(signal_fd)),
      output_(output),
      ranks_(static_cast<size_t>(options_.ranks)),
      first_failure_(options_.ranks) {
  for (const FrontHost& host : hosts_) {
    for (int i = 0; i < host.place.share.ranks; ++i) {
      ranks_[static_cast<size_t>(host.place.share.first + i)].host = host.place.name;
    }
  }
}

int Front::TimeoutMs(Nanos deadline) const {
  if (deadline == kForever) return -1;
  return PollTimeoutMs(deadline - MonotonicNow());
}

void Front::Say(const std::string& text) {
  output_->Say(absl::StrCat("ruedarun: ", text, "\n"));
}

int Front::Run() {
  WatchJob();
  Drain();
  return ending_.exit_code;
}

bool Front::AllGone() const {
  return std::all_of(hosts_.begin(), hosts_.end(),
                     [](const FrontHost& host) { return host.ranks->gone(); });
}

void Front::WatchJob() {
  std::vector<pollfd> waits;
  while (!AllGone()) {
    waits = {{signal_fd_.get(), POLLIN, 0}};
    for (const FrontHost& host : hosts_) host.ranks->AddWaits(&waits);
    output_->AddWaits(&waits);
    const Nanos deadline =
        std::min({patience_, first_failure_.deadline(), ask_at_, stop_at_, output_->deadline()});
    if (poll(waits.data(), waits.size(), TimeoutMs(deadline)) < 0) continue;
    if (waits[0].revents != 0) OnSignals();
    for (size_t host = 0; host < hosts_.size(); ++host) {
      hosts_[host].ranks->Advance(waits);
      OnMessages(host);
    }
    output_->Advance(waits);
    if (output_->reader_gone()) OnReaderGone();
    const Nanos now = MonotonicNow();
    if (now >= ask_at_) {
      AskHosts();
      ask_at_ = now + AskEvery();
    }
    if (now >= stop_at_) {
      stop_at_ = kForever;
      Say(StopText(options_.stop_after));
      for (const FrontHost& host : hosts_) host.ranks->Send({MessageKind::kSignal, -1, 0, SIGUSR1});
    }
    first_failure_.OnTime(now);
    SayFirstFailure();
    if (now >= patience_) {
      for (const FrontHost& host : hosts_) host.ranks->Kill();
      patience_ = kForever;
    }
  }
  first_failure_.OnTime(kForever);
  SayFirstFailure();
  ending_.exit_code = ExitCode();
}

void Front::Drain() {
  if (ending_signals_ > 0) patience_ = std::min(patience_, MonotonicNow() + kDrainWhenAsked);
  std::vector<pollfd> waits;
  bool table_said = false;
  for (;;) {
    const bool waited_enough = MonotonicNow() >= patience_;
    if (waited_enough) output_->GiveUp();
    if (output_->TakeLast() && !table_said) {
      table_said = true;
      output_->Say(EndingsTable(ranks_, ending_));
      output_->TakeLast();
    }
    if (waited_enough || (table_said && output_->flushed())) return;
    waits = {{signal_fd_.get(), POLLIN, 0}};
    output_->AddWaits(&waits);
    if (poll(waits.data(), waits.size(), TimeoutMs(patience_)) >= 0 && waits[0].revents != 0) {
      OnSignals();
    }
  }
}

void Front::OnSignals() {
  while (const int signal = NextSignal(signal_fd_.get())) {
    for (const FrontHost& host : hosts_) host.ranks->Send({MessageKind::kSignal, -1, 0, signal});
    if (EndsJob(signal)) {
      const Nanos now = MonotonicNow();
      if (AllGone()) {
        // Only the printing is left, and somebody does not want to wait for it.
        patience_ = ending_signals_ > 0 ? now : std::min(patience_, now + kDrainWhenAsked);
      } else {
        if (ending_.signal == 0) ending_.signal = signal;
        const Nanos grace = ending_signals_ > 0 ? 0 : options_.grace;
        patience_ = std::min(patience_, now + grace + kSupervisorSlack);
      }
      ++ending_signals_;
    }
    // The supervisors, in groups of their own, go on and stop the ranks.
    if (signal == SIGTSTP) kill(getpid(), SIGSTOP);
  }
}

// As SIGPIPE ends the programs of a pipeline, behind `| head` for instance.
void Front::OnReaderGone() {
  if (ending_.signal != 0 || first_failure_.rank() >= 0) return;  // it ends anyhow
  ending_.signal = SIGPIPE;
  Say("nobody reads the ranks' output any more; ending the job");
  for (const FrontHost& host : hosts_) host.ranks->Send({MessageKind::kSignal, -1, 0, SIGTERM});
  patience_ = std::min(patience_, MonotonicNow() + options_.grace + kSupervisorSlack);
}

void Front::OnAgentSignal(size_t host, int signal) {
  if (ending_.signal != 0 || first_failure_.rank() >= 0) return;  // it ends anyhow
  ending_.signal = signal;
  ending_.signalled_host = hosts_[host].place.name;
  Say(absl::StrCat("the job ends after ", CauseText(ending_)));
  EndOthers(host);
}

// One question at a time counts: while this process was stopped, or its output was full, nobody
// could answer.
Nanos Front::AskEvery() const {
  return options_.host_timeout / kQuestions;
}

void Front::AskHosts() {
  for (FrontHost& host : hosts_) {
    if (host.ranks->gone()) continue;
    if (output_->full()) host.unanswered = 0;
    if (host.unanswered++ == kQuestions - 1) {
      Say(absl::StrCat(hosts_.size() > 1 ? absl::StrCat("host ", host.place.name, ": ") : "",
                       "what looks after its ranks has not answered for ",
                       (kQuestions - 1) * AskEvery() / kSecond, " s (is it stopped?)"));
      host.ranks->Kill();
    } else {
      host.ranks->Send({MessageKind::kAsk});
    }
  }
}

void Front::OnMessages(size_t host) {
  Message message;
  while (hosts_[host].ranks->Receive(&message)) {
    hosts_[host].unanswered = 0;
    OnMessage(host, message);
  }
}

void Front::OnMessage(size_t host, const Message& message) {
  switch (message.kind) {
    case MessageKind::kRankStarted:
      ranks_[static_cast<size_t>(message.rank)].pid = message.pid;
      if (options_.verbose) {
        Say(absl::StrCat(RankText(message.rank), " started, pid ", message.pid));
      }
      break;
    case MessageKind::kStartFailed:
    case MessageKind::kPinFailed:
    case MessageKind::kExecFailed:
      SayWhyNotStarted(host, message);
      break;
    case MessageKind::kRankEnded:
      OnRankEnded(host, message);
      break;
    case MessageKind::kFinished:
      if (finished_code_ == 0) finished_code_ = message.value;
      break;
    case MessageKind::kLost:
      OnHostLost(host);
      break;
    case MessageKind::kSignal:
      OnAgentSignal(host, message.value);
      break;
    case MessageKind::kEndJob:
    case MessageKind::kVerdict:
    case MessageKind::kAsk:
    case MessageKind::kHere:
    // Of elastic jobs.
    case MessageKind::kStart:
    case MessageKind::kClear:
    case MessageKind::kKill:
    case MessageKind::kNoMore:
    case MessageKind::kToRank:
    case MessageKind::kFromRank:
    case MessageKind::kKeeps:
    case MessageKind::kRankDies:
      break;
  }
}

void Front::SayWhyNotStarted(size_t host, const Message& message) {
  if (message.kind == MessageKind::kStartFailed) EndOthers(host);
  if (start_failed_) return;  // the others fail for the same reason
  start_failed_ = true;
  const char* what = message.kind == MessageKind::kStartFailed ? "can't start a process"
                     : message.kind == MessageKind::kPinFailed ? "can't pin it to its core"
                                                               : "can't execute";
  const std::string program =
      message.kind == MessageKind::kExecFailed ? absl::StrCat(" '", options_.program, "'") : "";
  Say(absl::StrCat(RankText(message.rank), ": ", what, program, ": ", strerror(message.value)));
}

void Front::OnRankEnded(size_t host, const Message& message) {
  RankEnding& rank = ranks_[static_cast<size_t>(message.rank)];
  rank.ended = true;
  rank.wait_status = message.value;
  rank.blames = message.blames;
  rank.ended_by_us = (message.flags & Message::kEndedByUs) != 0;
  const bool failed = HasFailed(rank);
  if (failed || MayBeAwaited(rank)) {
    for (size_t i = 0; i < hosts_.size(); ++i) {
      if (i == host) continue;
      hosts_[i].ranks->Send(
          {MessageKind::kVerdict, message.rank, message.pid, message.value, 0, message.blames});
    }
  }
  if (failed && ending_.signal == 0) EndOthers(host);
  // How a rank ends that was told to is no failure. On one host the supervisor knows whether it
  // was.
  const bool counts = hosts_.size() > 1
                          ? ending_.signal == 0
                          : (message.flags & Message::kFirstFailure) != 0 || first_failure_.open();
  if (failed && counts) {
    first_failure_.OnFailed(message.rank, message.blames, MonotonicNow());
    SayFirstFailure();
  }
  if (options_.verbose && message.rank != ending_.first_failure) {
    JobEnding known = ending_;
    if (known.first_failure < 0) known.first_failure = first_failure_.first();
    Say(absl::StrCat(RankText(message.rank), " (pid ", message.pid, ") ", EndingText(rank, known)));
  }
}

// Whether others, on other hosts, may still wait for its init, though it has ended well. With very
// many hosts that would be more messages than it is worth.
bool Front::MayBeAwaited(const RankEnding& rank) const {
  return !rank.ended_by_us && hosts_.size() <= kHostsToldMax &&
         MonotonicNow() < started_ + kStartWatched;
}

void Front::SayFirstFailure() {
  if (ending_.first_failure >= 0 || first_failure_.rank() < 0) return;
  ending_.first_failure = first_failure_.rank();
  const RankEnding& rank = ranks_[static_cast<size_t>(ending_.first_failure)];
  // Such as one that is stopped, or whose host is cut off.
  if (rank.blames >= 0 && rank.blames < options_.ranks && rank.blames != ending_.first_failure) {
    const RankEnding& blamed = ranks_[static_cast<size_t>(rank.blames)];
    const bool has_failed = HasFailed(blamed);
    if (!has_failed && blamed.lost && hosts_.size() > 1) {  // with its host, as has been said
      ending_.first_failure = -1;
      return;
    }
    if (!has_failed) ending_.blamed = rank.blames;
  }
  const std::string because =
      ending_.blamed < 0 ? "" : absl::StrCat(", because of ", RankText(rank.blames));
  Say(absl::StrCat(RankText(ending_.first_failure), " (pid ", rank.pid, ") ",
                   EndingText(rank, ending_), because,
                   options_.ranks > 1 ? "; ending the others" : ""));
}

void Front::OnHostLost(size_t host) {
  Say(hosts_[host].ranks->loss());
  const JobHost& place = hosts_[host].place;
  for (int i = 0; i < place.share.ranks; ++i) {
    ranks_[static_cast<size_t>(place.share.first + i)].lost = true;
  }
  if (place.is_here && hosts_.size() == 1) {
    ending_.supervisor_died = ending_.first_failure < 0;
    return;
  }
  if (ending_.lost_host.empty()) ending_.lost_host = place.name;
  // It may have been missed by other ranks before.
  if (ending_.blamed >= 0 && ranks_[static_cast<size_t>(ending_.blamed)].lost) {
    ending_.blamed = ending_.first_failure = -1;
  }
  EndOthers(host);
}

// A host ends its own ranks by itself.
void Front::EndOthers(size_t host) {
  if (hosts_.size() == 1) return;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (i != host) hosts_[i].ranks->Send({MessageKind::kEndJob});
  }
  patience_ = std::min(patience_, MonotonicNow() + options_.grace + kSupervisorSlack);
}

std::string Front::RankText(Rank rank) const {
  const std::string text = absl::StrCat("rank ", rank);
  if (hosts_.size() == 1) return text;
  return absl::StrCat(text, " on host ", ranks_[static_cast<size_t>(rank)].host);
}

int Front::ExitCode() const {
  const bool lost = ending_.supervisor_died || !ending_.lost_host.empty();
  if (ending_.first_failure >= 0) {
    // The one that is blamed may have ended since.
    const bool blamed =
        ending_.blamed >= 0 && HasFailed(ranks_[static_cast<size_t>(ending_.blamed)]);
    const Rank rank = blamed ? ending_.blamed : ending_.first_failure;
    return ExitCodeOf(ranks_[static_cast<size_t>(rank)].wait_status);
  }
  // To the supervisors it was SIGTERM.
  if (ending_.signal == SIGPIPE) return lost || finished_code_ != 0 ? 128 + SIGPIPE : 0;
  if (hosts_.size() > 1) {
    if (ending_.signal != 0) return lost || finished_code_ != 0 ? 128 + ending_.signal : 0;
    if (lost) return 1;
  }
  if (finished_code_ != 0) return finished_code_;
  if (ending_.signal != 0) return lost ? 128 + ending_.signal : 0;
  return lost ? 1 : 0;
}

}  // namespace rueda
