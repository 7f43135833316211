// The announcement log: a ring of 64-bit words in memory that the ranks of a host share (or that
// one rank has to itself). The order of the words is the order of everything on this host.
//
// A writer takes a place with one fetch-add and publishes its word with one store. Every rank reads
// every word, through a cursor of its own. A word carries a lap bit, so that a reader knows a new
// word from the one before; what does not fit 64 bits lies in the writer's side ring, published
// first and retired with its word.
//
// The ring never overruns: of its C words each of n writers may have C/n that some reader has not
// passed. A writer without credit gets `false` from Append, keeps its event, and is rung by the
// reader that makes room (TakeStarving).
//
// Between taking its place and publishing its word a writer may lose the processor. Words behind
// that gap are there, but nobody reads past it, not even those who wrote them: they may go to
// sleep, which they mark in the log (LastLook), and are rung by the writer that fills the gap
// (TakeFilledGap). Only those who wrote need to: whoever reads a word of its own wakes those whom
// it concerns.
//
// Nothing here waits, allocates after construction (but for payloads), or makes a system call.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/status.h"

namespace rueda {

struct LogWord {
  uint8_t kind = 0;  // 1 to 15
  bool flag = false;
  uint32_t field = 0;  // 30 bits
  uint16_t low = 0;
};

struct LogEntry {
  int writer = 0;
  uint64_t position = 0;
  LogWord word;
  bool has_payload = false;
  std::string payload;  // empty without one
};

struct LogLayout {
  int writers = 1;
  int words = 4'096;            // a power of two, at least 4 * writers
  size_t side_bytes = 1 << 20;  // of each writer's side ring; a multiple of 64

  // For `writers` ranks, by the limits of core/base/limits.h.
  static LogLayout For(int writers);
  size_t bytes() const;
};

class HostLog {
 public:
  // `memory`: layout.bytes() zeroed bytes, aligned to 64, shared by all writers, outliving this.
  HostLog(void* memory, const LogLayout& layout, int self);

  // Adds a word, or a word with a payload. False when there is no credit: nothing was written.
  bool Append(const LogWord& word);
  bool Append(LogWord word, absl::string_view payload);
  // How long a payload may be.
  size_t payload_bytes_max() const { return layout_.side_bytes - 64; }

  // Reads the next word, if it is published. INVALID_ARGUMENT: another process wrote nonsense.
  absl::StatusOr<bool> Read(LogEntry* entry);
  // Whether Read would find something.
  bool HasNext() const;
  // The same, for the last look of a rank that has told the others that it sleeps, with a fence in
  // between: from now on it is rung when a gap before a word of its own is filled.
  bool LastLook();

  // Lets writers reuse what this rank has read. Read does so by itself after every quarter of the
  // ring; call it before going to sleep.
  void PublishCursor();
  // Whether a writer is without credit that this reader could give it some of, by reading on or by
  // telling what it has read.
  bool OwesRoom() const;
  // Writers that ran out of credit and may have some again, by index; each is told once. The caller
  // rings them.
  std::vector<int> TakeStarving();
  // Whether this writer has filled a gap, as it found when it read on, since the last call: the
  // caller rings everybody.
  bool TakeFilledGap() { return std::exchange(filled_gap_, false); }
  // The reader that holds everybody up; for a writer without credit to ring.
  int SlowestReader() const;

 private:
  struct alignas(64) Line {
    std::atomic<uint64_t> value;
  };
  struct Owned {  // an unretired word of this writer
    uint64_t position;
    uint64_t side_end;  // the side ring is free up to here once it retires
  };

  // Whether one more word and `side_bytes` of the side ring may be taken. When not, this writer is
  // marked as starving.
  bool HaveRoom(size_t side_bytes);
  bool Fits(size_t side_bytes) const;
  size_t SkippedBefore(size_t side_bytes) const;
  void Retire();
  uint64_t SlowestCursor() const;
  void Publish(LogWord word, bool has_payload);
  void NoteFilledGap();
  uint64_t Encode(const LogWord& word, bool has_payload, uint64_t position) const;
  // Whether a raw word is the one of `position`, not the one of the lap before.
  bool IsOf(uint64_t raw, uint64_t position) const;
  const std::atomic<uint64_t>& word_at(uint64_t position) const { return ring_[position & mask_]; }
  char* side_of(int writer) const {
    return sides_ + static_cast<size_t>(writer) * layout_.side_bytes;
  }

  const LogLayout layout_;
  const int self_;
  const uint64_t mask_;
  const int lap_shift_;
  const size_t credit_;
  Line* head_;
  Line* starving_count_;  // how many writers are starving
  Line* unread_;    // the highest position of a word whose writer slept without having read it
  Line* cursors_;   // by reader
  Line* starving_;  // by writer: 1 while it waits for credit
  std::atomic<uint64_t>* ring_;
  char* sides_;

  uint64_t next_ = 0;            // the position to read next
  uint64_t published_ = 0;       // as others see it
  bool published_news_ = false;  // since the last TakeStarving
  bool marked_starving_ = false;
  bool filled_gap_ = false;
  static constexpr uint64_t kNone = UINT64_MAX;
  uint64_t unlooked_ = kNone;  // the first word of this writer's that may have filled a gap
  std::deque<Owned> owned_;
  uint64_t side_begin_ = 0;  // bytes [side_begin_, side_end_) of the side ring are in use; the
  uint64_t side_end_ = 0;    // counts never wrap, the addresses do
};

}  // namespace rueda
