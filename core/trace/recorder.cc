#include "core/trace/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/unique_fd.h"

namespace rueda::trace {
namespace {

constexpr const char* kNames[static_cast<int>(Event::kCount)] = {
    "none",     "init",   "shutdown",     "submit",      "announce", "define",
    "order",    "reject", "bucket_start", "bucket_done", "complete", "wait_begin",
    "wait_end", "sleep",  "wake",         "fail"};

// Relaxed atomics: a dump from another thread may catch an entry half written, and says so by its
// time; it must not be undefined behaviour.
struct Entry {
  std::atomic<int64_t> time;
  std::atomic<uint32_t> id;
  std::atomic<uint16_t> event;
  std::atomic<int16_t> rank;
  std::atomic<uint64_t> a;
  std::atomic<uint64_t> b;
};

struct Ring {
  std::atomic<Ring*> next{nullptr};
  std::atomic<bool> taken{true};
  std::atomic<int> thread{0};
  std::atomic<uint64_t> count{0};
  Entry entries[kEventsPerThread];
};

std::atomic<Ring*> rings{nullptr};
char dump_path[4096] = "";

Ring* TakeRing() {
  for (Ring* ring = rings.load(std::memory_order_acquire); ring != nullptr;
       ring = ring->next.load(std::memory_order_relaxed)) {
    bool expected = false;
    if (ring->taken.compare_exchange_strong(expected, true, std::memory_order_acquire)) return ring;
  }
  Ring* ring = new Ring();
  Ring* head = rings.load(std::memory_order_relaxed);
  do {
    ring->next.store(head, std::memory_order_relaxed);
  } while (!rings.compare_exchange_weak(head, ring, std::memory_order_release,
                                        std::memory_order_relaxed));
  return ring;
}

struct RingOwner {
  RingOwner() : ring(TakeRing()) {
    ring->thread.store(static_cast<int>(syscall(SYS_gettid)), std::memory_order_relaxed);
  }
  ~RingOwner() { ring->taken.store(false, std::memory_order_release); }
  Ring* ring;
};

// A writer that may run inside a signal handler: no allocation, no locale, no lock.
class SafeWriter {
 public:
  explicit SafeWriter(int fd) : fd_(fd) {}
  ~SafeWriter() { Flush(); }
  void Text(const char* text) { Bytes(text, strlen(text)); }
  void Bytes(const char* data, size_t size) {
    for (size_t i = 0; i < size; ++i) {
      if (used_ == sizeof buffer_) Flush();
      buffer_[used_++] = data[i];
    }
  }
  void Number(int64_t value) {
    char digits[24];
    int n = 0;
    uint64_t rest = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    do {
      digits[n++] = static_cast<char>('0' + rest % 10);
      rest /= 10;
    } while (rest > 0);
    if (value < 0) digits[n++] = '-';
    while (n > 0) Bytes(&digits[--n], 1);
  }

 private:
  void Flush() {
    size_t done = 0;
    while (done < used_) {
      const ssize_t n = write(fd_, buffer_ + done, used_ - done);
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    used_ = 0;
  }
  int fd_;
  size_t used_ = 0;
  char buffer_[2048];
};

void DumpEntry(const Entry& entry, SafeWriter& out) {
  const uint16_t event = entry.event.load(std::memory_order_relaxed);
  if (event == 0 || event >= static_cast<uint16_t>(Event::kCount)) return;
  const uint64_t a = entry.a.load(std::memory_order_relaxed);
  const uint64_t b = entry.b.load(std::memory_order_relaxed);
  out.Number(entry.time.load(std::memory_order_relaxed));
  out.Text(" rank ");
  out.Number(entry.rank.load(std::memory_order_relaxed));
  out.Text(" ");
  out.Text(kNames[event]);
  out.Text(" id ");
  out.Number(entry.id.load(std::memory_order_relaxed));
  if (event == static_cast<uint16_t>(Event::kDefine)) {
    char name[16];
    memcpy(name, &a, 8);
    memcpy(name + 8, &b, 8);
    out.Text(" name ");
    for (const char c : name) {
      if (c == 0) break;
      const char shown = c >= 32 && c < 127 ? c : '?';
      out.Bytes(&shown, 1);
    }
  } else {
    out.Text(" a ");
    out.Number(static_cast<int64_t>(a));
    out.Text(" b ");
    out.Number(static_cast<int64_t>(b));
  }
  out.Text("\n");
}

int OpenDump() {
  return open(dump_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
}

void OnSignal(int) {
  const int saved = errno;
  const UniqueFd fd(OpenDump());
  if (fd.valid()) Dump(fd.get());
  errno = saved;
}

}  // namespace

void Record(Event event, uint32_t id, uint64_t a, uint64_t b) {
  thread_local RingOwner owner;
  Ring& ring = *owner.ring;
  const uint64_t count = ring.count.load(std::memory_order_relaxed);
  Entry& entry = ring.entries[count % kEventsPerThread];
  entry.time.store(MonotonicNow(), std::memory_order_relaxed);
  entry.id.store(id, std::memory_order_relaxed);
  entry.event.store(static_cast<uint16_t>(event), std::memory_order_relaxed);
  entry.rank.store(static_cast<int16_t>(LogRank()), std::memory_order_relaxed);
  entry.a.store(a, std::memory_order_relaxed);
  entry.b.store(b, std::memory_order_relaxed);
  ring.count.store(count + 1, std::memory_order_release);
}

void RecordName(uint32_t id, absl::string_view name) {
  uint64_t words[2] = {0, 0};
  memcpy(words, name.data(), name.size() < sizeof words ? name.size() : sizeof words);
  Record(Event::kDefine, id, words[0], words[1]);
}

void Dump(int fd) {
  SafeWriter out(fd);
  out.Text("# rueda flight recorder, pid ");
  out.Number(getpid());
  out.Text("; times are CLOCK_MONOTONIC in ns, now ");
  out.Number(MonotonicNow());
  out.Text("\n");
  for (Ring* ring = rings.load(std::memory_order_acquire); ring != nullptr;
       ring = ring->next.load(std::memory_order_relaxed)) {
    const uint64_t count = ring->count.load(std::memory_order_acquire);
    if (count == 0) continue;
    out.Text("# thread ");
    out.Number(ring->thread.load(std::memory_order_relaxed));
    out.Text(", events so far ");
    out.Number(static_cast<int64_t>(count));
    out.Text("\n");
    const uint64_t kept = count < kEventsPerThread ? count : kEventsPerThread;
    for (uint64_t i = count - kept; i < count; ++i) {
      DumpEntry(ring->entries[i % kEventsPerThread], out);
    }
  }
}

void SetDirectory(absl::string_view directory) {
  std::string path(directory);
  if (path.empty()) {
    const char* temporary = std::getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe)
    path = temporary != nullptr && *temporary != 0 ? temporary : "/tmp";
  }
  path += "/rueda-recorder." + std::to_string(getpid()) + ".txt";
  if (path.size() < sizeof dump_path) memcpy(dump_path, path.c_str(), path.size() + 1);
}

absl::StatusOr<std::string> DumpToFile() {
  if (dump_path[0] == 0) SetDirectory("");
  const UniqueFd fd(OpenDump());
  if (!fd.valid()) return ErrnoStatus(errno, std::string("writing ") + dump_path);
  Dump(fd.get());
  return std::string(dump_path);
}

void InstallSignalHandler() {
  if (dump_path[0] == 0) SetDirectory("");
  struct sigaction current;
  if (sigaction(SIGUSR2, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
  struct sigaction ours = {};
  ours.sa_handler = OnSignal;
  ours.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &ours, nullptr);
}

}  // namespace rueda::trace
