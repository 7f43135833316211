#include "controller/launcher/front/host_discovery.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/base/process.h"

namespace rueda {
namespace {

constexpr Nanos kAskEvery = kSecond;
// A script that takes longer is ended.
constexpr Nanos kPatience = 30 * kSecond;

}  // namespace

HostDiscovery::~HostDiscovery() {
  if (pid_ == 0) return;
  kill(-pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

absl::Status HostDiscovery::Ask() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "making a pipe");
  const UniqueFd writing(fds[1]);
  output_.reset(fds[0]);
  fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  text_.clear();
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  RUEDA_CHECK(posix_spawn_file_actions_init(&actions) == 0);
  RUEDA_CHECK(posix_spawnattr_init(&attributes) == 0);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, writing.get(), STDOUT_FILENO);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::string words[] = {"/bin/sh", "-c", command_};
  char* const argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  const int error = posix_spawn(&pid_, argv[0], &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  asked_at_ = MonotonicNow();
  if (error == 0) return absl::OkStatus();
  pid_ = 0;
  output_.reset();
  return ErrnoStatus(error, absl::StrCat("can't start ", command_));
}

Nanos HostDiscovery::EndsAt() const {
  return asked_at_ + kPatience;
}

// Its output ends with it.
void HostDiscovery::EndIfLate(Nanos now) {
  if (now < EndsAt()) return;
  kill(-pid_, SIGKILL);
  asked_at_ = now;
}

// False: there is nothing more.
bool HostDiscovery::ReadSome() {
  char buffer[4'096];
  while (true) {
    const ssize_t n = read(output_.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0 || text_.size() > kHostsFileBytesMax) return false;
    text_.append(buffer, static_cast<size_t>(n));
  }
}

absl::StatusOr<std::vector<HostSlots>> HostDiscovery::Finish() {
  output_.reset();
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = 0;
  if (status != 0) {
    return absl::UnavailableError(absl::StrCat(command_, ": it ", WaitStatusText(status)));
  }
  std::string text;
  for (const absl::string_view line : absl::StrSplit(text_, '\n')) {
    const absl::string_view host = absl::StripAsciiWhitespace(line);
    if (host.empty() || host[0] == '#') continue;
    // As in "[::1]:2", slots follow the last colon, if a number does.
    const size_t colon = host.rfind(':');
    const bool has_slots = colon != absl::string_view::npos && host.back() != ']';
    if (!has_slots && slots_ == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          command_, ": it gives ", host, " no slots; print HOST:SLOTS, or set --slots"));
    }
    absl::StrAppend(&text, host, has_slots ? "" : absl::StrCat(":", slots_), "\n");
  }
  absl::StatusOr<std::vector<HostSlots>> hosts = ParseHostfile(text);
  if (!hosts.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(command_, ": ", hosts.status().message(), "; print one HOST:SLOTS per line"));
  }
  return hosts;
}

absl::StatusOr<std::vector<HostSlots>> HostDiscovery::AskNow() {
  RUEDA_RETURN_IF_ERROR(Ask());
  pollfd wait = {output_.get(), POLLIN, 0};
  while (ReadSome()) {
    poll(&wait, 1, PollTimeoutMs(EndsAt() - MonotonicNow()));
    EndIfLate(MonotonicNow());
  }
  ask_at_ = MonotonicNow() + kAskEvery;
  return Finish();
}

void HostDiscovery::AddWaits(std::vector<pollfd>* waits) {
  first_wait_ = waits->size();
  waits->push_back({asking() ? output_.get() : -1, POLLIN, 0});
}

std::optional<absl::StatusOr<std::vector<HostSlots>>> HostDiscovery::Advance(
    absl::Span<const pollfd> waits, Nanos now) {
  if (asking()) {
    EndIfLate(now);
    if (waits[first_wait_].revents == 0 || ReadSome()) return std::nullopt;
    return Finish();
  }
  if (now < ask_at_) return std::nullopt;
  ask_at_ = now + kAskEvery;
  if (const absl::Status status = Ask(); !status.ok()) return status;
  return std::nullopt;
}

}  // namespace rueda
