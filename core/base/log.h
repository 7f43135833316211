// Messages to people, on stderr, one line each: "[rueda 2] W bus: host b is silent". Thread-safe; a
// line is written with one system call, so that lines of several ranks don't tear.
//
// Abseil 20220623 has no absl/log, hence these few lines.
#pragma once

#include <sstream>

namespace rueda {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

// What the process prints. The default is kWarning; the knob `log_level` sets it at init.
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);

// The rank that the calling thread's lines are marked with; -1: none. Thread ranks each set their
// own.
void SetLogRank(int rank);
int LogRank();

class LogLine {
 public:
  explicit LogLine(LogLevel level) : level_(level) {}
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;
  ~LogLine();
  template <typename T>
  LogLine& operator<<(const T& value) {
    words_ << value;
    return *this;
  }

 private:
  LogLevel level_;
  std::ostringstream words_;
};

// Turns a line into a statement of type void; binds less tightly than <<.
struct EndLogLine {
  void operator&(const LogLine&) const {}
};

}  // namespace rueda

#define RUEDA_LOG(severity)                            \
  !::rueda::LogEnabled(::rueda::LogLevel::k##severity) \
      ? (void)0                                        \
      : ::rueda::EndLogLine() & ::rueda::LogLine(::rueda::LogLevel::k##severity)
