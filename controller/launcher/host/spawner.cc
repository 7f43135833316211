#include "controller/launcher/host/spawner.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "controller/failure/verdict_board.h"
#include "controller/launcher/decide/supervisor.h"
#include "controller/launcher/host/children.h"
#include "controller/launcher/host/kept_memory.h"
#include "controller/protocol/codec.h"
#include "core/base/check.h"
#include "core/base/datagram.h"
#include "core/base/limits.h"
#include "core/base/process.h"

namespace rueda {
namespace {

// What a child that could not become its program writes before it ends; fits a pipe whole.
struct ExecFailure {
  MessageKind kind;
  Rank rank;
  int error;
};

// waitid's answer in the form of waitpid's.
int WaitStatusOf(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return W_EXITCODE(info.si_status & 0xFF, 0);
  return W_EXITCODE(0, info.si_status) | (info.si_code == CLD_DUMPED ? WCOREFLAG : 0);
}

// "NAME=VALUE" strings and the array of pointers to them that exec wants.
class EnvironmentBlock {
 public:
  explicit EnvironmentBlock(const Environment& environment) {
    for (const auto& [name, value] : environment) {
      entries_.push_back(absl::StrCat(name, "=", value));
    }
    for (std::string& entry : entries_) pointers_.push_back(entry.data());
    pointers_.push_back(nullptr);
  }
  char** data() { return pointers_.data(); }

 private:
  std::vector<std::string> entries_;
  std::vector<char*> pointers_;
};

class Spawner {
 public:
  Spawner(SpawnArgs args, Channel channel);
  absl::Status Start();
  void Run();

 private:
  // What an epoll event belongs to: a rank's pidfd, by its number, or one of these.
  enum Tag : uint64_t {
    kChannel = uint64_t{1} << 32,
    kChildren,
    kExecFailures,
    kWords = uint64_t{1} << 33,  // and the slot, whose process speaks
  };

  struct RankProcess {
    pid_t pid = 0;
    UniqueFd pidfd;
    bool dies = false;
    bool ended = false;
    int wait_status = 0;
    bool collected = false;
    int comes_to = 0;  // so many ranks of an elastic job
    UniqueFd words;    // of an elastic job: what the process and the launcher tell each other
  };

  Rank WorldRank(Rank rank) const { return args_.first + rank; }
  absl::Status Watch(int fd, Tag tag);
  void PollOnce();
  void StartNext();
  bool HasToStart() const { return machine_.may_start() && !to_start_.empty(); }
  // Of an elastic job: makes room for another process in its slot.
  void Forget(Rank rank);
  void OnWords(Rank rank);
  void OnWord(Rank rank, const wire::FromProcess& word, UniqueFd memory);
  void ReportWhoDies();
  [[noreturn]] void BecomeRank(Rank rank, pid_t parent, char** environment);
  void FailToBecomeRank(MessageKind kind, Rank rank, int error);
  // Takes the wait status of a rank that has ended, and writes it where the other ranks look.
  void RecordVerdict(Rank rank);
  void ReportEnd(Rank rank);
  void OnChannel();
  void OnMessage(const Message& message);
  void OnElastic(const Message& message);
  void OnChildren();
  void OnExecFailures();
  void Step(Supervisor::Event event);
  void Do(const Supervisor::Action& action);
  pid_t ProgramOf(Rank rank) const;
  void SignalRest(int signal);
  // Collects the ranks, and answers the machine's question whether anything is left.
  void Reap();
  // Collects children that are no ranks and have ended. True when others are left.
  bool CollectOrphans();
  void AnswerReap();
  bool IsRankGroup(pid_t group) const { return rank_of_.contains(group); }
  bool IsUncollectedRank(pid_t child) const {
    const auto rank = rank_of_.find(child);
    return rank != rank_of_.end() && !ranks_[static_cast<size_t>(rank->second)].collected;
  }
  int TimeoutMs(bool busy) const;

  SpawnArgs args_;
  Channel channel_;
  Supervisor machine_;
  std::unique_ptr<VerdictBoard> board_;
  UniqueFd epoll_;
  UniqueFd child_signals_;
  UniqueFd exec_failures_;
  UniqueFd exec_failures_end_;  // the end that the children write to
  std::vector<RankProcess> ranks_;
  std::map<pid_t, Rank> rank_of_;
  std::vector<char*> arguments_;
  std::deque<Rank> to_start_;
  KeptMemory kept_;
  bool launcher_gone_ = false;
  Nanos now_ = 0;
};

Spawner::Spawner(SpawnArgs args, Channel channel)
    : args_(std::move(args)),
      channel_(std::move(channel)),
      machine_({static_cast<int>(args_.plans.size()), args_.grace, args_.elastic}),
      ranks_(args_.plans.size()) {
  for (size_t i = 0; i < args_.plans.size() && !args_.elastic; ++i) {
    to_start_.push_back(static_cast<Rank>(i));
  }
  for (std::string& argument : args_.arguments) arguments_.push_back(argument.data());
  arguments_.push_back(nullptr);
}

absl::Status Spawner::Watch(int fd, Tag tag) {
  epoll_event event = {EPOLLIN, {.u64 = tag}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "watching a descriptor");
}

absl::Status Spawner::Start() {
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return ErrnoStatus(errno, "adopting orphans");
  RUEDA_ASSIGN_OR_RETURN(board_, VerdictBoard::Open(args_.board_fd, args_.bell_fd));
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  child_signals_.reset(signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!child_signals_.valid()) return ErrnoStatus(errno, "making a signalfd");
  int fds[2];
  if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) return ErrnoStatus(errno, "making a pipe");
  exec_failures_.reset(fds[0]);
  exec_failures_end_.reset(fds[1]);
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return ErrnoStatus(errno, "making an epoll");
  RUEDA_RETURN_IF_ERROR(Watch(channel_.fd(), kChannel));
  RUEDA_RETURN_IF_ERROR(Watch(child_signals_.get(), kChildren));
  return Watch(exec_failures_.get(), kExecFailures);
}

void Spawner::Run() {
  while (!machine_.finished()) PollOnce();
  channel_.Send({MessageKind::kFinished, -1, 0, machine_.exit_code()});
  // Only a launcher that does not read can delay this, and it can't lose it.
  while (!launcher_gone_ && channel_.wants_write()) {
    epoll_event event = {EPOLLIN | EPOLLOUT, {.u64 = kChannel}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, channel_.fd(), &event);
    epoll_wait(epoll_.get(), &event, 1, -1);
    channel_.Flush();
    OnChannel();
  }
}

int Spawner::TimeoutMs(bool busy) const {
  if (busy) return 0;
  if (machine_.deadline() == kForever) return -1;
  return PollTimeoutMs(machine_.deadline() - MonotonicNow());
}

void Spawner::PollOnce() {
  epoll_event events[64];
  const int n = epoll_wait(epoll_.get(), events, 64, TimeoutMs(HasToStart()));
  now_ = MonotonicNow();
  // The kernel lists pidfds in the order in which their processes ended, so the first failure is
  // the first. Verdicts go before everything else: the other ranks wait a moment for them.
  std::vector<Rank> ended, speaking;
  bool channel = false, children = false, exec_failures = false;
  for (int i = 0; i < n; ++i) {
    switch (events[i].data.u64) {
      case kChannel:
        channel = true;
        break;
      case kChildren:
        children = true;
        break;
      case kExecFailures:
        exec_failures = true;
        break;
      default:
        if ((events[i].data.u64 & kWords) != 0) {
          speaking.push_back(static_cast<Rank>(events[i].data.u64 & ~kWords));
          break;
        }
        ended.push_back(static_cast<Rank>(events[i].data.u64));
        RecordVerdict(ended.back());
    }
  }
  if (!speaking.empty()) ReportWhoDies();
  for (const Rank rank : speaking) OnWords(rank);
  if (exec_failures || !ended.empty()) OnExecFailures();
  for (const Rank rank : ended) {
    if (!ranks_[static_cast<size_t>(rank)].ended) continue;
    OnWords(rank);  // its last
    Step({Supervisor::EventKind::kRankEnded, rank, ranks_[static_cast<size_t>(rank)].wait_status});
    ReportEnd(rank);
    if (args_.elastic && machine_.may_start()) Forget(rank);
  }
  if (channel) OnChannel();
  if (children) OnChildren();
  if (now_ >= machine_.deadline()) Step({Supervisor::EventKind::kTimer});
  if (HasToStart()) StartNext();
  channel_.Flush();
}

void Spawner::StartNext() {
  const Rank rank = to_start_.front();
  to_start_.pop_front();
  RankProcess& process = ranks_[static_cast<size_t>(rank)];
  if (process.pid > 0 && !process.collected) return;  // it is there
  const int comes_to = process.comes_to;
  process = RankProcess();
  RankStreams& streams = args_.streams[static_cast<size_t>(rank)];
  Environment variables = args_.plans[static_cast<size_t>(rank)].environment;
  int words[2] = {-1, -1};
  if (args_.elastic && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, words) == 0) {
    variables["RUEDA_ELASTIC_FD"] = absl::StrCat(words[1]);
    if (comes_to > 0) variables["RUEDA_ELASTIC_RANKS"] = absl::StrCat(comes_to);
    fcntl(words[0], F_SETFL, O_NONBLOCK);
    process.words.reset(words[0]);
  }
  const UniqueFd its_words(words[1]);
  EnvironmentBlock environment(variables);
  const pid_t self = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    if (its_words.valid()) fcntl(its_words.get(), F_SETFD, 0);
    BecomeRank(rank, self, environment.data());
  }
  UniqueFd pidfd = pid > 0 ? OpenPidfd(pid) : UniqueFd();
  if (!pidfd.valid()) {
    const int error = errno;
    if (pid > 0) {  // can't be watched, so must not run
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    channel_.Send({MessageKind::kStartFailed, WorldRank(rank), 0, error});
    Step({Supervisor::EventKind::kStartFailed, rank, error});
    return;
  }
  setpgid(pid, pid);  // the child does it too: whoever comes first
  if (!args_.elastic) {
    streams = RankStreams();
    if (to_start_.empty()) exec_failures_end_.reset();
  }
  process.pid = pid;
  process.pidfd = std::move(pidfd);
  rank_of_[pid] = rank;
  channel_.Send({MessageKind::kRankStarted, WorldRank(rank), pid});
  Step({Supervisor::EventKind::kRankStarted, rank});
  epoll_event event = {EPOLLIN, {.u64 = static_cast<uint64_t>(rank)}};
  RUEDA_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, process.pidfd.get(), &event) == 0)
      << "can't watch rank " << rank << ": errno " << errno;
  if (!process.words.valid()) return;
  event = {EPOLLIN, {.u64 = kWords | static_cast<uint64_t>(rank)}};
  RUEDA_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, process.words.get(), &event) == 0)
      << "can't hear rank " << rank << ": errno " << errno;
}

void Spawner::OnWords(Rank rank) {
  RankProcess& process = ranks_[static_cast<size_t>(rank)];
  while (process.words.valid()) {
    UniqueFd memory;
    const absl::StatusOr<std::string> bytes =
        ReceiveDatagram(process.words.get(), kElasticBytesMax, &memory, MSG_DONTWAIT);
    if (absl::IsNotFound(bytes.status())) return;
    if (absl::IsUnavailable(bytes.status())) process.words.reset();  // epoll forgets it
    wire::FromProcess word;
    if (bytes.ok() && ParseMessage(*bytes, &word).ok()) OnWord(rank, word, std::move(memory));
  }
}

void Spawner::OnWord(Rank rank, const wire::FromProcess& word, UniqueFd memory) {
  const RankProcess& process = ranks_[static_cast<size_t>(rank)];
  if (word.has_ask()) {
    channel_.Send({MessageKind::kFromRank, WorldRank(rank), process.pid, 0, 0, -1,
                   word.ask().SerializeAsString()});
  } else if (word.has_keep()) {
    if (kept_.Keep(rank, word.keep(), std::move(memory))) {
      channel_.Send({MessageKind::kKeeps, WorldRank(rank), process.pid});
    }
  } else if (word.has_fetch()) {
    const std::optional<KeptMemory::Found> found = kept_.Find(word.fetch());
    wire::ToProcess answer;
    *answer.mutable_kept() = found.has_value() ? found->part : word.fetch();
    const int its = found.has_value() ? found->memory : -1;
    const std::string bytes = answer.SerializeAsString();
    if (!SendDatagram(process.words.get(), bytes, its, MSG_DONTWAIT).ok()) {
      (void)SendDatagram(process.words.get(), bytes, -1, MSG_DONTWAIT);
    }
  }
}

// Those who speak have mostly lost one whose end may take a while.
void Spawner::ReportWhoDies() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    RankProcess& each = ranks_[i];
    if (each.pid == 0 || each.ended || each.dies) continue;
    const std::optional<int> status = WaitStatusOfDying(each.pid);
    if (!status.has_value()) continue;
    each.dies = true;
    channel_.Send({MessageKind::kRankDies, WorldRank(static_cast<Rank>(i)), each.pid, *status});
  }
}

// What it has left behind in its group would hold on to memory and devices that the next one needs.
void Spawner::Forget(Rank rank) {
  RankProcess& process = ranks_[static_cast<size_t>(rank)];
  if (process.wait_status != 0) kill(-process.pid, SIGKILL);
  kept_.OnEnded(rank);
  process.collected = waitpid(process.pid, nullptr, WNOHANG) == process.pid;
  rank_of_.erase(process.pid);
  process.words.reset();
}

void Spawner::FailToBecomeRank(MessageKind kind, Rank rank, int error) {
  const ExecFailure failure = {kind, WorldRank(rank), error};
  [[maybe_unused]] const ssize_t n = write(exec_failures_end_.get(), &failure, sizeof failure);
}

// In the child. Everything that is not named here is closed by exec.
void Spawner::BecomeRank(Rank rank, pid_t parent, char** environment) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kNotExecutable);  // it died before the line above
  const RankStreams& streams = args_.streams[static_cast<size_t>(rank)];
  dup2(streams.in.get(), STDIN_FILENO);
  dup2(streams.out.get(), STDOUT_FILENO);
  dup2(streams.err.get(), STDERR_FILENO);
  fcntl(args_.secret_fd, F_SETFD, 0);
  fcntl(args_.board_fd, F_SETFD, 0);
  fcntl(args_.bell_fd, F_SETFD, 0);
  const bool has_meeting = WorldRank(rank) == 0 || args_.elastic;
  if (has_meeting && args_.meeting_fd >= 0) fcntl(args_.meeting_fd, F_SETFD, 0);
  setrlimit(RLIMIT_NOFILE, &args_.open_files);
  if (const int core = args_.plans[static_cast<size_t>(rank)].core; core >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
      FailToBecomeRank(MessageKind::kPinFailed, rank, errno);
      _exit(kNotExecutable);
    }
  }
  for (int number = 1; number < NSIG; ++number) {
    if (number == SIGHUP && args_.ignores_hangup) continue;
    signal(number, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // Like execve, but a script without an interpreter line goes to /bin/sh.
  execvpe(args_.program.c_str(), arguments_.data(), environment);
  const int error = errno;
  FailToBecomeRank(MessageKind::kExecFailed, rank, error);
  _exit(error == ENOENT ? kNotFound : kNotExecutable);
}

void Spawner::RecordVerdict(Rank rank) {
  RankProcess& process = ranks_[static_cast<size_t>(rank)];
  siginfo_t info = {};
  // Not collected before the job is over: as long as it is there, the number of its process group
  // can't become another's.
  const int result =
      waitid(P_PIDFD, static_cast<id_t>(process.pidfd.get()), &info, WEXITED | WNOHANG | WNOWAIT);
  if (result != 0 || info.si_pid == 0) return;
  process.wait_status = WaitStatusOf(info);
  board_->Write(WorldRank(rank), {process.pid, process.wait_status});
  process.ended = true;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, process.pidfd.get(), nullptr);
}

void Spawner::ReportEnd(Rank rank) {
  const RankProcess& process = ranks_[static_cast<size_t>(rank)];
  const int32_t flags = (machine_.first_failure() == rank ? Message::kFirstFailure : 0) |
                        (machine_.EndedByUs(rank) ? Message::kEndedByUs : 0);
  channel_.Send({MessageKind::kRankEnded, WorldRank(rank), process.pid, process.wait_status, flags,
                 board_->BlamedBy(WorldRank(rank))});
}

void Spawner::OnExecFailures() {
  ExecFailure failure;
  ssize_t n;
  while ((n = read(exec_failures_.get(), &failure, sizeof failure)) ==
         static_cast<ssize_t>(sizeof failure)) {
    channel_.Send({failure.kind, failure.rank, 0, failure.error});
  }
  if (n == 0) {  // every rank has become its program
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, exec_failures_.get(), nullptr);
  }
}

void Spawner::OnChannel() {
  Message message;
  for (;;) {
    switch (channel_.Receive(&message)) {
      case Channel::Got::kMessage:
        OnMessage(message);
        break;
      case Channel::Got::kNothing:
        return;
      case Channel::Got::kClosed:
        if (launcher_gone_) return;
        launcher_gone_ = true;
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, channel_.fd(), nullptr);
        Step({Supervisor::EventKind::kLauncherGone});
        return;
    }
  }
}

void Spawner::OnMessage(const Message& message) {
  if (message.kind == MessageKind::kAsk) {
    channel_.Send({MessageKind::kHere});
  } else if (message.kind == MessageKind::kSignal) {
    Step({Supervisor::EventKind::kSignal, -1, message.value});
  } else if (message.kind == MessageKind::kEndJob) {
    Step({Supervisor::EventKind::kFailedElsewhere});
  } else if (message.kind == MessageKind::kVerdict) {
    board_->Blame(message.rank, message.blames);
    board_->Write(message.rank, {message.pid, message.value});
  } else if (args_.elastic) {
    OnElastic(message);
  }
}

void Spawner::OnElastic(const Message& message) {
  const Rank rank = message.rank - args_.first;
  const bool is_ours = rank >= 0 && static_cast<size_t>(rank) < ranks_.size();
  RankProcess* const process = is_ours ? &ranks_[static_cast<size_t>(rank)] : nullptr;
  if (message.kind == MessageKind::kClear) {
    board_->Clear(message.rank);
  } else if (message.kind == MessageKind::kNoMore) {
    Step({Supervisor::EventKind::kNoMore});
  } else if (process == nullptr) {
    return;
  } else if (message.kind == MessageKind::kStart) {
    process->comes_to = message.value;
    to_start_.push_back(rank);
  } else if (message.kind == MessageKind::kKill && process->pid > 0 && !process->ended) {
    kill(-process->pid, SIGKILL);
  } else if (message.kind == MessageKind::kToRank && process->words.valid()) {
    // A process that does not read has as much room as it will ever need.
    (void)!send(process->words.get(), message.payload.data(), message.payload.size(),
                MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

void Spawner::OnChildren() {
  signalfd_siginfo info;
  while (read(child_signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
  }
  if (machine_.sweeping()) {
    AnswerReap();
    return;
  }
  // Ranks stay uncollected; while none has ended, whoever has is an orphan.
  siginfo_t child = {};
  while (waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) == 0 && child.si_pid != 0) {
    if (IsUncollectedRank(child.si_pid)) {
      CollectOrphans();
      return;
    }
    waitpid(child.si_pid, nullptr, WNOHANG);
    child = {};
  }
}

bool Spawner::CollectOrphans() {
  bool left = false;
  for (const pid_t child : ChildrenOfThis()) {
    if (!IsUncollectedRank(child) && waitpid(child, nullptr, WNOHANG) == 0) left = true;
  }
  return left;
}

void Spawner::Reap() {
  for (RankProcess& process : ranks_) {
    if (process.ended && !process.collected) {
      process.collected = waitpid(process.pid, nullptr, WNOHANG) == process.pid;
    }
  }
  AnswerReap();
}

void Spawner::AnswerReap() {
  // Mostly there is nothing, and nothing to look for.
  const bool none = waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD;
  if (none || !CollectOrphans()) {
    Step({Supervisor::EventKind::kAlone});
  } else {
    Step({Supervisor::EventKind::kRestRemains});
  }
}

void Spawner::Step(Supervisor::Event event) {
  std::vector<Supervisor::Action> actions;
  machine_.Step(event, now_, &actions);
  for (const Supervisor::Action& action : actions) Do(action);
}

void Spawner::Do(const Supervisor::Action& action) {
  switch (action.kind) {
    case Supervisor::ActionKind::kSignalRanks:
      for (size_t i = 0; i < ranks_.size(); ++i) {
        const Rank rank = static_cast<Rank>(i);
        const RankProcess& process = ranks_[i];
        if (process.pid > 0 && !process.ended) kill(ProgramOf(rank), action.signal);
      }
      break;
    case Supervisor::ActionKind::kSignalGroups:
      for (const RankProcess& process : ranks_) {
        if (process.pid > 0 && !process.collected) kill(-process.pid, action.signal);
      }
      break;
    case Supervisor::ActionKind::kSignalRest:
      SignalRest(action.signal);
      break;
    case Supervisor::ActionKind::kReap:
      Reap();
      break;
    case Supervisor::ActionKind::kFinish:
      break;  // Run sees it, after the ends that led to it are reported
  }
}

// The process that takes part in the job. Mostly that is the rank's own; or it has been started by
// that one, a script say, which would pass no signal on and die of it before its program is done.
pid_t Spawner::ProgramOf(Rank rank) const {
  const pid_t own = ranks_[static_cast<size_t>(rank)].pid;
  const pid_t program = board_->ProgramOf(WorldRank(rank));
  if (HasEnded(program)) return own;
  const pid_t self = getpid();
  for (pid_t above = program; above > 1 && above != self; above = ParentOf(above)) {
    if (above == own) return program;
  }
  return own;
}

void Spawner::SignalRest(int signal) {
  std::vector<pid_t> rest = ChildrenOfThis();
  std::erase_if(rest, [&](pid_t child) { return IsUncollectedRank(child); });
  SignalChildren(rest, signal, [&](pid_t group) { return IsRankGroup(group); });
}

}  // namespace

SpawnArgs MakeSpawnArgs(const LaunchOptions& options, const JobFacts& job,
                        const Inheritance& inheritance) {
  SpawnArgs args;
  args.arguments = options.command;
  args.secret_fd = job.secret_fd;
  args.board_fd = job.agent_fd;
  args.bell_fd = job.agent_bell_fd;
  args.meeting_fd = job.meeting_fd;
  args.grace = options.grace();
  args.open_files = inheritance.open_files;
  args.ignores_hangup = inheritance.ignores_hangup;
  return args;
}

absl::Status Supervise(SpawnArgs args, Channel channel) {
  Spawner spawner(std::move(args), std::move(channel));
  RUEDA_RETURN_IF_ERROR(spawner.Start());
  spawner.Run();
  return absl::OkStatus();
}

}  // namespace rueda
