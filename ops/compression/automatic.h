// What `auto` takes for a tensor: by measuring, in the first operations, how long each candidate
// takes. Values. PURE
#pragma once

#include <array>
#include <cstdint>

#include "absl/types/span.h"
#include "core/base/clock.h"
#include "core/tensor/signature.h"

namespace rueda {

class AutomaticChoice {
 public:
  static constexpr int kCandidates = 3;  // none, bf16, int8
  // Of each, alternating: what a network grants or denies in between concerns all. The first is not
  // counted: memory is new then. Of the others the slowest is: a link may let the first pass at
  // once.
  static constexpr int kTrials = 3;
  static constexpr int64_t kBytesMin = 32 << 10;  // below it latency counts, not bandwidth

  // What the next operation uses; counts it.
  Compressor Next(int64_t bytes);
  // Whether the latest Next was the one before which the ranks agree on what was measured.
  bool agrees() const { return used_ == kCandidates * kTrials + 1; }

  // How long the operation of the latest Next took.
  void Measured(Nanos time);
  // Of each candidate, in ns.
  std::array<double, kCandidates> times() const;
  // All ranks' times, added up: no compression unless another is clearly faster. For what follows.
  void Decide(absl::Span<const double> times);
  Compressor choice() const { return choice_; }

 private:
  int used_ = 0;  // until there is a choice, and one more
  std::array<std::array<double, kTrials - 1>, kCandidates> times_ = {};
  Compressor choice_ = Compressor::kNone;
};

}  // namespace rueda
