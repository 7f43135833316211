// The dense sequence of a bucket's pieces, addressed by element: packing and unpacking of any part
// of it, without a fusion buffer for the whole.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "ops/backend/communicator.h"

namespace rueda {

class Pieces {
 public:
  // `pieces` outlives the use.
  void Reset(absl::Span<const Piece> pieces, size_t element_bytes);

  int64_t elements() const { return ends_.empty() ? 0 : ends_.back(); }
  bool single() const { return pieces_.size() == 1; }

  // Copies the inputs' elements [begin, end) to `to`.
  void Pack(int64_t begin, int64_t end, void* to) const;
  // Where the inputs' elements [begin, end) are, if one piece has all of them; else null.
  const char* Input(int64_t begin, int64_t end) const;
  // Where the outputs' elements [begin, end) are, if one piece has all of them; else null.
  char* Output(int64_t begin, int64_t end) const;
  // Copies elements from `from` to the outputs' [begin, end); pieces without an output are skipped.
  void Unpack(int64_t begin, int64_t end, const void* from) const;

 private:
  // Calls fn(piece, offset in it in bytes, offset in the range in bytes, bytes) for each overlap.
  template <typename Fn>
  void ForEach(int64_t begin, int64_t end, Fn fn) const;

  absl::Span<const Piece> pieces_;
  std::vector<int64_t> ends_;  // by piece: where it ends in the sequence
  size_t element_bytes_ = 1;
};

}  // namespace rueda
