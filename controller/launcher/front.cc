#include "controller/launcher/front.h"

#include <errno.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "controller/launcher/children.h"
#include "core/base/process.h"

namespace rueda {
namespace {

// The supervisor is done 1.5 s after the grace; one that isn't by then is stopped or stuck.
constexpr Nanos kSupervisorSlack = 3 * kSecond;
// How long readers may keep ruedarun once it was asked to end and the ranks have.
constexpr Nanos kDrainWhenAsked = kSecond;
constexpr Nanos kSweepLimit = 2 * kSecond;

bool Ends(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
}

}  // namespace

Front::Front(FrontOptions options, Channel channel, pid_t supervisor, UniqueFd supervisor_pidfd,
             UniqueFd signal_fd, Output* output)
    : options_(std::move(options)),
      channel_(std::move(channel)),
      supervisor_(supervisor),
      supervisor_pidfd_(std::move(supervisor_pidfd)),
      signal_fd_(std::move(signal_fd)),
      output_(output),
      ranks_(static_cast<size_t>(options_.ranks)) {}

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

void Front::WatchJob() {
  std::vector<pollfd> waits;
  while (!supervisor_gone_) {
    const short channel_events =
        static_cast<short>(POLLIN | (channel_.wants_write() ? POLLOUT : 0));
    waits = {{signal_fd_.get(), POLLIN, 0},
             {supervisor_pidfd_.get(), POLLIN, 0},
             {channel_.fd(), channel_events, 0}};
    output_->AddWaits(&waits);
    if (poll(waits.data(), waits.size(), TimeoutMs(patience_)) < 0) continue;
    if (waits[0].revents != 0) OnSignals();
    if (waits[2].revents != 0) {
      channel_.Flush();
      OnMessages();
    }
    output_->Advance(&waits[3]);
    if (MonotonicNow() >= patience_) {
      kill(supervisor_, SIGKILL);
      patience_ = kForever;
    }
    int status;
    if (waits[1].revents != 0 && waitpid(supervisor_, &status, WNOHANG) == supervisor_) {
      supervisor_gone_ = true;
      OnMessages();  // its last words
      if (!finished_) OnSupervisorLost(status);
    }
  }
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
      output_->Say(EndingsTable(ranks_, ending_, options_.host));
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
  signalfd_siginfo info;
  while (read(signal_fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (!supervisor_gone_) channel_.Send({MessageKind::kSignal, -1, 0, signal});
    if (Ends(signal)) {
      const Nanos now = MonotonicNow();
      if (supervisor_gone_) {
        // Only the printing is left, and somebody does not want to wait for it.
        patience_ = ending_signals_ > 0 ? now : std::min(patience_, now + kDrainWhenAsked);
      } else {
        if (ending_.signal == 0) ending_.signal = signal;
        const Nanos grace = ending_signals_ > 0 ? 0 : options_.grace;
        patience_ = std::min(patience_, now + grace + kSupervisorSlack);
      }
      ++ending_signals_;
    }
    // The supervisor, in a group of its own, goes on and stops the ranks.
    if (signal == SIGTSTP) kill(getpid(), SIGSTOP);
  }
}

void Front::OnMessages() {
  Message message;
  while (channel_.Receive(&message) == Channel::Got::kMessage) {
    switch (message.kind) {
      case MessageKind::kRankStarted:
        ranks_[static_cast<size_t>(message.rank)].pid = message.pid;
        if (options_.verbose) {
          Say(absl::StrCat("rank ", message.rank, " started, pid ", message.pid));
        }
        break;
      case MessageKind::kStartFailed:
      case MessageKind::kPinFailed:
      case MessageKind::kExecFailed:
        SayWhyNotStarted(message);
        break;
      case MessageKind::kRankEnded:
        OnRankEnded(message);
        break;
      case MessageKind::kFinished:
        finished_ = true;
        ending_.exit_code = message.value;
        break;
      case MessageKind::kSignal:
        break;
    }
  }
}

void Front::SayWhyNotStarted(const Message& message) {
  if (said_why_not_started_) return;  // the others fail for the same reason
  said_why_not_started_ = true;
  const char* what = message.kind == MessageKind::kStartFailed ? "can't start a process"
                     : message.kind == MessageKind::kPinFailed ? "can't pin it to its core"
                                                               : "can't execute";
  const std::string program =
      message.kind == MessageKind::kExecFailed ? absl::StrCat(" '", options_.program, "'") : "";
  Say(absl::StrCat("rank ", message.rank, ": ", what, program, ": ", strerror(message.value)));
}

void Front::OnRankEnded(const Message& message) {
  RankEnding& rank = ranks_[static_cast<size_t>(message.rank)];
  rank.ended = true;
  rank.wait_status = message.value;
  rank.ended_by_us = (message.flags & Message::kEndedByUs) != 0;
  const bool first = (message.flags & Message::kFirstFailure) != 0;
  if (first) ending_.first_failure = message.rank;
  if (first || options_.verbose) {
    Say(absl::StrCat("rank ", message.rank, " (pid ", message.pid, ") ", EndingText(rank, ending_),
                     first && options_.ranks > 1 ? "; ending the others" : ""));
  }
}

void Front::OnSupervisorLost(int wait_status) {
  Say(absl::StrCat("its supervisor process (pid ", supervisor_, ") ", WaitStatusText(wait_status),
                   "; killing all ranks"));
  const auto rank_of = [&](pid_t pid) {
    return std::find_if(ranks_.begin(), ranks_.end(),
                        [&](const RankEnding& rank) { return rank.pid == pid; });
  };
  // The ranks have got SIGKILL from the kernel; they and all others are our children now.
  KillDescendants(
      options_.other_children, [&](pid_t group) { return rank_of(group) != ranks_.end(); },
      MonotonicNow() + kSweepLimit,
      [&](pid_t pid, int status) {
        const auto rank = rank_of(pid);
        if (rank == ranks_.end() || rank->ended) return;
        rank->ended = true;
        rank->wait_status = status;
        rank->ended_by_us = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      });
  if (ending_.first_failure < 0) ending_.supervisor_died = true;
  if (ending_.exit_code == 0) {
    ending_.exit_code = ending_.signal != 0 ? 128 + ending_.signal : 1;
  }
}

}  // namespace rueda
