#include "ops/backend/pieces.h"
#include "ops/kernels/copy.h"

#include <algorithm>
#include <cstring>

namespace rueda {

void Pieces::Reset(absl::Span<const Piece> pieces, size_t element_bytes) {
  pieces_ = pieces;
  element_bytes_ = element_bytes;
  ends_.clear();
  int64_t end = 0;
  for (const Piece& piece : pieces) ends_.push_back(end += piece.elements);
}

template <typename Fn>
void Pieces::ForEach(int64_t begin, int64_t end, Fn fn) const {
  if (begin >= end) return;
  size_t i = std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin();
  for (int64_t at = begin; at < end; ++i) {
    const int64_t stop = std::min(end, ends_[i]);
    if (stop > at) {
      const int64_t start_of_piece = ends_[i] - pieces_[i].elements;
      fn(pieces_[i], static_cast<size_t>(at - start_of_piece) * element_bytes_,
         static_cast<size_t>(at - begin) * element_bytes_,
         static_cast<size_t>(stop - at) * element_bytes_);
      at = stop;
    }
  }
}

void Pieces::Pack(int64_t begin, int64_t end, void* to) const {
  ForEach(begin, end, [&](const Piece& piece, size_t in_piece, size_t in_range, size_t bytes) {
    kernels::Copy(static_cast<char*>(to) + in_range,
                  static_cast<const char*>(piece.input) + in_piece, bytes);
  });
}

const char* Pieces::Input(int64_t begin, int64_t end) const {
  const char* input = nullptr;
  ForEach(begin, end, [&](const Piece& piece, size_t in_piece, size_t, size_t bytes) {
    const bool all = bytes == static_cast<size_t>(end - begin) * element_bytes_;
    if (all) input = static_cast<const char*>(piece.input) + in_piece;
  });
  return input;
}

char* Pieces::Output(int64_t begin, int64_t end) const {
  char* output = nullptr;
  ForEach(begin, end, [&](const Piece& piece, size_t in_piece, size_t, size_t bytes) {
    const bool all = bytes == static_cast<size_t>(end - begin) * element_bytes_;
    if (all && piece.output != nullptr) output = static_cast<char*>(piece.output) + in_piece;
  });
  return output;
}

void Pieces::Unpack(int64_t begin, int64_t end, const void* from) const {
  ForEach(begin, end, [&](const Piece& piece, size_t in_piece, size_t in_range, size_t bytes) {
    if (piece.output == nullptr) return;
    kernels::Copy(static_cast<char*>(piece.output) + in_piece,
                  static_cast<const char*>(from) + in_range, bytes);
  });
}

}  // namespace rueda
