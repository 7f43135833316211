// Cuts what a rank writes into whole lines and marks them. PURE
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace rueda {

class LineJoiner {
 public:
  struct Style {
    std::string prefix;  // before each line; when empty, no byte is added or changed at all
    // A carriage return ends a line too, unless a line feed follows: progress bars on a terminal.
    bool carriage_returns = false;
    // A longer line is passed on in pieces of this size, each marked and ended like a line.
    size_t line_bytes_max = 16u << 20;
  };

  explicit LineJoiner(Style style) : style_(std::move(style)) {}

  // Appends the lines that `bytes` complete to `out`, and keeps what begins another.
  void Feed(absl::string_view bytes, std::string* out);
  // Appends what is kept of a line, which may go on: a prompt, a progress bar.
  void Show(std::string* out);
  bool keeps_some() const { return !partial_.empty(); }
  // Another's line has come between: what goes on is marked like a line.
  void Interrupt() { shown_ = false; }
  // Nothing more will come: appends what is left, ended like a line.
  void Finish(std::string* out);

 private:
  // The length of the line that `bytes` begins with, or npos when its end is not there yet.
  size_t LineLength(absl::string_view bytes) const;
  // Appends what is kept and `end` as one line.
  void Emit(absl::string_view end, std::string* out);
  // Keeps `bytes`, passing on pieces that are too long.
  void Keep(absl::string_view bytes, std::string* out);

  Style style_;
  std::string partial_;
  bool shown_ = false;  // the beginning of the line that `partial_` is part of
};

}  // namespace rueda
