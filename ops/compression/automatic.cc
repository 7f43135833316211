// PURE
#include "ops/compression/automatic.h"

#include <algorithm>

namespace rueda {
namespace {

constexpr Compressor kCompressors[AutomaticChoice::kCandidates] = {
    Compressor::kNone, Compressor::kFloat16, Compressor::kInt8};
// What it must be faster by: compression costs accuracy, and measurements have noise.
constexpr double kGainMin = 0.9;

}  // namespace

Compressor AutomaticChoice::Next(int64_t bytes) {
  if (bytes < kBytesMin) return Compressor::kNone;
  const int trial = used_ / kTrials;
  used_ = std::min(used_ + 1, kCandidates * kTrials + 2);
  return trial < kCandidates ? kCompressors[trial] : choice_;
}

void AutomaticChoice::Measured(Nanos time) {
  const int used = used_ - 1;
  if (used < 0 || used >= kCandidates * kTrials || used % kTrials == 0) return;
  double& least = times_[used / kTrials];
  const double now = static_cast<double>(time);
  least = used % kTrials == 1 ? now : std::min(least, now);
}

void AutomaticChoice::Decide(absl::Span<const double> times) {
  double best = times[0] * kGainMin;
  choice_ = Compressor::kNone;
  for (int i = 1; i < kCandidates; ++i) {
    if (times[i] >= best) continue;
    best = times[i];
    choice_ = kCompressors[i];
  }
}

}  // namespace rueda
