// Which calls may be made from a completion callback or an allocator. This is the one rule, for all
// that the C API exports:
//
//   in a turn of the engine (an inline callback, an allocator)
//     what waits (init; execute, wait, wait_on_stream, wait_or_abort of an operation that has not
//     ended) is refused: the thread would wait for itself. So is mem_free where it would wait for a
//     neighbour. What ends a context (shutdown, reset, destroy) is refused: it would free what the
//     thread is inside of. An abort is noted, and done in the next turn.
//   in another callback (the completion thread's)
//     what ends its context is refused.
//
// Everything else may be called. In a turn the engine stands while it lasts.
#pragma once

#include "core/base/status.h"

namespace rueda {

// Whether the calling thread runs an inline callback or an allocator, of whatever context.
bool InTurn();

// FAILED_PRECONDITION where the calling thread may not wait: `what` names the call.
absl::Status CheckMayWait(absl::string_view what);

// The calling thread runs an inline callback or an allocator, as long as this lives.
class TurnScope {
 public:
  TurnScope();
  ~TurnScope();
  TurnScope(const TurnScope&) = delete;
  TurnScope& operator=(const TurnScope&) = delete;

 private:
  const bool outer_;
};

}  // namespace rueda
