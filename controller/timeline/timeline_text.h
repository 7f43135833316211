// The timeline's file, as text: turns records into events of the Trace Event Format, in its form of
// a JSON array, one event a line. A separator stands before an event and not behind it, so that
// whole lines are valid JSON once a "]" is added.
//
// An event does not go over the end of a page of the file but when it is longer than one: blanks
// stand before it instead. A write within a page is done whole or not at all when the process is
// killed, so what is written page by page ends with a whole line.
//
// Owned by a Timeline; called by one thread at a time. PURE
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/clock.h"

namespace rueda {

// A track is a row of the viewer, the "tid" of the file. What is drawn on one never overlaps but by
// lying one within the other.
inline constexpr uint32_t kEventsTrack = 0;        // what concerns the whole rank
inline constexpr uint32_t kTensorTracks = 10'000;  // 1 to this: a tensor each; none left: the last
inline constexpr uint32_t kFirstLaneTrack = 20'000;     // plus the process set, and
                                                        // kProcessSetsMax for each other way
inline constexpr uint32_t kFirstThreadTrack = 100'000;  // plus the kernel's number of the thread

inline constexpr size_t kTimelinePageBytes = 4 << 10;  // of the system's file cache

// What happened, in 64 bytes. Names are string literals.
struct TimelineRecord {
  enum class What : uint32_t {
    kName,    // `track` is called `text`
    kLane,    // of lane `track`, whose backend is `text`
    kTensor,  // one tensor's way: from `submitted` on it was negotiated, from `ordered` on it
              // waited for its lane, from `started` to `done` it was moved in bucket `bucket`. What
              // it did not come to is 0; it always has `done`
    kBucket,  // lane `track` moved a bucket; precedes its tensors
    kSpan,    // `name` from `started` to `done`, about tensor `row`, if any
    kInstant,  // `name` at `done`: `text`, about something that began at `started`
  };

  What what : 8;
  uint32_t in_plan : 1;   // kBucket: its data came with the plan, and no backend moved it
  uint32_t tensors : 23;  // kBucket
  uint32_t track;         // kTensor: 0 when its name was lost, and then it is left out
  uint32_t row;           // a tensor's track: kBucket: of its first one; 0: none
  uint32_t bucket;        // number; 0: none
  const char* name;
  union {
    Nanos submitted;
    Nanos pack;   // kBucket: spent copying tensors together; 0: not known
    Nanos since;  // kName, kLane: the timeline's beginning that this is meant for
  };
  union {
    Nanos ordered;
    Nanos unpack;  // kBucket: spent copying them apart
  };
  Nanos started;
  Nanos done;
  union {
    int64_t bytes;
    std::string* text;  // owned
  };

  bool has_text() const {
    return what == What::kName || what == What::kLane || what == What::kInstant;
  }
};
static_assert(sizeof(TimelineRecord) == 64);

// Whose file it is.
struct TimelineOwner {
  int rank = 0;
  int size = 1;
  std::string host;
  int pid = 0;
  uint64_t membership = 1;
  // What to add to this host's clock to get rank 0's, and by how much that may be wrong.
  Nanos clock_offset = 0;
  Nanos clock_uncertainty = 0;
};

class TimelineText {
 public:
  // `began`: what began before it is left out. `unix_time`: of that moment, for people.
  // `thread_name`: by the kernel's number.
  TimelineText(const TimelineOwner& owner, Nanos began, Nanos unix_time,
               std::function<std::string(int)> thread_name);

  // Appends what follows from the record, and deletes its text.
  void Write(const TimelineRecord& record);
  // So many records were lost since the last time.
  void Dropped(uint64_t records, Nanos now);
  // The last event, and the end of the array.
  void End(Nanos now);

  // What stands behind all that was cleared before.
  absl::string_view text() {
    EndEvent();
    return {buffer_.get(), used_};
  }
  void Clear() {
    EndEvent();
    offset_ += used_;
    used_ = event_ = 0;
  }

 private:
  static constexpr size_t kBufferBytesMin = 64 << 10;

  // Room for `bytes` more behind what has been written.
  char* Room(size_t bytes) {
    if (used_ + bytes > size_) Grow(used_ + bytes);
    return buffer_.get() + used_;
  }
  void Put(absl::string_view text) {
    memcpy(Room(text.size()), text.data(), text.size());
    used_ += text.size();
  }
  void PutNumber(uint64_t number);
  void PutMicros(Nanos time);
  void Grow(size_t bytes_min);
  void EndEvent() {
    const size_t begin = offset_ + event_;
    const size_t bytes = used_ - event_;
    if (begin % kTimelinePageBytes + bytes > kTimelinePageBytes) ToNextPage();
    event_ = used_;
  }
  void ToNextPage();

  void Span(absl::string_view prefix, const char* name, uint32_t track, Nanos begin, Nanos end);
  void Instant(const char* name, uint32_t track, Nanos at);
  void Metadata(const char* name, uint32_t track);
  void NameTrack(uint32_t track, absl::string_view name, uint32_t order);
  void NameThread(uint32_t track);
  void Tensor(const TimelineRecord& record);
  void Bucket(const TimelineRecord& record);
  absl::string_view QuotedName(uint32_t row) const;

  const TimelineOwner owner_;
  const Nanos began_;
  const std::function<std::string(int)> thread_name_;
  const std::string pid_;   // `"pid":3,"tid":`
  const std::string span_;  // how every span begins

  std::unique_ptr<char[]> buffer_{new char[kBufferBytesMin]};
  size_t used_ = 0;
  size_t size_ = kBufferBytesMin;
  size_t event_ = 0;                   // where the latest event begins
  size_t offset_ = 0;                  // of the buffer in the file
  std::vector<std::string> names_;     // tensors', by track, as JSON strings
  std::vector<std::string> backends_;  // by lane, as JSON strings
  std::set<uint32_t> threads_;         // tracks of threads that have a name
  uint32_t bucket_ = 0;                // the latest bucket
  std::string bucket_args_ = "}}";     // of each of its tensors, and the end of the event
  uint64_t events_ = 0;                // spans and instants
  uint64_t dropped_ = 0;
};

// As a JSON string, quotes and all. What is not UTF-8 becomes U+FFFD.
std::string JsonQuoted(absl::string_view text);

}  // namespace rueda
