#include "examples/trainer/callbacks/progress_bar.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

namespace trainer {
namespace {

constexpr int64_t kCells = 30;

bool IsTerminal(std::FILE* stream) {
  const char* const kind = std::getenv("TERM");
  return isatty(fileno(stream)) == 1 && kind != nullptr && std::strcmp(kind, "dumb") != 0;
}

}  // namespace

ProgressBar::ProgressBar(std::FILE* stream) : stream_(stream), has_bar_(IsTerminal(stream)) {}

void ProgressBar::OnBegin(Training& training) {
  start_ = std::chrono::steady_clock::now();
  steps_ = 0;
  shown_ = -1;
  if (training.rank == 0 && training.first_epoch > 1 && training.resumed_from.empty()) {
    std::fprintf(stream_, "goes on in epoch %lld on %d rank%s\n",
                 static_cast<long long>(training.first_epoch), training.ranks,
                 training.ranks == 1 ? "" : "s");
    std::fflush(stream_);
  }
  if (training.rank != 0 || training.resumed_from.empty()) return;
  const bool done = training.epoch >= training.max_epochs;
  std::fprintf(stream_, "resumed from %s after epoch %lld%s\n", training.resumed_from.c_str(),
               static_cast<long long>(training.epoch), done ? ": no epoch is left to train" : "");
  std::fflush(stream_);
}

void ProgressBar::OnStep(Training& training) {
  if (training.rank != 0 || !has_bar_) return;
  ++steps_;
  const int64_t cells = steps_ * kCells / training.steps_in_epoch;
  if (cells == shown_) return;
  shown_ = cells;
  const std::string done(static_cast<size_t>(cells), '#');
  std::fprintf(stream_, "\repoch %2lld [%-*s] %lld/%lld", static_cast<long long>(training.epoch),
               static_cast<int>(kCells), done.c_str(), static_cast<long long>(steps_),
               static_cast<long long>(training.steps_in_epoch));
  std::fflush(stream_);
}

void ProgressBar::OnEpoch(Training& training) {
  if (training.rank != 0) return;
  steps_ = 0;
  shown_ = -1;
  std::string text = has_bar_ ? "\r\x1b[K" : "";  // in the bar's place
  char number[64];
  std::snprintf(number, sizeof number, "epoch %2lld", static_cast<long long>(training.epoch));
  text += number;
  for (const auto& [name, value] : training.metrics) {
    const double size = std::abs(value);
    const bool usual = size == 0 || (size >= 1e-3 && size < 1e9);
    std::snprintf(number, sizeof number, usual ? " %.4f," : " %.3e,", value);
    text += " " + name + number;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
  std::fprintf(stream_, "%s %.1f s\n", text.c_str(), seconds.count());
  std::fflush(stream_);
}

}  // namespace trainer
