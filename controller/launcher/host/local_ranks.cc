#include "controller/launcher/host/local_ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "controller/launcher/host/children.h"
#include "core/base/process.h"

namespace rueda {
namespace {

constexpr Nanos kSweepLimit = 2 * kSecond;

// The child's side of the fork.
[[noreturn]] void BeSupervisor(SpawnArgs args, Channel channel) {
  setpgid(0, 0);  // the terminal's signals are for the launcher
  prctl(PR_SET_NAME, "ruedarun-agent");
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  const absl::Status status = Supervise(std::move(args), std::move(channel));
  if (!status.ok()) {
    const std::string line = absl::StrCat("ruedarun: ", status.message(), "\n");
    fputs(line.c_str(), stderr);
    fflush(nullptr);
  }
  _exit(status.ok() ? 0 : 1);
}

}  // namespace

LocalRanks::LocalRanks(Channel channel, pid_t supervisor, UniqueFd pidfd,
                       std::vector<pid_t> other_children)
    : channel_(std::move(channel)),
      supervisor_(supervisor),
      pidfd_(std::move(pidfd)),
      other_children_(std::move(other_children)) {}

absl::StatusOr<std::unique_ptr<LocalRanks>> LocalRanks::Start(
    SpawnArgs args, const std::function<void()>& in_supervisor) {
  RUEDA_ASSIGN_OR_RETURN(auto channels, Channel::CreatePair());
  std::vector<pid_t> other_children = ChildrenOfThis();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  fflush(nullptr);
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "can't fork");
  if (pid == 0) {
    in_supervisor();
    channels.first.Close();
    BeSupervisor(std::move(args), std::move(channels.second));
  }
  UniqueFd pidfd = OpenPidfd(pid);
  if (!pidfd.valid()) {
    const absl::Status status = ErrnoStatus(errno, "can't watch the supervisor process");
    kill(pid, SIGKILL);
    return status;
  }
  return std::unique_ptr<LocalRanks>(
      new LocalRanks(std::move(channels.first), pid, std::move(pidfd), std::move(other_children)));
}

void LocalRanks::AddWaits(std::vector<pollfd>* waits) {
  first_wait_ = waits->size();
  const short events = static_cast<short>(POLLIN | (channel_.wants_write() ? POLLOUT : 0));
  waits->push_back({gone_ ? -1 : pidfd_.get(), POLLIN, 0});
  waits->push_back({gone_ ? -1 : channel_.fd(), events, 0});
}

void LocalRanks::Advance(absl::Span<const pollfd> waits) {
  if (gone_) return;
  const pollfd* const own = &waits[first_wait_];
  if (own[1].revents != 0) {
    channel_.Flush();
    Take();
  }
  int status;
  if (own[0].revents != 0 && waitpid(supervisor_, &status, WNOHANG) == supervisor_) {
    gone_ = true;
    Take();  // its last words
    if (!finished_) OnLost(status);
  }
}

void LocalRanks::Take() {
  Message message;
  while (channel_.fd() >= 0 && channel_.Receive(&message) == Channel::Got::kMessage) {
    if (message.kind == MessageKind::kRankStarted) running_[message.pid] = message.rank;
    if (message.kind == MessageKind::kRankEnded) running_.erase(message.pid);
    finished_ |= message.kind == MessageKind::kFinished;
    received_.push_back(message);
  }
}

// The ranks have got SIGKILL from the kernel; they and all others are our children now.
void LocalRanks::OnLost(int wait_status) {
  loss_ = absl::StrCat("its supervisor process (pid ", supervisor_, ") ",
                       WaitStatusText(wait_status), "; killing all ranks");
  received_.push_back({MessageKind::kLost});
  const std::map<pid_t, Rank> ranks = running_;
  KillDescendants(
      other_children_, [&](pid_t group) { return ranks.contains(group); },
      MonotonicNow() + kSweepLimit,
      [&](pid_t pid, int status) {
        const auto rank = running_.find(pid);
        if (rank == running_.end()) return;
        const bool by_us = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        received_.push_back(
            {MessageKind::kRankEnded, rank->second, pid, status, by_us ? Message::kEndedByUs : 0});
        running_.erase(rank);
      });
}

void LocalRanks::Send(const Message& message) {
  if (!gone_ && channel_.fd() >= 0) channel_.Send(message);
}

void LocalRanks::Kill() {
  if (!gone_) kill(supervisor_, SIGKILL);
}

}  // namespace rueda
