// Shows on a terminal how far an epoch has come, and says what came out of it.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

#include "examples/trainer/callback.h"

namespace trainer {

// On rank 0. A bar while an epoch runs, if the stream is a terminal that can go back to a line's
// beginning; then, anywhere, a line: "epoch  2 loss 0.1234, val_loss 0.2345, 1.5 s",
// with numbers below 0.001 or from 1e9 on as "1.234e-05".
class ProgressBar : public Callback {
 public:
  // Borrows the stream.
  explicit ProgressBar(std::FILE* stream = stdout);
  std::string name() const override { return "progress_bar"; }
  void OnBegin(Training& training) override;
  void OnStep(Training& training) override;
  void OnEpoch(Training& training) override;

 private:
  std::FILE* const stream_;
  const bool has_bar_;
  std::chrono::steady_clock::time_point start_;
  int64_t steps_ = 0;   // of the epoch
  int64_t shown_ = -1;  // of the bar's cells
};

}  // namespace trainer
