// PURE
#include "controller/timeline/timeline_text.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/limits.h"
#include "core/base/utf8.h"

namespace rueda {
std::string JsonQuoted(absl::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string quoted = "\"";
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const auto byte = static_cast<uint8_t>(text[0]);
    if (length == 0) {
      quoted += "\\ufffd";
    } else if (byte == '"' || byte == '\\') {
      quoted += {'\\', text[0]};
    } else if (byte < 0x20) {
      quoted += {'\\', 'u', '0', '0', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      quoted.append(text.data(), length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return quoted + '"';
}

TimelineText::TimelineText(const TimelineOwner& owner, Nanos began, Nanos unix_time,
                           std::function<std::string(int)> thread_name)
    : owner_(owner),
      began_(began),
      thread_name_(std::move(thread_name)),
      pid_(absl::StrCat("\"pid\":", owner.rank, ",\"tid\":")),
      span_(absl::StrCat(",\n{\"ph\":\"X\",", pid_)) {
  const std::string host = JsonQuoted(owner.host);
  const std::string process = JsonQuoted(absl::StrCat("rank ", owner.rank, " (", owner.host, ")"));
  Put(absl::StrCat("[\n{\"ph\":\"M\",", pid_,
                   "0,\"name\":\"process_name\",\"args\":{\"name\":", process, "}}"));
  Metadata("process_sort_index", kEventsTrack);
  Put(absl::StrCat(",\"args\":{\"sort_index\":", owner.rank, "}}"));
  NameTrack(kEventsTrack, "events", 0);
  Instant("TIMELINE_BEGIN", kEventsTrack, began);
  Put(absl::StrCat(",\"args\":{\"rank\":", owner.rank, ",\"size\":", owner.size, ",\"host\":", host,
                   ",\"pid\":", owner.pid, ",\"membership\":", owner.membership,
                   ",\"unix_time_us\":", unix_time / kMicrosecond,
                   ",\"clock_offset_ns\":", owner.clock_offset,
                   ",\"clock_uncertainty_ns\":", owner.clock_uncertainty, "}}"));
}

void TimelineText::Grow(size_t bytes_min) {
  size_ = std::max(2 * size_, bytes_min);
  std::unique_ptr<char[]> larger(new char[size_]);
  memcpy(larger.get(), buffer_.get(), used_);
  buffer_ = std::move(larger);
}

// Moves the latest event there, if it fits.
void TimelineText::ToNextPage() {
  const size_t bytes = used_ - event_;
  if (bytes > kTimelinePageBytes) return;
  const size_t blanks = kTimelinePageBytes - (offset_ + event_) % kTimelinePageBytes;
  Room(blanks);
  char* const event = buffer_.get() + event_;
  memmove(event + blanks, event, bytes);
  memset(event, ' ', blanks);
  used_ += blanks;
}

void TimelineText::PutNumber(uint64_t number) {
  constexpr size_t kDigitsMax = 20;
  char* const begin = Room(kDigitsMax);
  used_ += static_cast<size_t>(std::to_chars(begin, begin + kDigitsMax, number).ptr - begin);
}

// Microseconds with three decimals: not a nanosecond is lost.
void TimelineText::PutMicros(Nanos time) {
  const auto nanos = static_cast<uint64_t>(std::max<Nanos>(time, 0));
  PutNumber(nanos / 1'000);
  char* const to = Room(4);
  const auto rest = static_cast<uint32_t>(nanos % 1'000);
  to[0] = '.';
  to[1] = static_cast<char>('0' + rest / 100);
  to[2] = static_cast<char>('0' + rest / 10 % 10);
  to[3] = static_cast<char>('0' + rest % 10);
  used_ += 4;
}

// All of a span but what its arguments and the closing brace are.
void TimelineText::Span(absl::string_view prefix, const char* name, uint32_t track, Nanos begin,
                        Nanos end) {
  EndEvent();
  Put(span_);
  PutNumber(track);
  Put(",\"name\":\"");
  Put(prefix);
  Put(name);
  Put("\",\"ts\":");
  PutMicros(begin + owner_.clock_offset);
  Put(",\"dur\":");
  PutMicros(end - begin);
  ++events_;
}

void TimelineText::Instant(const char* name, uint32_t track, Nanos at) {
  EndEvent();
  Put(",\n{\"ph\":\"i\",");
  Put(pid_);
  PutNumber(track);
  Put(",\"name\":\"");
  Put(name);
  Put("\",\"ts\":");
  PutMicros(at + owner_.clock_offset);
  // A tick on its track, or a line through all of this rank's.
  Put(track == kEventsTrack ? ",\"s\":\"p\"" : ",\"s\":\"t\"");
  ++events_;
}

void TimelineText::Metadata(const char* name, uint32_t track) {
  EndEvent();
  Put(absl::StrCat(",\n{\"ph\":\"M\",", pid_, track, ",\"name\":\"", name, "\""));
}

void TimelineText::NameTrack(uint32_t track, absl::string_view name, uint32_t order) {
  Metadata("thread_name", track);
  Put(absl::StrCat(",\"args\":{\"name\":", JsonQuoted(name), "}}"));
  Metadata("thread_sort_index", track);
  Put(absl::StrCat(",\"args\":{\"sort_index\":", order, "}}"));
}

// Lanes and threads stand above the tensors.
void TimelineText::NameThread(uint32_t track) {
  if (track < kFirstThreadTrack || !threads_.insert(track).second) return;
  const int thread = static_cast<int>(track - kFirstThreadTrack);
  const std::string name = thread_name_(thread);
  NameTrack(track, absl::StrCat("thread ", name.empty() ? "" : absl::StrCat(name, " "), thread),
            kFirstLaneTrack);
}

absl::string_view TimelineText::QuotedName(uint32_t row) const {
  return row < names_.size() && !names_[row].empty() ? absl::string_view(names_[row])
                                                     : absl::string_view("\"\"");
}

void TimelineText::Tensor(const TimelineRecord& record) {
  Span("NEGOTIATE_", record.name, record.track, record.submitted,
       record.ordered != 0 ? record.ordered : record.done);
  Put("}");
  if (record.ordered == 0) return;
  Span("", "QUEUE", record.track, record.ordered,
       record.started != 0 ? record.started : record.done);
  Put("}");
  if (record.started == 0) return;
  Span("", record.name, record.track, record.started, record.done);
  Put(",\"args\":{\"bytes\":");
  PutNumber(static_cast<uint64_t>(record.bytes));
  Put(record.bucket == bucket_ ? absl::string_view(bucket_args_) : "}}");
}

void TimelineText::Bucket(const TimelineRecord& record) {
  const uint32_t lane = record.track - kFirstLaneTrack;
  const absl::string_view backend = record.in_plan            ? "\"plan\""
                                    : lane < backends_.size() ? absl::string_view(backends_[lane])
                                                              : "\"\"";
  bucket_ = record.bucket;
  bucket_args_ = absl::StrCat(
      ",\"bucket\":", record.bucket, ",\"tensors\":", static_cast<uint32_t>(record.tensors),
      ",\"first\":", QuotedName(record.row), ",\"backend\":", backend, "}}");
  if (record.started < began_) return;
  Span("", record.name, record.track, record.started, record.done);
  Put(absl::StrCat(",\"args\":{\"bytes\":", record.bytes));
  if (record.pack != 0 || record.unpack != 0) {
    Put(absl::StrCat(",\"memcpy_in_ns\":", record.pack, ",\"memcpy_out_ns\":", record.unpack));
  }
  Put(bucket_args_);
}

void TimelineText::Write(const TimelineRecord& record) {
  using What = TimelineRecord::What;
  const std::unique_ptr<std::string> text(record.has_text() ? record.text : nullptr);
  switch (record.what) {
    case What::kName:
      if (record.since != began_) return;
      if (record.track >= names_.size()) names_.resize(record.track + 1);
      names_[record.track] = JsonQuoted(*text);
      NameTrack(record.track, *text, kFirstLaneTrack + record.track);
      return;
    case What::kLane: {
      if (record.since != began_) return;
      const uint32_t lane = record.track - kFirstLaneTrack;
      if (lane >= backends_.size()) backends_.resize(lane + 1, "\"\"");
      backends_[lane] = JsonQuoted(*text);
      NameTrack(record.track, absl::StrCat("lane ", lane % kProcessSetsMax, " (", *text, ")"),
                lane + 1);
      return;
    }
    case What::kTensor:
      if (record.submitted >= began_ && record.track != 0) Tensor(record);
      return;
    case What::kBucket:
      Bucket(record);
      return;
    case What::kSpan:
      if (record.started < began_) return;
      NameThread(record.track);
      Span("", record.name, record.track, record.started, record.done);
      if (record.row != 0) Put(absl::StrCat(",\"args\":{\"tensor\":", QuotedName(record.row), "}"));
      Put("}");
      return;
    case What::kInstant:
      if (record.started < began_) return;
      Instant(record.name, record.track, record.done);
      Put(absl::StrCat(",\"args\":{\"text\":", JsonQuoted(*text), "}}"));
      return;
  }
}

void TimelineText::Dropped(uint64_t records, Nanos now) {
  dropped_ += records;
  Instant("DROPPED", kEventsTrack, now);
  Put(absl::StrCat(",\"args\":{\"records\":", records, "}}"));
}

void TimelineText::End(Nanos now) {
  const uint64_t events = events_;
  Instant("TIMELINE_END", kEventsTrack, now);
  Put(absl::StrCat(",\"args\":{\"events\":", events, ",\"dropped_records\":", dropped_, "}}\n]\n"));
}

}  // namespace rueda
