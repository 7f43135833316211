#include "controller/lanes/callbacks.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

thread_local bool in_turn = false;

}  // namespace

bool InTurn() {
  return in_turn;
}

absl::Status CheckMayWait(absl::string_view what) {
  if (!in_turn) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, " from an inline callback or an allocator"));
}

TurnScope::TurnScope() : outer_(std::exchange(in_turn, true)) {}

TurnScope::~TurnScope() {
  in_turn = outer_;
}

}  // namespace rueda
