// What the members of a process set give each other in an operation that hands data on: broadcast,
// allgather, gather, scatter, alltoall, reducescatter. Data flows in channels: one for each taker
// if takers get different data, else one for all. A channel's data is the giver's share of each
// piece, one after another.
#pragma once

#include <vector>

#include "ops/backend/communicator.h"

namespace rueda {

// Memory in several places that is gone through from its beginning to its end.
class Stream {
 public:
  void Clear();
  // `at` null: the data is not wanted.
  void Add(const void* at, size_t bytes);
  size_t left() const { return left_; }
  // Where the next `bytes` bytes are, if they are all there one after another and wanted; else
  // null.
  char* Contiguous(size_t bytes) const;
  // Where `bytes` bytes are from `offset` on, counted from the beginning; else null.
  char* At(size_t offset, size_t bytes) const;
  // As Contiguous, and goes past them, if they are.
  char* TakeContiguous(size_t bytes);
  // Calls fn(at, offset in what is taken, bytes) for the extents of the next min(bytes, left())
  // bytes, and returns how many those were.
  template <typename Fn>
  size_t Take(size_t bytes, Fn fn) {
    const size_t total = bytes < left_ ? bytes : left_;
    for (size_t done = 0; done < total;) {
      const Extent& extent = extents_[extent_];
      const size_t rest = extent.bytes - offset_;
      const size_t size = total - done < rest ? total - done : rest;
      fn(extent.at == nullptr ? nullptr : extent.at + offset_, done, size);
      done += size;
      Skip(size);
    }
    return total;
  }
  // Copies the next `bytes` bytes, or what is left, to or from one place.
  size_t CopyTo(char* to, size_t bytes);
  size_t CopyFrom(const char* from, size_t bytes);
  // Copies the next `bytes` bytes, or what is left of `to`, to there.
  void PassTo(Stream* to, size_t bytes);

 private:
  struct Extent {
    char* at;
    size_t bytes;
  };
  void Skip(size_t bytes);  // within the extent at the cursor

  std::vector<Extent> extents_;
  size_t extent_ = 0;  // the cursor
  size_t offset_ = 0;
  size_t left_ = 0;
};

class Channels {
 public:
  // Whether the kind is one of those above.
  static bool Carry(OpKind kind);

  // `operation` as of member `self` of `members`; what it points to outlives the use.
  void Reset(const BucketOperation& operation, int self, int members);

  // Whether each taker has a channel of its own, by its index; else there is one, channel 0.
  bool by_taker() const { return by_taker_; }
  int count() const { return static_cast<int>(given_.size()); }
  // Bytes of the longest channel of any member; equal on all members.
  size_t longest() const { return longest_; }
  // What this member gives into a channel.
  Stream& given(int channel) { return given_[channel]; }
  // What it gives itself.
  Stream& own() { return own_; }
  // Where what `giver` gives goes. Reducescatter: all that is given meets in member 0's.
  Stream& taken(int giver) { return taken_[giver]; }

 private:
  void AddGiven(const Piece& piece, absl::Span<const int64_t> counts);
  void AddTaken(const Piece& piece, absl::Span<const int64_t> counts);
  size_t LongestChannel() const;

  BucketOperation operation_;
  size_t element_bytes_ = 1;
  int self_ = 0;
  int members_ = 1;
  bool by_taker_ = false;
  size_t longest_ = 0;
  std::vector<Stream> given_;  // by channel
  Stream own_;
  std::vector<Stream> taken_;  // by giver
};

}  // namespace rueda
