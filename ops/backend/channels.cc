#include "ops/backend/channels.h"
#include "ops/kernels/copy.h"

#include <algorithm>
#include <cstring>

namespace rueda {

// Streams -------------------------------------------------------------------------------------

void Stream::Clear() {
  extents_.clear();
  extent_ = offset_ = left_ = 0;
}

void Stream::Add(const void* at, size_t bytes) {
  if (bytes == 0) return;
  extents_.push_back({static_cast<char*>(const_cast<void*>(at)), bytes});
  left_ += bytes;
}

char* Stream::Contiguous(size_t bytes) const {
  if (extent_ == extents_.size()) return nullptr;
  const Extent& extent = extents_[extent_];
  return extent.at != nullptr && bytes <= extent.bytes - offset_ ? extent.at + offset_ : nullptr;
}

char* Stream::At(size_t offset, size_t bytes) const {
  for (const Extent& extent : extents_) {
    if (offset < extent.bytes) {
      return extent.at != nullptr && bytes <= extent.bytes - offset ? extent.at + offset : nullptr;
    }
    offset -= extent.bytes;
  }
  return nullptr;
}

char* Stream::TakeContiguous(size_t bytes) {
  char* const at = Contiguous(bytes);
  if (at != nullptr) Take(bytes, [](char*, size_t, size_t) {});
  return at;
}

void Stream::Skip(size_t bytes) {
  left_ -= bytes;
  offset_ += bytes;
  if (offset_ < extents_[extent_].bytes) return;
  ++extent_;
  offset_ = 0;
}

size_t Stream::CopyTo(char* to, size_t bytes) {
  return Take(bytes, [&](const char* from, size_t offset, size_t size) {
    if (from != nullptr) kernels::Copy(to + offset, from, size);
  });
}

size_t Stream::CopyFrom(const char* from, size_t bytes) {
  return Take(bytes, [&](char* to, size_t offset, size_t size) {
    if (to != nullptr && to != from + offset) kernels::Copy(to, from + offset, size);
  });
}

void Stream::PassTo(Stream* to, size_t bytes) {
  to->Take(bytes, [&](char* place, size_t, size_t part) {
    Take(part, [&](const char* from, size_t at, size_t size) {
      if (place != nullptr && place + at != from) kernels::Copy(place + at, from, size);
    });
  });
}

// Channels ------------------------------------------------------------------------------------

bool Channels::Carry(OpKind kind) {
  switch (kind) {
    case OpKind::kBroadcast:
    case OpKind::kAllgather:
    case OpKind::kGather:
    case OpKind::kScatter:
    case OpKind::kAlltoall:
    case OpKind::kReducescatter:
      return true;
    default:
      return false;
  }
}

void Channels::Reset(const BucketOperation& operation, int self, int members) {
  operation_ = operation;
  element_bytes_ = DTypeSize(operation.dtype);
  self_ = self;
  members_ = members;
  by_taker_ = operation.kind == OpKind::kScatter || operation.kind == OpKind::kAlltoall ||
              operation.kind == OpKind::kReducescatter;
  given_.resize(by_taker_ ? members : 1);
  taken_.resize(members);
  for (Stream& stream : given_) stream.Clear();
  for (Stream& stream : taken_) stream.Clear();
  const size_t pieces = operation.pieces.size();
  const size_t columns = operation.counts.size() / pieces;
  for (size_t p = 0; p < pieces; ++p) {
    AddGiven(operation.pieces[p], operation.counts.subspan(p * columns, columns));
    AddTaken(operation.pieces[p], operation.counts.subspan(p * columns, columns));
  }
  own_ = given_[by_taker_ ? self : 0];
  longest_ = LongestChannel();
}

// What this member gives of the piece.
void Channels::AddGiven(const Piece& piece, absl::Span<const int64_t> counts) {
  const bool from_root =
      operation_.kind == OpKind::kBroadcast || operation_.kind == OpKind::kScatter;
  if (from_root && operation_.root != self_) return;
  const char* input = static_cast<const char*>(piece.input);
  if (!by_taker_) {
    given_[0].Add(input, static_cast<size_t>(piece.elements) * element_bytes_);
    return;
  }
  if (operation_.kind == OpKind::kAlltoall) {
    const size_t members = static_cast<size_t>(members_);
    counts = counts.subspan(static_cast<size_t>(self_) * members, members);
  }
  for (int taker = 0; taker < members_; ++taker) {
    const size_t bytes = static_cast<size_t>(counts[taker]) * element_bytes_;
    given_[taker].Add(input, bytes);
    if (input != nullptr) input += bytes;
  }
}

// Where this member wants what the others give of the piece.
void Channels::AddTaken(const Piece& piece, absl::Span<const int64_t> counts) {
  char* output = static_cast<char*>(piece.output);
  const auto add = [&](int giver, int64_t elements) {
    const size_t bytes = static_cast<size_t>(elements) * element_bytes_;
    taken_[giver].Add(output, bytes);
    if (output != nullptr) output += bytes;
  };
  switch (operation_.kind) {
    case OpKind::kBroadcast:
      add(operation_.root, piece.elements);
      return;
    case OpKind::kGather:
      if (operation_.root != self_) return;
      [[fallthrough]];
    case OpKind::kAllgather:
      for (int giver = 0; giver < members_; ++giver) add(giver, counts[giver]);
      return;
    case OpKind::kScatter:
      add(operation_.root, counts[self_]);
      return;
    case OpKind::kReducescatter:
      add(0, counts[self_]);
      return;
    default:  // alltoall
      for (int giver = 0; giver < members_; ++giver) {
        add(giver, counts[static_cast<size_t>(giver) * static_cast<size_t>(members_) +
                          static_cast<size_t>(self_)]);
      }
  }
}

size_t Channels::LongestChannel() const {
  if (operation_.kind == OpKind::kBroadcast) {
    return static_cast<size_t>(operation_.elements) * element_bytes_;
  }
  // Each column of the counts is a channel of some giver's.
  const size_t pieces = operation_.pieces.size();
  const size_t columns = operation_.counts.size() / pieces;
  int64_t longest = 0;
  for (size_t column = 0; column < columns; ++column) {
    int64_t elements = 0;
    for (size_t p = 0; p < pieces; ++p) elements += operation_.counts[p * columns + column];
    longest = std::max(longest, elements);
  }
  return static_cast<size_t>(longest) * element_bytes_;
}

}  // namespace rueda
