#include "test/launcher/job.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/close_range.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <memory>

#include "test/support/forbid.h"
#include "test/support/sanitized.h"

namespace rueda {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

int Timeout(Nanos deadline) {
  return static_cast<int>(std::max<Nanos>(0, (deadline - MonotonicNow()) / kMillisecond + 1));
}

// For what the kernel has no event for.
void LookAgainSoon() {
  const timespec pause = {0, kMillisecond};
  nanosleep(&pause, nullptr);
}

}  // namespace

Nanos Bound(Nanos promised) {
  double load = 0;
  getloadavg(&load, 1);
  return promised * (testing::kSanitized ? 3 : 1) * (load > 4 ? 3 : 1);
}

UniqueFd Pidfd(pid_t pid) {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

bool AllEnd(const std::vector<pid_t>& pids, Nanos limit) {
  const Nanos deadline = MonotonicNow() + limit;
  for (const pid_t pid : pids) {
    const UniqueFd fd = Pidfd(pid);
    pollfd wait = {fd.get(), POLLIN, 0};
    if (fd.valid() && poll(&wait, 1, Timeout(deadline)) != 1) return false;
  }
  return true;
}

bool AwaitState(pid_t pid, char state, Nanos limit) {
  const Nanos deadline = MonotonicNow() + limit;
  while (ProcessState(pid) != state) {
    if (MonotonicNow() > deadline) return false;
    LookAgainSoon();
  }
  return true;
}

void Job::Exec(const Setup& setup, const std::vector<std::string>& arguments, const int (&fds)[3]) {
  if (setup.terminal) {
    setsid();
    ioctl(fds[0], TIOCSCTTY, 0);
  }
  for (int fd = 0; fd < 3; ++fd) dup2(fds[fd], fd);
  // Whatever the shell or ctest did to us is not the test's business.
  for (int number = 1; number < NSIG; ++number) {
    const bool ignored = std::count(setup.ignored.begin(), setup.ignored.end(), number) > 0;
    signal(number, ignored ? SIG_IGN : SIG_DFL);
  }
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int number : setup.blocked) sigaddset(&blocked, number);
  sigprocmask(SIG_SETMASK, &blocked, nullptr);
  close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
  if (!setup.directory.empty() && chdir(setup.directory.c_str()) != 0) _exit(99);

  std::vector<std::string> entries = {"PATH=/usr/local/bin:/usr/bin:/bin",
                                      "LAUNCHER_TEST_MARK=" + mark_};
  for (const auto& [name, value] : setup.environment) entries.push_back(name + "=" + value);
  std::vector<std::string> words = {"ruedarun"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> environment, argv;
  for (std::string& entry : entries) environment.push_back(entry.data());
  for (std::string& word : words) argv.push_back(word.data());
  environment.push_back(nullptr);
  argv.push_back(nullptr);
  if (setup.forbidden_call >= 0 &&
      !rueda::testing::Forbid(setup.forbidden_call, setup.forbidden_error)) {
    _exit(99);
  }
  execve(RUEDARUN, argv.data(), environment.data());
  _exit(99);
}

Job::Job(std::vector<std::string> arguments, Setup setup) {
  static std::atomic<int> count{0};
  mark_ = std::to_string(getpid()) + "-" + std::to_string(++count);
  int fds[3];
  UniqueFd ends[4];
  if (setup.terminal) {
    terminal_.reset(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
    EXPECT_TRUE(terminal_.valid() && grantpt(terminal_.get()) == 0 &&
                unlockpt(terminal_.get()) == 0);
    ends[0].reset(open(ptsname(terminal_.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
    fds[0] = fds[1] = fds[2] = ends[0].get();
    out_.fd.reset(fcntl(terminal_.get(), F_DUPFD_CLOEXEC, 3));
  } else {
    int in[2], out[2], err[2];
    EXPECT_EQ(pipe2(in, O_CLOEXEC) | pipe2(out, O_CLOEXEC) | pipe2(err, O_CLOEXEC), 0);
    ends[0].reset(in[0]);
    ends[1].reset(out[1]);
    ends[2].reset(err[1]);
    ends[3].reset(in[1]);
    fds[0] = in[0];
    fds[1] = out[1];
    if (!setup.output_path.empty()) {
      ends[1].reset(open(setup.output_path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
      fds[1] = ends[1].get();
    }
    fds[2] = setup.one_output ? out[1] : err[1];
    out_.fd.reset(out[0]);
    err_.fd.reset(err[0]);
    EXPECT_LT(setup.input.size(), 60'000u) << "fits a pipe";
    EXPECT_EQ(write(in[1], setup.input.data(), setup.input.size()),
              static_cast<ssize_t>(setup.input.size()));
  }
  out_.paused = err_.paused = !setup.reads_output;
  for (Stream* stream : {&out_, &err_}) {
    if (stream->fd.valid()) fcntl(stream->fd.get(), F_SETFL, O_NONBLOCK);
  }
  pid_ = fork();
  if (pid_ == 0) Exec(setup, arguments, fds);
  pidfd_ = Pidfd(pid_);
}

Job::~Job() {
  if (!waited_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (const pid_t pid : Processes()) kill(pid, SIGKILL);
}

void Job::Take(Stream* stream) {
  char buffer[64 << 10];
  for (;;) {
    const ssize_t n = read(stream->fd.get(), buffer, sizeof buffer);
    if (n > 0) {
      stream->text.append(buffer, static_cast<size_t>(n));
    } else {
      if (n == 0 || errno != EAGAIN) stream->fd.reset();  // EIO: the terminal's other end is closed
      return;
    }
  }
}

bool Job::Pump(Nanos deadline) {
  pollfd waits[3];
  nfds_t n = 0;
  for (Stream* stream : {&out_, &err_}) {
    if (stream->fd.valid() && !stream->paused) waits[n++] = {stream->fd.get(), POLLIN, 0};
  }
  if (n == 0) return false;
  if (poll(waits, n, Timeout(deadline)) <= 0) return false;
  for (Stream* stream : {&out_, &err_}) {
    if (stream->fd.valid() && !stream->paused) Take(stream);
  }
  return true;
}

std::string Job::AwaitIn(Stream* stream, const std::string& text) {
  const Nanos deadline = MonotonicNow() + kHang;
  for (;;) {
    const size_t at = stream->text.find(text, stream->searched[text]);
    const size_t begin = at + text.size();
    const size_t end = at == std::string::npos ? at : stream->text.find('\n', begin);
    if (end != std::string::npos) {
      stream->searched[text] = end;
      return stream->text.substr(begin, end - begin);
    }
    if (!Pump(deadline)) {
      ADD_FAILURE() << "'" << text << "' did not come. Output: " << out_.text
                    << "\nErrors: " << err_.text;
      return "2147483647";  // no process's: a test may go on to kill it, and 0 is its own group
    }
  }
}

void Job::AwaitText(const std::string& text) {
  const Nanos deadline = MonotonicNow() + kHang;
  while (out_.text.find(text) == std::string::npos) {
    if (!Pump(deadline)) {
      ADD_FAILURE() << "'" << text << "' did not come. Output: " << out_.text;
      return;
    }
  }
}

bool Job::Ends(Nanos limit) {
  pollfd wait = {pidfd_.get(), POLLIN, 0};
  return poll(&wait, 1, Timeout(MonotonicNow() + limit)) == 1;
}

int Job::Wait(Nanos limit) {
  const Nanos deadline = MonotonicNow() + limit;
  while (!waited_) {
    pollfd waits[3] = {{pidfd_.get(), POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
    if (out_.fd.valid() && !out_.paused) waits[1].fd = out_.fd.get();
    if (err_.fd.valid() && !err_.paused) waits[2].fd = err_.fd.get();
    if (poll(waits, 3, Timeout(deadline)) <= 0) {
      ADD_FAILURE() << "ruedarun has not ended. Output: " << out_.text << "\nErrors: " << err_.text;
      return -1000;
    }
    for (Stream* stream : {&out_, &err_}) {
      if (stream->fd.valid() && !stream->paused) Take(stream);
    }
    int status;
    if (waits[0].revents != 0 && waitpid(pid_, &status, 0) == pid_) {
      waited_ = true;
      exit_ = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    }
  }
  for (Stream* stream : {&out_, &err_}) {
    if (stream->fd.valid() && !stream->paused) Take(stream);
  }
  return exit_;
}

void Job::AwaitStop() {
  int status = 0;
  EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
  EXPECT_TRUE(WIFSTOPPED(status));
}

void Job::Type(const std::string& keys) const {
  EXPECT_EQ(write(terminal_.get(), keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
}

void Job::AwaitFullPipe() {
  const std::string path = "/proc/self/fd/" + std::to_string(out_.fd.get());
  const UniqueFd writer(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  pollfd wait = {writer.get(), POLLOUT, 0};
  const Nanos deadline = MonotonicNow() + kHang;
  while (poll(&wait, 1, 0) != 0 && MonotonicNow() < deadline) LookAgainSoon();
  EXPECT_LT(MonotonicNow(), deadline);
}

pid_t Job::supervisor() const {
  for (const pid_t pid : Processes()) {
    if (ParentOf(pid) == pid_) return pid;
  }
  ADD_FAILURE() << "no supervisor process";
  return -1;
}

std::vector<pid_t> Job::Processes() const {
  std::vector<pid_t> marked;
  const std::string entry = "LAUNCHER_TEST_MARK=" + mark_;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  while (const dirent* each = readdir(proc.get())) {
    const pid_t pid = atoi(each->d_name);
    if (pid <= 0 || pid == getpid()) continue;
    const std::string environment = ReadFile("/proc/" + std::to_string(pid) + "/environ");
    for (size_t at = 0; at < environment.size(); at = environment.find('\0', at) + 1) {
      if (strcmp(environment.c_str() + at, entry.c_str()) == 0) {
        marked.push_back(pid);
        break;
      }
      if (environment.find('\0', at) == std::string::npos) break;
    }
  }
  return marked;
}

std::string LinesOf(int rank, const std::string& text) {
  std::string prefix = "[";
  prefix += std::to_string(rank) + "] ";
  std::string lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    if (text.compare(begin, prefix.size(), prefix) == 0) {
      lines.append(text, begin + prefix.size(), end - begin - prefix.size());
    }
    begin = end;
  }
  return lines;
}

}  // namespace rueda
