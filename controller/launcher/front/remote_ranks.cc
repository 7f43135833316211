#include "controller/launcher/front/remote_ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controller/launcher/agent/agent_words.h"
#include "controller/launcher/host/children.h"
#include "controller/launcher/host/job.h"
#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/base/process.h"
#include "core/base/utf8.h"

namespace rueda {
namespace {

constexpr size_t kNoiseBytesMax = 16 << 10;

struct Pipe {
  UniqueFd reading, writing;
};

absl::StatusOr<Pipe> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "making a pipe");
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// In a process group of its own: the terminal's signals are for the launcher. With no signal
// blocked or ignored.
absl::StatusOr<pid_t> Spawn(std::vector<std::string> words, const int (&fds)[3]) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  RUEDA_CHECK(posix_spawn_file_actions_init(&actions) == 0);
  RUEDA_CHECK(posix_spawnattr_init(&attributes) == 0);
  for (int i = 0; i < 3; ++i) posix_spawn_file_actions_adddup2(&actions, fds[i], i);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("can't start ", words[0]));
  return pid;
}

std::string LastLine(absl::string_view text) {
  const std::vector<absl::string_view> lines =
      absl::StrSplit(text, absl::ByAnyChar("\r\n"), absl::SkipWhitespace());
  if (lines.empty()) return "";
  return Printable(absl::StripAsciiWhitespace(lines.back()), kErrorTextBytesMax);
}

}  // namespace

RemoteRanks::RemoteRanks(JobHost host, std::string shell, std::string program, pid_t pid,
                         UniqueFd pidfd, AgentStream stream, UniqueFd errors, Output* output)
    : host_(std::move(host)),
      shell_(std::move(shell)),
      program_(std::move(program)),
      pid_(pid),
      pidfd_(std::move(pidfd)),
      stream_(std::move(stream)),
      errors_(std::move(errors)),
      output_(output) {}

absl::StatusOr<std::unique_ptr<RemoteRanks>> RemoteRanks::Start(JobHost host,
                                                                std::vector<std::string> words,
                                                                std::string program,
                                                                Output* output) {
  RUEDA_ASSIGN_OR_RETURN(Pipe in, MakePipe());
  RUEDA_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  RUEDA_ASSIGN_OR_RETURN(Pipe errors, MakePipe());
  std::string shell = words[0];
  RUEDA_ASSIGN_OR_RETURN(
      const pid_t pid,
      Spawn(std::move(words), {in.reading.get(), out.writing.get(), errors.writing.get()}));
  UniqueFd pidfd = OpenPidfd(pid);
  if (!pidfd.valid()) {
    const absl::Status status = ErrnoStatus(errno, absl::StrCat("can't watch ", shell));
    kill(-pid, SIGKILL);
    return status;
  }
  fcntl(errors.reading.get(), F_SETFL, O_NONBLOCK);
  return std::unique_ptr<RemoteRanks>(
      new RemoteRanks(std::move(host), std::move(shell), std::move(program), pid, std::move(pidfd),
                      AgentStream(std::move(out.reading), std::move(in.writing)),
                      std::move(errors.reading), output));
}

RemoteRanks::~RemoteRanks() {
  if (gone_) return;
  kill(-pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void RemoteRanks::SetRunning() {
  running_ = true;
  noise_.clear();
}

void RemoteRanks::AddWaits(std::vector<pollfd>* waits) {
  first_wait_ = waits->size();
  const bool may_write = !gone_ && stream_.waiting_bytes() > 0;
  waits->push_back({gone_ ? -1 : pidfd_.get(), POLLIN, 0});
  // While an output is full its ranks wait, as they would before a pipe.
  waits->push_back({output_->full() ? -1 : stream_.in(), POLLIN, 0});
  waits->push_back({may_write ? stream_.out() : -1, POLLOUT, 0});
  waits->push_back({errors_.get(), POLLIN, 0});
}

void RemoteRanks::Advance(absl::Span<const pollfd> waits) {
  const pollfd* const own = &waits[first_wait_];
  if (own[2].revents != 0) stream_.Flush();
  if (own[1].revents != 0) ReadStream();
  if (own[3].revents != 0) ReadErrors();
  if (own[0].revents != 0 && !gone_) OnProcessEnded();
}

// The end is told when everything that came before it is. Others may hold the pipes for longer.
void RemoteRanks::OnProcessEnded() {
  do {
    if (output_->full()) return;
  } while (ReadStream() == AgentStream::Got::kSome);
  ReadErrors();
  errors_.reset();
  int status = 0;
  waitpid(pid_, &status, 0);
  gone_ = true;
  OnEnd(status);
}

AgentStream::Got RemoteRanks::ReadStream() {
  const AgentStream::Got got = stream_.Read();
  if (broken_) return got;
  const absl::Status status = TakeMessages();
  if (!status.ok()) OnBroken(status);
  return got;
}

absl::Status RemoteRanks::TakeMessages() {
  if (!marked_) {
    std::string before;
    RUEDA_ASSIGN_OR_RETURN(marked_, stream_.TakeMark(&before));
    noise_ += before;
    if (!marked_) return absl::OkStatus();
  }
  while (true) {
    std::string bytes;
    RUEDA_ASSIGN_OR_RETURN(const bool taken, stream_.Take(&bytes));
    if (!taken) return absl::OkStatus();
    launch::FromAgent message;
    RUEDA_RETURN_IF_ERROR(ReadFromAgent(bytes, host_.share, &message));
    Take(&message);
  }
}

void RemoteRanks::Take(launch::FromAgent* message) {
  switch (message->kind_case()) {
    case launch::FromAgent::kHello:
      hello_ = std::move(*message->mutable_hello());
      break;
    case launch::FromAgent::kReady:
      ready_ = std::move(*message->mutable_ready());
      break;
    case launch::FromAgent::kRefusal:
      refusal_ = std::move(*message->mutable_refusal());
      break;
    case launch::FromAgent::kEvent:
      received_.push_back(FromWire(message->event()));
      finished_ |= received_.back().kind == MessageKind::kFinished;
      break;
    case launch::FromAgent::kLoss:
      if (why_gone_.empty()) why_gone_ = std::move(*message->mutable_loss());
      break;
    case launch::FromAgent::kOutput:
      output_->Feed(message->output().rank(), message->output().is_error(),
                    message->output().data());
      break;
    case launch::FromAgent::KIND_NOT_SET:
      break;
  }
}

void RemoteRanks::ReadErrors() {
  char buffer[4'096];
  ssize_t n;
  while (errors_.valid() && (n = read(errors_.get(), buffer, sizeof buffer)) != 0) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;
    noise_.append(buffer, static_cast<size_t>(n));
    if (noise_.size() > kNoiseBytesMax) noise_.erase(0, noise_.size() - kNoiseBytesMax);
    if (running_) SayLines();
  }
  errors_.reset();
}

// What has come of whole lines since the job runs.
void RemoteRanks::SayLines() {
  size_t end;
  while ((end = noise_.find('\n')) != std::string::npos) {
    const std::string line = Printable(noise_.substr(0, end + 1), kNoiseBytesMax);
    output_->Say(absl::StrCat("ruedarun: host ", host_.name, ": ", line));
    noise_.erase(0, end + 1);
  }
}

void RemoteRanks::OnBroken(const absl::Status& why) {
  broken_ = true;
  why_gone_ = absl::StrCat("its agent sent ", why.message());
  Kill();
}

void RemoteRanks::OnEnd(int wait_status) {
  if (finished_) return;
  if (refusal_.has_value()) why_gone_ = refusal_->why();
  if (why_gone_.empty()) why_gone_ = WhyEnded(wait_status);
  received_.push_back({MessageKind::kLost});
}

std::string RemoteRanks::loss() const {
  return absl::StrCat("host ", host_.name, ": ", why_gone_);
}

std::string RemoteRanks::LastNoise() const {
  return LastLine(noise_);
}

std::string RemoteRanks::WhyEnded(int wait_status) const {
  std::string last = LastLine(noise_);
  // An account's shell that is none says so on standard output.
  const std::string said = marked_ ? "" : LastLine(stream_.unread());
  absl::StrAppend(&last, last.empty() || said.empty() ? "" : "; ", said);
  const int status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 0;
  if (!marked_ && (status == kNotFound || status == kNotExecutable)) {
    return absl::StrCat("can't start ", program_, " there, which every host needs at this path",
                        last.empty() ? "" : absl::StrCat(" (", last, ")"));
  }
  if (!marked_ && !last.empty()) return last;  // by ssh, mostly, and well said
  const std::string how = marked_ ? absl::StrCat("the connection to it was lost: ", shell_, " ",
                                                 WaitStatusText(wait_status))
                                  : absl::StrCat(shell_, " ", WaitStatusText(wait_status));
  return last.empty() ? how : absl::StrCat(how, ": ", last);
}

void RemoteRanks::Send(const Message& message) {
  launch::ToAgent wire;
  *wire.mutable_event() = ToWire(message);
  stream_.Send(wire);
}

void RemoteRanks::Kill() {
  if (gone_) return;
  if (why_gone_.empty()) {
    why_gone_ = "it did not answer in time, and the connection to it was closed";
  }
  kill(-pid_, SIGKILL);
}

}  // namespace rueda
