#include "controller/timeline/timeline.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/futex.h"
#include "core/base/log.h"
#include "core/base/no_write_signals.h"
#include "core/base/threads.h"

namespace rueda {
namespace {

// What has been appended is in the file after about this time.
constexpr Nanos kFlushPeriod = 100 * kMillisecond;
constexpr size_t kFlushBytes = 64 << 10;
// So many records are read between two looks at whether to stop.
constexpr uint32_t kDrainRecords = 256;
// How long Stop waits for threads that are in the middle of an append.
constexpr Nanos kAppendPatience = 100 * kMillisecond;
constexpr int kLowestPriority = 19;

Nanos UnixTime() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

// "" once it has ended.
std::string ThreadName(int thread) {
  std::ifstream file(absl::StrCat("/proc/self/task/", thread, "/comm"));
  std::string name;
  std::getline(file, name);
  return name;
}

absl::StatusOr<UniqueFd> OpenFile(const std::string& path) {
  // A pipe that nobody reads would hold up whoever opens it: that is an error instead (ENXIO).
  UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!file.valid() || fcntl(file.get(), F_SETFL, 0) != 0) {
    return ErrnoStatus(errno, absl::StrCat("opening the timeline ", path));
  }
  // Two ranks, or two jobs, that write to one file would destroy each other's. Where there are no
  // locks there is no such help.
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(
        absl::StrCat("another timeline is being written to ", path));
  }
  // What can't be made shorter, such as /dev/null, need not be.
  if (ftruncate(file.get(), 0) != 0 && errno != EINVAL) {
    return ErrnoStatus(errno, absl::StrCat("truncating the timeline ", path));
  }
  return file;
}

absl::Status WriteAll(int fd, const std::string& path, absl::string_view text) {
  const NoWriteSignals held;
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("writing the timeline ", path));
    text.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

}  // namespace

std::string TimelinePath(absl::string_view path, absl::string_view word, int rank) {
  constexpr absl::string_view kEnding = ".json";
  absl::string_view stem = path;
  const bool ends = absl::ConsumeSuffix(&stem, kEnding);
  return absl::StrCat(stem, word.empty() ? "" : ".", word, rank == 0 ? "" : absl::StrCat(".", rank),
                      ends ? kEnding : "");
}

Timeline::~Timeline() {
  if (on()) (void)Stop();  // what went wrong has been logged
  if (ring_ == nullptr) return;
  ring_->Pop(kRecordsMax, [](const TimelineRecord& late) {
    if (late.has_text()) delete late.text;
  });
}

// Beginning and end ---------------------------------------------------------------------------

absl::Status Timeline::Start(const std::string& path) {
  MutexLock lock(mutex_);
  if (on()) {
    return absl::FailedPreconditionError(absl::StrCat("the timeline is on already: ", path_));
  }
  RUEDA_ASSIGN_OR_RETURN(file_, OpenFile(path));
  path_ = path;
  file_bytes_ = 0;
  if (ring_ == nullptr) ring_ = std::make_unique<Ring>(kRecordsMax);
  dropped_.store(0, std::memory_order_relaxed);
  stopping_.store(false, std::memory_order_relaxed);
  written_ = absl::OkStatus();
  const Nanos began = MonotonicNow();
  text_ = std::make_unique<TimelineText>(owner_, began, UnixTime(), &ThreadName);
  Flush();
  if (!written_.ok()) {
    file_.reset();
    return written_;
  }
  const auto run = [this, rank = owner_.rank] {
    SetLogRank(rank);
    Run();
  };
  if (absl::Status status = StartThread("the timeline's thread", "rueda-timeline", run, &writer_);
      !status.ok()) {
    file_.reset();
    return status;
  }
  began_.store(began, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status Timeline::Stop() {
  MutexLock lock(mutex_);
  if (!on()) return absl::FailedPreconditionError("the timeline is off");
  began_.store(kForever, std::memory_order_release);
  stopping_.store(true, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  WakeWriterNow();
  writer_.join();
  // Here rather than there, as this thread is not of the lowest priority.
  DrainLast();
  text_->End(MonotonicNow());
  Flush();
  file_.reset();
  text_.reset();
  return written_;
}

// Appending -----------------------------------------------------------------------------------

uint32_t Timeline::ThreadTrack() {
  thread_local const auto thread = static_cast<uint32_t>(syscall(SYS_gettid));
  return kFirstThreadTrack + thread;
}

bool Timeline::AppendText(TimelineRecord record, std::string text) {
  record.text = new std::string(std::move(text));
  const bool done = Append(1, [&](uint32_t, TimelineRecord& slot) { slot = record; });
  if (!done) delete record.text;
  return done;
}

bool Timeline::Name(TimelineRecord::What what, uint32_t track, std::string text, Nanos since) {
  TimelineRecord record = {};
  record.what = what;
  record.track = track;
  record.since = since;
  return AppendText(record, std::move(text));
}

void Timeline::Instant(const char* name, uint32_t track, std::string text, Nanos since, Nanos at) {
  TimelineRecord record = {};
  record.what = TimelineRecord::What::kInstant;
  record.track = track;
  record.name = name;
  record.started = since;
  record.done = at;
  AppendText(record, std::move(text));
}

void Timeline::Span(const char* name, uint32_t track, uint32_t row, Nanos begin, Nanos end) {
  Append(1, [&](uint32_t, TimelineRecord& record) {
    record.what = TimelineRecord::What::kSpan;
    record.track = track;
    record.row = row;
    record.name = name;
    record.started = begin;
    record.done = end;
  });
}

// A writer that naps comes back by itself, and need not be woken for every record.
void Timeline::WakeWriter() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint32_t state = writer_state_.load(std::memory_order_relaxed);
  if (state == kAwake || (state == kNapping && ring_->used() < kRecordsMax / 2)) return;
  WakeWriterNow();
}

void Timeline::WakeWriterNow() {
  if (writer_state_.exchange(kAwake, std::memory_order_acq_rel) != kAwake) {
    FutexWakeAll(writer_state_);
  }
}

// The writer ----------------------------------------------------------------------------------

void Timeline::Run() {
  // It must never take a core from a thread that trains, also under real-time scheduling.
  const sched_param none = {};
  sched_setscheduler(0, SCHED_OTHER, &none);
  setpriority(PRIO_PROCESS, 0, kLowestPriority);
  while (!stopping_.load(std::memory_order_acquire)) {
    bool wrote = false;
    while (!stopping_.load(std::memory_order_relaxed) && Drain() > 0) wrote = true;
    Flush();
    if (wrote || ring_->used() > 0) {
      Rest(kNapping, MonotonicNow() + kFlushPeriod);
    } else {
      Rest(kAsleep, kForever);
    }
  }
}

// As everywhere: says that it sleeps, looks once more, sleeps.
void Timeline::Rest(uint32_t state, Nanos deadline) {
  writer_state_.store(state, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint32_t used_max = state == kNapping ? kRecordsMax / 2 : 0;
  if (!stopping_.load(std::memory_order_relaxed) && ring_->used() <= used_max) {
    FutexWait(writer_state_, state, deadline);
  }
  writer_state_.store(kAwake, std::memory_order_relaxed);
}

// Some of what is there, as text. Returns how many records that were.
uint32_t Timeline::Drain() {
  const uint32_t count =
      ring_->Pop(kDrainRecords, [&](const TimelineRecord& record) { text_->Write(record); });
  if (const uint64_t dropped = dropped_.exchange(0, std::memory_order_relaxed); dropped > 0) {
    text_->Dropped(dropped, MonotonicNow());
  }
  if (text_->text().size() >= kFlushBytes) Flush();
  return count;
}

// All that was appended while the timeline was on, also by threads that are still at it.
void Timeline::DrainLast() {
  const Nanos deadline = MonotonicNow() + kAppendPatience;
  while (true) {
    if (Drain() > 0) continue;
    const uint32_t left = ring_->used();
    if (left == 0) return;
    if (MonotonicNow() >= deadline) {
      text_->Dropped(left, MonotonicNow());
      return;
    }
    sched_yield();
  }
}

// Page by page, so that a killed process leaves whole lines.
void Timeline::Flush() {
  absl::string_view rest = text_->text();
  while (written_.ok() && !rest.empty()) {
    const size_t room = kTimelinePageBytes - file_bytes_ % kTimelinePageBytes;
    const absl::string_view piece = rest.substr(0, room);
    written_ = WriteAll(file_.get(), path_, piece);
    if (!written_.ok()) RUEDA_LOG(Error) << written_.message() << "; it ends here";
    file_bytes_ += piece.size();
    rest.remove_prefix(piece.size());
  }
  text_->Clear();
}

}  // namespace rueda
