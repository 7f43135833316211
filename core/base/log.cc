#include "core/base/log.h"

#include <unistd.h>

#include <atomic>
#include <string>

#include "core/base/no_write_signals.h"

namespace rueda {
namespace {

std::atomic<int> log_level{static_cast<int>(LogLevel::kWarning)};
thread_local int log_rank = -1;

}  // namespace

void SetLogLevel(LogLevel level) {
  log_level.store(static_cast<int>(level), std::memory_order_relaxed);
}

bool LogEnabled(LogLevel level) {
  return static_cast<int>(level) >= log_level.load(std::memory_order_relaxed);
}

void SetLogRank(int rank) {
  log_rank = rank;
}

int LogRank() {
  return log_rank;
}

LogLine::~LogLine() {
  static constexpr char kLetters[] = "DIWE";
  std::ostringstream line;
  line << "[rueda";
  if (log_rank >= 0) line << " " << log_rank;
  line << "] " << kLetters[static_cast<int>(level_)] << " " << words_.str() << "\n";
  const std::string text = line.str();
  // A reader that has gone away is no reason to fail, nor is a file that may not grow.
  const NoWriteSignals held;
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace rueda
