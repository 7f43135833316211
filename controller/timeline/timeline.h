// The timeline of one rank: what each tensor went through and when, in a file that chrome://tracing
// and Perfetto open. On when somebody asks; docs/guides/timeline.md says what is in the file.
//
// Owned by the runtime. Whoever has something to tell appends a record to a bounded ring; a thread
// of the timeline's own, of the lowest priority, formats and writes them. Nobody who appends ever
// waits: what finds the ring full is counted, and the file says so.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "controller/timeline/timeline_ring.h"
#include "controller/timeline/timeline_text.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace rueda {

class Timeline {
 public:
  Timeline() = default;
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Before the first start.
  void SetOwner(TimelineOwner owner) { owner_ = std::move(owner); }

  // Begins a file, in place of one of that name. FAILED_PRECONDITION when it is on already, or when
  // another timeline is being written to this file; else what the system says.
  absl::Status Start(const std::string& path) ABSL_LOCKS_EXCLUDED(mutex_);
  // Writes what there is and ends the file. FAILED_PRECONDITION when it is off; what went wrong
  // with writing, if something did.
  absl::Status Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // Any thread -------------------------------------------------------------------------------

  // Since when it is on; kForever: it is off. Tells one file from another. What began before that
  // is not written, so records need no further care when the timeline stops, or starts anew, while
  // they are made: one that comes too late for its file is in none.
  Nanos began() const { return began_.load(std::memory_order_acquire); }
  bool on() const { return began() != kForever; }

  // While it is on: fill(i, record) makes each of `count` records, in order; one for which there is
  // no room is not asked for. False when that was so.
  template <typename Fill>
  bool Append(uint32_t count, Fill fill) {
    uint32_t done = 0;
    while (done < count) {
      const uint32_t some = std::min(count - done, kAppendMax);
      if (!ring_->Push(some, [&](uint32_t i, TimelineRecord& to) { fill(done + i, to); })) break;
      done += some;
    }
    if (done > 0) WakeWriter();
    if (done < count) dropped_.fetch_add(count - done, std::memory_order_relaxed);
    return done == count;
  }
  // The same for one record, which is made from what is given.
  bool Name(TimelineRecord::What what, uint32_t track, std::string text, Nanos since);
  void Span(const char* name, uint32_t track, uint32_t row, Nanos begin, Nanos end);
  void Instant(const char* name, uint32_t track, std::string text, Nanos since, Nanos at);

  // The calling thread's track.
  static uint32_t ThreadTrack();

  // How many records may be on their way.
  static constexpr uint32_t kRecordsMax = 1 << 16;

 private:
  static constexpr uint32_t kAppendMax = 1'024;  // takes its places in the ring at once
  using Ring = TimelineRing<TimelineRecord>;
  enum : uint32_t { kAwake = 0, kNapping = 1, kAsleep = 2 };

  bool AppendText(TimelineRecord record, std::string text);
  void WakeWriter();
  void WakeWriterNow();

  // The writer's, or of whoever holds the mutex while there is none.
  void Run();
  uint32_t Drain();
  void DrainLast();
  void Flush();
  void Rest(uint32_t state, Nanos deadline);

  TimelineOwner owner_;  // constant after the first start

  std::atomic<Nanos> began_{kForever};
  std::atomic<uint64_t> dropped_{0};
  std::atomic<uint32_t> writer_state_{kAwake};
  std::atomic<bool> stopping_{false};
  std::unique_ptr<Ring> ring_;  // from the first start on, for ever

  Mutex mutex_;  // held through Start and Stop
  std::thread writer_ ABSL_GUARDED_BY(mutex_);

  // The writer's while it runs, else under the mutex.
  std::string path_;
  UniqueFd file_;
  size_t file_bytes_ = 0;
  std::unique_ptr<TimelineText> text_;
  absl::Status written_;  // how writing went
};

// "t.json" is rank 0's own file; rank 3's is "t.3.json". Without the ending: "t", "t.3". `word`, if
// any, comes before the rank.
std::string TimelinePath(absl::string_view path, absl::string_view word, int rank);

}  // namespace rueda
