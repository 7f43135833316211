// A rank's last words to the ranks of its host, in case its start fails when they may have begun:
// threads have no connection that would break. The words are prepared while there is memory, and
// need none when they are said.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "controller/failure/failure.h"
#include "ops/host/neighbours.h"
#include "ops/host/segment.h"

namespace rueda {

class StartGuard {
 public:
  StartGuard() = default;
  // `words` are written down unless another failure was before; for a host of `ranks` ranks.
  StartGuard(const Failure& words, size_t ranks) : record_(EncodeFailure(words)) {
    bells_.reserve(ranks);
  }
  StartGuard(StartGuard&& other) noexcept { *this = std::move(other); }
  StartGuard& operator=(StartGuard&& other) noexcept {
    std::swap(record_, other.record_);
    std::swap(bells_, other.bells_);
    std::swap(segment_, other.segment_);
    return *this;
  }
  // Says them, if it is on guard.
  ~StartGuard() { Say(); }

  // From now on. The segment outlives this; `bells` are those of the host's ranks.
  void Begin(Segment* segment, absl::Span<const Bells> bells) noexcept;
  // Says these instead, now.
  void Say(const Failure& words);
  // The start is over.
  void End() noexcept { segment_ = nullptr; }

 private:
  void Say() noexcept;

  std::string record_;
  std::vector<Bells> bells_;
  Segment* segment_ = nullptr;  // null: not on guard
};

}  // namespace rueda
