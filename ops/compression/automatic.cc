// PURE
#include "ops/compression/automatic.h"

#include <algorithm>

namespace rueda {
namespace {

// Without fp16: a gradient beyond its range would become infinite by a choice that nobody made.
constexpr Compressor kCompressors[AutomaticChoice::kCandidates] = {
    Compressor::kNone, Compressor::kBfloat16, Compressor::kInt8};
// What it must be faster by: compression costs accuracy, and measurements have noise.
constexpr double kGainMin = 0.9;

}  // namespace

Compressor AutomaticChoice::Next(int64_t bytes) {
  if (bytes < kBytesMin) return Compressor::kNone;
  const int use = used_;
  used_ = std::min(used_ + 1, kCandidates * kTrials + 2);
  return use < kCandidates * kTrials ? kCompressors[use % kCandidates] : choice_;
}

void AutomaticChoice::Measured(Nanos time) {
  const int use = used_ - 1;
  if (use < kCandidates || use >= kCandidates * kTrials) return;
  times_[use % kCandidates][use / kCandidates - 1] = static_cast<double>(time);
}

std::array<double, AutomaticChoice::kCandidates> AutomaticChoice::times() const {
  std::array<double, kCandidates> slowest;
  for (int i = 0; i < kCandidates; ++i) {
    slowest[i] = *std::max_element(times_[i].begin(), times_[i].end());
  }
  return slowest;
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
