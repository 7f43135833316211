#include "ops/solo/solo_backend.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ops/backend/make.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/reduce.h"

namespace rueda {
namespace {

// What one Advance works on: some 100 us of the slowest arithmetic.
constexpr int64_t kElementsAtOnce = 64 << 10;

class SoloCommunicator : public Communicator {
 public:
  void Start(const BucketOperation& operation) override {
    operation_ = operation;
    piece_ = 0;
    done_ = 0;
  }
  absl::StatusOr<Progress> Advance() override {
    int64_t left = kElementsAtOnce;
    while (piece_ < operation_.pieces.size()) {
      if (left == 0) return Progress::kMoved;
      const Piece& piece = operation_.pieces[piece_];
      const int64_t count = std::min(left, piece.elements - done_);
      if (piece.output != nullptr && count > 0) Work(piece, count);
      left -= count;
      done_ += count;
      if (done_ < piece.elements) continue;
      ++piece_;
      done_ = 0;
    }
    return Progress::kDone;
  }
  // Nothing runs outside Advance.
  void Abort() override {}

 private:
  // The piece's next elements.
  void Work(const Piece& piece, int64_t count) const {
    const size_t element_bytes = DTypeSize(operation_.dtype);
    const size_t offset = static_cast<size_t>(done_) * element_bytes;
    const void* const input = static_cast<const char*>(piece.input) + offset;
    void* const output = static_cast<char*>(piece.output) + offset;
    if (TraitsOf(operation_.kind).reduces) {
      kernels::Reduce(operation_.dtype, operation_.reduce_op, {&input, 1}, output, count,
                      operation_.scaling);
    } else if (output != input) {
      kernels::Copy(output, input, static_cast<size_t>(count) * element_bytes);
    }
  }

  BucketOperation operation_;
  size_t piece_ = 0;  // at hand
  int64_t done_ = 0;  // of its elements
};

}  // namespace

absl::Status SoloBackend::Viable(const Members& members) const {
  if (members.ranks.size() == 1) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("there are ", members.ranks.size(), " ranks"));
}

absl::StatusOr<std::unique_ptr<Communicator>> SoloBackend::Connect(const Members&) {
  return std::make_unique<SoloCommunicator>();
}

std::unique_ptr<Backend> MakeSolo(const BackendArgs&) {
  return std::make_unique<SoloBackend>();
}

}  // namespace rueda
