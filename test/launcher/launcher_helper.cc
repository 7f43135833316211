// What the launcher's tests start as ranks, for what a shell script can't do:
//   launcher_helper daemon WORD   a daemon (setsid, two forks) that prints "daemon <pid>"; WORD
//                                 "stubborn": it ignores SIGTERM; then this process ends
//   launcher_helper environment   prints its environment as lines, "\n" escaped
//   launcher_helper descriptors   prints the numbers of its open descriptors
//   launcher_helper signals       prints its masks of blocked and ignored signals
//   launcher_helper cores         prints the cores that it may run on
//   launcher_helper secret        prints the seals and the bytes of the job's secret, and stays
//   launcher_helper lines SEED BYTES  lines of random bytes and lengths, to both outputs
//   launcher_helper verdict       rank 1 dies; rank 0 notices, and prints what the launcher says
//   launcher_helper lose          rank 1 dies; rank 0 notices, says so a little later, and ends
//                                 with status 6
//   launcher_helper blame         rank 0 blames rank 1 and ends with status 3; then rank 1 ends
//   with
//                                 status 7
//   launcher_helper save          has a worker, says "ready", and at SIGINT or SIGTERM which it was
//   and
//                                 whether the worker still answers; then ends, not the worker
//   launcher_helper take-part     the same, in the name of its rank
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "controller/failure/verdict_board.h"
#include "core/base/clock.h"

extern char** environ;

namespace rueda {
namespace {

int Daemon(const std::string& kind) {
  int ready[2];
  if (pipe(ready) != 0) return 1;
  if (fork() == 0) {
    setsid();
    if (fork() != 0) _exit(0);
    if (kind == "stubborn") signal(SIGTERM, SIG_IGN);
    dprintf(STDOUT_FILENO, "daemon %d\n", getpid());
    close(ready[1]);
    close(ready[0]);
    for (;;) pause();
  }
  close(ready[1]);
  char byte;
  return read(ready[0], &byte, 1) == 0 ? 0 : 1;
}

int PrintEnvironment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string text;
    for (const char* byte = *entry; *byte != 0; ++byte)
      text += *byte == '\n' ? "\\n" : std::string(1, *byte);
    entries.push_back(text);
  }
  std::sort(entries.begin(), entries.end());
  for (const std::string& entry : entries) printf("%s\n", entry.c_str());
  return 0;
}

int PrintDescriptors() {
  DIR* directory = opendir("/proc/self/fd");
  std::vector<int> numbers;
  while (const dirent* entry = readdir(directory)) {
    const int number = atoi(entry->d_name);
    if (entry->d_name[0] != '.' && number != dirfd(directory)) numbers.push_back(number);
  }
  closedir(directory);
  std::sort(numbers.begin(), numbers.end());
  std::string text = "descriptors";
  for (const int number : numbers) text.append(" ").append(std::to_string(number));
  printf("%s\n", text.c_str());
  return 0;
}

int PrintSignals() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigBlk") || line.starts_with("SigIgn")) printf("%s\n", line.c_str());
  }
  return 0;
}

int PrintCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::string text = "cores";
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) text.append(" ").append(std::to_string(core));
  }
  printf("%s\n", text.c_str());
  return 0;
}

int PrintSecret() {
  const int fd = atoi(getenv("RUEDA_SECRET_FD"));
  unsigned char bytes[4096];
  const ssize_t n = pread(fd, bytes, sizeof bytes, 0);
  std::string text;
  for (ssize_t i = 0; i < n; ++i) {
    char digits[3];
    snprintf(digits, sizeof digits, "%02x", bytes[i]);
    text += digits;
  }
  constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const bool sealed = fcntl(fd, F_GET_SEALS) == kSeals;
  const bool fixed = write(fd, "x", 1) < 0 && ftruncate(fd, 0) < 0;
  printf("secret %s %s\n", sealed && fixed ? "sealed" : "open", text.c_str());
  fflush(stdout);
  for (;;) pause();
}

void WriteAll(int fd, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = write(fd, text.data() + at, text.size() - at);
    if (n < 0) exit(1);
    at += static_cast<size_t>(n);
  }
}

// Each line: "<stream> <number> <length> " and as many bytes of noise without a line feed. Written
// in pieces that fit nothing.
int PrintLines(unsigned seed, size_t bytes) {
  std::mt19937 random(seed);
  std::string text[2];
  size_t numbers[2] = {0, 0};
  for (size_t written = 0; written < bytes;) {
    const int stream = static_cast<int>(random() % 2);
    const size_t length = random() % 50 == 0 ? random() % 100'000 : random() % 120;
    std::string line = (stream == 0 ? "o " : "e ") + std::to_string(numbers[stream]++) + " " +
                       std::to_string(length) + " ";
    for (size_t i = 0; i < length; ++i) {
      const char byte = static_cast<char>(random());
      line.push_back(byte == '\n' ? '\r' : byte);
    }
    line.push_back('\n');
    written += line.size();
    text[stream] += line;
    const size_t piece = std::min(text[stream].size(), static_cast<size_t>(random() % 10'000));
    WriteAll(stream + 1, text[stream].substr(0, piece));
    text[stream].erase(0, piece);
  }
  WriteAll(1, text[0] + "o end " + std::to_string(numbers[0]) + "\n");
  WriteAll(2, text[1] + "e end " + std::to_string(numbers[1]));  // no line feed
  return 0;
}

// Rank 1 dies once rank 0 watches it. Rank 0 returns as soon as it has noticed, with SIGTERM
// blocked; null when something else went wrong.
std::unique_ptr<VerdictBoard> LosePeer() {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name = std::string("launcher-test-") + getenv("RUEDA_JOB_ID");
  memcpy(address.sun_path + 1, name.data(), name.size());
  const socklen_t size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  char byte = 0;
  if (atoi(getenv("RUEDA_RANK")) == 1) {
    while (connect(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) sched_yield();
    if (read(fd, &byte, 1) != 1) return nullptr;  // rank 0 is ready
    kill(getpid(), SIGKILL);
  }
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  sigprocmask(SIG_BLOCK, &end, nullptr);
  auto board = VerdictBoard::Open(atoi(getenv("RUEDA_AGENT_FD")));
  if (!board.ok() || bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) return nullptr;
  listen(fd, 1);
  const int peer = accept(fd, nullptr, nullptr);
  if ((*board)->Read(1).has_value()) return nullptr;
  if (write(peer, "x", 1) != 1 || read(peer, &byte, 1) != 0) return nullptr;
  return *std::move(board);
}

bool ToldToEnd() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGTERM) == 1;
}

int AwaitVerdict() {
  const std::unique_ptr<VerdictBoard> board = LosePeer();
  if (board == nullptr) return 1;
  const Nanos begin = MonotonicNow();
  for (;;) {
    // In this order: when we are told to end, the verdict must be there.
    const bool told = ToldToEnd();
    if (const auto verdict = board->Read(1)) {
      printf("verdict %d after %ld us\n", verdict->wait_status,
             static_cast<long>((MonotonicNow() - begin) / kMicrosecond));
      return 0;
    }
    if (told) {
      printf("told to end before the verdict\n");
      return 1;
    }
    sched_yield();
  }
}

int SayWhatWasLost() {
  constexpr Nanos kTimeToSayIt = 100 * kMillisecond;
  const std::unique_ptr<VerdictBoard> board = LosePeer();
  if (board == nullptr) return 1;
  while (!board->Read(1).has_value()) sched_yield();
  const Nanos begin = MonotonicNow();
  while (MonotonicNow() - begin < kTimeToSayIt) sched_yield();
  printf(ToldToEnd() ? "told to end at once\n" : "lost rank 1\n");
  return 6;
}

int BlamePeer() {
  auto board = VerdictBoard::Open(atoi(getenv("RUEDA_AGENT_FD")));
  if (!board.ok()) return 1;
  if (atoi(getenv("RUEDA_RANK")) == 0) {
    (*board)->Blame(0, 1);
    return 3;
  }
  while (!(*board)->Read(0).has_value()) sched_yield();
  return 7;
}

// The worker has the default handlers, as a data loader's has.
int SaveWithWorker() {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return 1;
  char byte = 'x';
  if (fork() == 0) {
    close(pair[0]);
    while (read(pair[1], &byte, 1) == 1 && write(pair[1], &byte, 1) == 1) {
    }
    for (;;) pause();
  }
  close(pair[1]);
  signal(SIGPIPE, SIG_IGN);
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGINT);
  sigaddset(&end, SIGTERM);
  sigprocmask(SIG_BLOCK, &end, nullptr);
  dprintf(STDOUT_FILENO, "ready %d\n", getpid());
  int number = 0;
  sigwait(&end, &number);
  const bool answers = write(pair[0], &byte, 1) == 1 && read(pair[0], &byte, 1) == 1;
  dprintf(STDOUT_FILENO, "%s: %s\n", number == SIGINT ? "SIGINT" : "SIGTERM",
          answers ? "saved" : "the worker is gone");
  return answers ? 0 : 1;
}

int TakePart() {
  auto board = VerdictBoard::Open(atoi(getenv("RUEDA_AGENT_FD")));
  if (!board.ok()) return 1;
  (*board)->TakePart(atoi(getenv("RUEDA_RANK")));
  return SaveWithWorker();
}

int Main(const std::vector<std::string>& words) {
  const std::string& what = words.at(1);
  if (what == "daemon") return Daemon(words.at(2));
  if (what == "environment") return PrintEnvironment();
  if (what == "descriptors") return PrintDescriptors();
  if (what == "signals") return PrintSignals();
  if (what == "cores") return PrintCores();
  if (what == "secret") return PrintSecret();
  if (what == "lines") {
    const int rank = atoi(getenv("RUEDA_RANK"));
    return PrintLines(static_cast<unsigned>(std::stoi(words.at(2)) + rank),
                      std::stoul(words.at(3)));
  }
  if (what == "verdict") return AwaitVerdict();
  if (what == "lose") return SayWhatWasLost();
  if (what == "blame") return BlamePeer();
  if (what == "save") return SaveWithWorker();
  if (what == "take-part") return TakePart();
  return 2;
}

}  // namespace
}  // namespace rueda

int main(int argc, char** argv) {
  return rueda::Main(std::vector<std::string>(argv, argv + argc));
}
