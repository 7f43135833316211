#include "ops/solo/solo_backend.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "ops/backend/make.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/reduce.h"

namespace rueda {
namespace {

class SoloCommunicator : public Communicator {
 public:
  void Start(const BucketOperation& operation) override {
    for (const Piece& piece : operation.pieces) {
      if (piece.output == nullptr || piece.elements == 0) continue;
      if (TraitsOf(operation.kind).reduces) {
        kernels::Reduce(operation.dtype, operation.reduce_op, {&piece.input, 1}, piece.output,
                        piece.elements, operation.scaling);
      } else if (piece.output != piece.input) {
        kernels::Copy(piece.output, piece.input,
                      static_cast<size_t>(piece.elements) * DTypeSize(operation.dtype));
      }
    }
  }
  absl::StatusOr<Progress> Advance() override { return Progress::kDone; }
  void Abort() override {}
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
