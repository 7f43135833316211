#include "controller/bus/host_log.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/base/round_up.h"

namespace rueda {
namespace {

// A word, from the top: lap 1, kind 4, writer 10, flag 1, has payload 1, unused 1, field 30,
// low 16.
constexpr int kLapShift = 63;
constexpr int kKindShift = 59;
constexpr int kWriterShift = 49;
constexpr int kFlagShift = 48;
constexpr int kPayloadShift = 47;
constexpr int kFieldShift = 16;
constexpr uint64_t kFieldMask = (uint64_t{1} << 30) - 1;

// A payload in a side ring begins at a multiple of this; its offset in such units is the word's
// field.
constexpr size_t kUnit = 64;
static_assert(kSideRingBytes / kUnit <= kFieldMask);
// Behind this a side ring begins again at its front, if its readers have said that they are past
// it.
constexpr size_t kWarmBytes = 256 << 10;

constexpr size_t kLine = 64;

}  // namespace

LogLayout LogLayout::For(int writers) {
  LogLayout layout;
  layout.writers = writers;
  layout.words = std::max(
      kLogWordsMin,
      static_cast<int>(std::bit_ceil(static_cast<unsigned>(writers * kLogWordsPerWriter))));
  layout.side_bytes = kSideRingBytes;
  return layout;
}

size_t LogLayout::bytes() const {
  return kLine * (3 + 2 * static_cast<size_t>(writers)) + sizeof(uint64_t) * words +
         static_cast<size_t>(writers) * side_bytes;
}

HostLog::HostLog(void* memory, const LogLayout& layout, int self)
    : layout_(layout),
      self_(self),
      mask_(static_cast<uint64_t>(layout.words) - 1),
      lap_shift_(std::countr_zero(static_cast<unsigned>(layout.words))),
      credit_(static_cast<size_t>(layout.words / layout.writers)) {
  RUEDA_CHECK(std::has_single_bit(static_cast<unsigned>(layout.words)));
  RUEDA_CHECK(layout.words >= 4 * layout.writers && layout.writers <= kLocalRanksMax);
  RUEDA_CHECK(layout.side_bytes % kUnit == 0 && reinterpret_cast<uintptr_t>(memory) % kLine == 0);
  Line* lines = static_cast<Line*>(memory);
  head_ = lines;
  starving_count_ = lines + 1;
  unread_ = lines + 2;
  cursors_ = lines + 3;
  starving_ = cursors_ + layout.writers;
  ring_ = reinterpret_cast<std::atomic<uint64_t>*>(starving_ + layout.writers);
  sides_ = reinterpret_cast<char*>(ring_ + layout.words);
}

uint64_t HostLog::Encode(const LogWord& word, bool has_payload, uint64_t position) const {
  const uint64_t lap =
      ((position >> lap_shift_) & 1) ^ 1;  // memory begins as zeros: lap 0 has bit 1
  return (lap << kLapShift) | (static_cast<uint64_t>(word.kind) << kKindShift) |
         (static_cast<uint64_t>(self_) << kWriterShift) |
         (static_cast<uint64_t>(word.flag) << kFlagShift) |
         (static_cast<uint64_t>(has_payload) << kPayloadShift) |
         (static_cast<uint64_t>(word.field) << kFieldShift) | word.low;
}

bool HostLog::IsOf(uint64_t raw, uint64_t position) const {
  return (raw >> kLapShift) == (((position >> lap_shift_) & 1) ^ 1);
}

uint64_t HostLog::SlowestCursor() const {
  uint64_t slowest = UINT64_MAX;
  for (int reader = 0; reader < layout_.writers; ++reader) {
    // Acquire: what the reader copied out of the side ring was copied before.
    slowest = std::min(slowest, cursors_[reader].value.load(std::memory_order_acquire));
  }
  return slowest;
}

int HostLog::SlowestReader() const {
  int slowest = 0;
  uint64_t cursor = UINT64_MAX;
  for (int reader = 0; reader < layout_.writers; ++reader) {
    const uint64_t each = cursors_[reader].value.load(std::memory_order_relaxed);
    if (each < cursor) {
      cursor = each;
      slowest = reader;
    }
  }
  return slowest;
}

void HostLog::Retire() {
  const uint64_t slowest = SlowestCursor();
  while (!owned_.empty() && owned_.front().position < slowest) {
    side_begin_ = owned_.front().side_end;
    owned_.pop_front();
  }
  if (owned_.empty()) side_begin_ = side_end_ = 0;  // low addresses are in memory already
}

// What is left at the ring's end is skipped where a payload, which lies in one piece, does not fit;
// and behind the warm part, if much of it is free: all of the ring would come into memory by and
// by.
size_t HostLog::SkippedBefore(size_t side_bytes) const {
  const size_t at = side_end_ % layout_.side_bytes;
  const size_t rest = layout_.side_bytes - at;
  if (side_bytes > rest) return rest;
  const bool has_room = side_end_ - side_begin_ + rest + side_bytes <= layout_.side_bytes &&
                        side_begin_ % layout_.side_bytes >= kWarmBytes / 2;
  return at >= kWarmBytes && has_room ? rest : 0;
}

bool HostLog::Fits(size_t side_bytes) const {
  if (owned_.size() >= credit_) return false;
  if (side_bytes == 0) return true;
  return side_end_ - side_begin_ + SkippedBefore(side_bytes) + side_bytes <= layout_.side_bytes;
}

bool HostLog::HaveRoom(size_t side_bytes) {
  if (Fits(side_bytes)) return true;
  Retire();
  if (!Fits(side_bytes)) {
    if (!marked_starving_ || starving_[self_].value.load(std::memory_order_relaxed) == 0) {
      marked_starving_ = true;
      // First the count: a reader that takes the mark takes it off.
      starving_count_->value.fetch_add(1, std::memory_order_relaxed);
      starving_[self_].value.store(1, std::memory_order_release);
    }
    // A reader either sees the mark, or has published before this second look.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    Retire();
    if (!Fits(side_bytes)) return false;
  }
  if (marked_starving_) {
    marked_starving_ = false;
    if (starving_[self_].value.exchange(0, std::memory_order_relaxed) != 0) {
      starving_count_->value.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  return true;
}

void HostLog::Publish(LogWord word, bool has_payload) {
  // All have read what was in this place, but perhaps another writer saw that. What it saw comes
  // along the chain of these additions.
  const uint64_t position = head_->value.fetch_add(1, std::memory_order_acq_rel);
  ring_[position & mask_].store(Encode(word, has_payload, position), std::memory_order_release);
  unlooked_ = std::min(unlooked_, position);
  owned_.push_back({position, side_end_});
}

// Put off until this writer has read past its own word: a fence right after the store would stall
// on a cache line that others read. Whoever fills the last gap before a word reads past that word.
void HostLog::NoteFilledGap() {
  const uint64_t first = std::exchange(unlooked_, kNone);
  // Either the owner of a word behind ours has seen ours before it slept, or we see its mark.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  filled_gap_ |= unread_->value.load(std::memory_order_relaxed) > first;
}

bool HostLog::Append(const LogWord& word) {
  if (!HaveRoom(0)) return false;
  Publish(word, false);
  return true;
}

bool HostLog::Append(LogWord word, absl::string_view payload) {
  RUEDA_CHECK(payload.size() <= payload_bytes_max()) << payload.size();
  const size_t need = RoundUp(sizeof(uint32_t) + payload.size(), kUnit);
  if (side_end_ % layout_.side_bytes >= kWarmBytes) Retire();
  if (!HaveRoom(need)) return false;
  side_end_ += SkippedBefore(need);
  const size_t at = side_end_ % layout_.side_bytes;
  char* side = side_of(self_) + at;
  const uint32_t length = static_cast<uint32_t>(payload.size());
  memcpy(side, &length, sizeof length);
  memcpy(side + sizeof length, payload.data(), payload.size());
  side_end_ += need;
  word.field = static_cast<uint32_t>(at / kUnit);
  Publish(word, true);
  return true;
}

bool HostLog::HasNext() const {
  return IsOf(word_at(next_).load(std::memory_order_acquire), next_);
}

bool HostLog::LastLook() {
  if (HasNext()) return true;
  if (owned_.empty() || owned_.back().position < next_) return false;
  std::atomic<uint64_t>& mark = unread_->value;
  uint64_t marked = mark.load(std::memory_order_relaxed);
  while (marked < owned_.back().position &&
         !mark.compare_exchange_weak(marked, owned_.back().position, std::memory_order_relaxed)) {
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return HasNext();
}

absl::StatusOr<bool> HostLog::Read(LogEntry* entry) {
  const uint64_t raw = word_at(next_).load(std::memory_order_acquire);
  if (!IsOf(raw, next_)) {
    // Nothing new. Somebody may be waiting for what this reader has passed and not said.
    if (published_ != next_ && starving_count_->value.load(std::memory_order_relaxed) != 0) {
      PublishCursor();
    }
    return false;
  }
  entry->position = next_;
  entry->writer = static_cast<int>((raw >> kWriterShift) & (kLocalRanksMax - 1));
  entry->word.kind = static_cast<uint8_t>((raw >> kKindShift) & 15);
  entry->word.flag = (raw >> kFlagShift) & 1;
  entry->word.field = static_cast<uint32_t>((raw >> kFieldShift) & kFieldMask);
  entry->word.low = static_cast<uint16_t>(raw);
  entry->has_payload = (raw >> kPayloadShift) & 1;
  if (entry->writer >= layout_.writers) {
    return absl::InvalidArgumentError(absl::StrCat("log word of writer ", entry->writer));
  }
  entry->payload.clear();
  if (entry->has_payload) {
    const size_t at = static_cast<size_t>(entry->word.field) * kUnit;
    uint32_t length = 0;
    if (at + sizeof length <= layout_.side_bytes) {
      memcpy(&length, side_of(entry->writer) + at, sizeof length);
    }
    if (at + sizeof length > layout_.side_bytes ||
        length > layout_.side_bytes - at - sizeof length) {
      return absl::InvalidArgumentError(
          absl::StrCat("log payload of ", length, " bytes at ", at, " by writer ", entry->writer));
    }
    entry->payload.assign(side_of(entry->writer) + at + sizeof length, length);
  }
  if (next_ > unlooked_) NoteFilledGap();
  ++next_;
  if (next_ - published_ >= static_cast<uint64_t>(layout_.words) / 4) PublishCursor();
  return true;
}

void HostLog::PublishCursor() {
  if (published_ == next_) return;
  published_ = next_;
  published_news_ = true;
  cursors_[self_].value.store(next_, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool HostLog::OwesRoom() const {
  return starving_count_->value.load(std::memory_order_relaxed) != 0 &&
         (published_ != next_ || HasNext());
}

std::vector<int> HostLog::TakeStarving() {
  std::vector<int> writers;
  if (!published_news_) return writers;
  published_news_ = false;
  if (starving_count_->value.load(std::memory_order_relaxed) == 0) return writers;
  for (int writer = 0; writer < layout_.writers; ++writer) {
    if (writer != self_ && starving_[writer].value.load(std::memory_order_relaxed) != 0 &&
        starving_[writer].value.exchange(0, std::memory_order_acquire) != 0) {  // it was counted
      starving_count_->value.fetch_sub(1, std::memory_order_relaxed);
      writers.push_back(writer);
    }
  }
  return writers;
}

}  // namespace rueda
