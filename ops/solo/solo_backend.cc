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
  void Start(const Collective& collective) override {
    for (const Piece& piece : collective.pieces) {
      if (piece.output == nullptr || piece.elements == 0) continue;
      if (TraitsOf(collective.kind).reduces) {
        kernels::Reduce(collective.dtype, collective.reduce_op, {&piece.input, 1}, piece.output,
                        piece.elements, collective.scaling);
      } else if (piece.output != piece.input) {
        kernels::Copy(piece.output, piece.input,
                      static_cast<size_t>(piece.elements) * DTypeSize(collective.dtype));
      }
    }
  }
  absl::StatusOr<Progress> Advance() override { return Progress::kDone; }
  void Abort() override {}
};

}  // namespace

absl::Status SoloBackend::Viable(const Group& group) const {
  if (group.ranks.size() == 1) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("there are ", group.ranks.size(), " ranks"));
}

absl::StatusOr<std::unique_ptr<Communicator>> SoloBackend::Connect(const Group&) {
  return std::make_unique<SoloCommunicator>();
}

std::unique_ptr<Backend> MakeSolo(const BackendArgs&) {
  return std::make_unique<SoloBackend>();
}

}  // namespace rueda
