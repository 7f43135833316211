#include "core/trace/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/base/limits.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/no_write_signals.h"
#include "core/base/unique_fd.h"
#include "core/trace/old_dumps.h"

namespace rueda::trace {
namespace {

constexpr const char* kNames[static_cast<int>(Event::kCount)] = {
    "none",       "init",     "shutdown",     "submit",      "define",
    "order",      "reject",   "bucket_start", "bucket_done", "complete",
    "wait_begin", "wait_end", "sleep",        "wake",        "fail"};

// Relaxed atomics: a dump from another thread may catch an entry half written, and says so by its
// time; it must not be undefined behaviour.
struct Entry {
  std::atomic<int64_t> time;
  std::atomic<uint32_t> id;
  std::atomic<uint32_t> event_and_rank;  // see PackEvent
  std::atomic<uint64_t> a;
  std::atomic<uint64_t> b;
};

static_assert(sizeof(Entry) == 32);

// Eight bits of event below the rank, of which there are more than 16 bits hold.
uint32_t PackEvent(Event event, int rank) {
  return static_cast<uint32_t>(rank) << 8 | static_cast<uint32_t>(event);
}
uint32_t EventOf(uint32_t packed) {
  return packed & 0xFF;
}
int RankOf(uint32_t packed) {
  return static_cast<int32_t>(packed) >> 8;
}
static_assert(static_cast<int>(Event::kCount) <= 0xFF && kRanksMax < (1 << 23));

struct Ring {
  std::atomic<Ring*> next{nullptr};
  std::atomic<bool> taken{false};
  std::atomic<int> thread{0};
  std::atomic<uint64_t> count{0};
  Entry entries[kEventsPerThread];
};

Ring first_ring;
std::atomic<Ring*> rings{&first_ring};
// Where the dump goes: null until somebody says. Read by the signal handler, so what it pointed to
// stays for ever.
std::atomic<const char*> dump_path{nullptr};
// Whether nobody has asked for that directory.
std::atomic<bool> is_temporary{true};

Ring* TakeRing() {
  for (Ring* ring = rings.load(std::memory_order_acquire); ring != nullptr;
       ring = ring->next.load(std::memory_order_relaxed)) {
    bool expected = false;
    if (ring->taken.compare_exchange_strong(expected, true, std::memory_order_acquire)) return ring;
  }
  Ring* ring = new (std::nothrow) Ring();
  if (ring == nullptr) return &first_ring;  // better a shared one than none
  ring->taken.store(true, std::memory_order_relaxed);
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
  const uint32_t packed = entry.event_and_rank.load(std::memory_order_relaxed);
  const uint32_t event = EventOf(packed);
  if (event == 0 || event >= static_cast<uint32_t>(Event::kCount)) return;
  const uint64_t a = entry.a.load(std::memory_order_relaxed);
  const uint64_t b = entry.b.load(std::memory_order_relaxed);
  out.Number(entry.time.load(std::memory_order_relaxed));
  out.Text(" rank ");
  out.Number(RankOf(packed));
  out.Text(" ");
  out.Text(kNames[event]);
  out.Text(" id ");
  out.Number(entry.id.load(std::memory_order_relaxed));
  if (event == static_cast<uint32_t>(Event::kDefine)) {
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

// A new file, or an earlier dump of this user's. The name can be guessed, and anybody may have put
// something else there: a link to another file of this user's, or a pipe that nobody reads. -1, and
// errno: it can't be opened, or it is such a thing. Async-signal-safe.
int OpenDump(const char* path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  UniqueFd fd(open(path, kFlags, 0600));
  struct stat file;
  if (!fd.valid() || fstat(fd.get(), &file) != 0) return -1;
  if (!S_ISREG(file.st_mode) || file.st_uid != geteuid() || file.st_nlink != 1) {
    errno = EEXIST;
    return -1;
  }
  return ftruncate(fd.get(), 0) == 0 ? fd.release() : -1;
}

void OnSignal(int) {
  const int saved = errno;
  const UniqueFd fd(OpenDump(dump_path.load(std::memory_order_acquire)));
  if (fd.valid()) Dump(fd.get());
  errno = saved;
}

}  // namespace

Nanos Record(Event event, uint32_t id, uint64_t a, uint64_t b) {
  const Nanos now = MonotonicNow();
  RecordAt(now, event, id, a, b);
  return now;
}

void RecordAt(Nanos time, Event event, uint32_t id, uint64_t a, uint64_t b) {
  thread_local RingOwner owner;
  Ring& ring = *owner.ring;
  const uint64_t count = ring.count.load(std::memory_order_relaxed);
  Entry& entry = ring.entries[count % kEventsPerThread];
  entry.time.store(time, std::memory_order_relaxed);
  entry.id.store(id, std::memory_order_relaxed);
  entry.event_and_rank.store(PackEvent(event, LogRank()), std::memory_order_relaxed);
  entry.a.store(a, std::memory_order_relaxed);
  entry.b.store(b, std::memory_order_relaxed);
  ring.count.store(count + 1, std::memory_order_release);
}

void RecordName(uint32_t id, absl::string_view name) {
  uint64_t words[2] = {0, 0};
  name.copy(reinterpret_cast<char*>(words), sizeof words);
  Record(Event::kDefine, id, words[0], words[1]);
}

void Dump(int fd) {
  const NoWriteSignals held;
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
  absl::StrAppend(&path, "/", DumpName(getpid()));
  static Mutex mutex;
  static auto* const paths = new std::set<std::string>();  // every path that there was
  MutexLock lock(mutex);
  is_temporary.store(directory.empty(), std::memory_order_relaxed);
  dump_path.store(paths->insert(std::move(path)).first->c_str(), std::memory_order_release);
}

absl::StatusOr<std::string> DumpToFile() {
  if (dump_path.load(std::memory_order_acquire) == nullptr) SetDirectory("");
  const std::string path = dump_path.load(std::memory_order_acquire);
  static Mutex mutex;  // ranks that are threads fail together, and all write this file
  MutexLock lock(mutex);
  const UniqueFd fd(OpenDump(path.c_str()));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("writing ", path));
  Dump(fd.get());
  if (is_temporary.load(std::memory_order_relaxed)) {
    RemoveOldDumps(path.substr(0, path.rfind('/')));
  }
  return path;
}

void InstallSignalHandler() {
  if (dump_path.load(std::memory_order_acquire) == nullptr) SetDirectory("");
  struct sigaction current;
  if (sigaction(SIGUSR2, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
  struct sigaction ours = {};
  ours.sa_handler = OnSignal;
  ours.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &ours, nullptr);
}

}  // namespace rueda::trace
