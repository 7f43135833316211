// PURE
#include "controller/launcher/front/lines.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rueda {

size_t LineJoiner::LineLength(absl::string_view bytes) const {
  const size_t feed = bytes.find('\n');
  if (style_.carriage_returns) {
    for (size_t at = bytes.find('\r'); at != absl::string_view::npos && at < feed;
         at = bytes.find('\r', at + 1)) {
      if (at + 1 < bytes.size() && bytes[at + 1] != '\n') return at + 1;
    }
  }
  return feed == absl::string_view::npos ? feed : feed + 1;
}

void LineJoiner::Emit(absl::string_view end, std::string* out) {
  absl::StrAppend(out, shown_ ? "" : style_.prefix, partial_, end);
  partial_.clear();
  shown_ = false;
}

void LineJoiner::Keep(absl::string_view bytes, std::string* out) {
  while (partial_.size() + bytes.size() > style_.line_bytes_max) {
    const size_t fits = style_.line_bytes_max - partial_.size();
    partial_.append(bytes.data(), fits);
    Emit(style_.prefix.empty() ? "" : "\n", out);
    bytes.remove_prefix(fits);
  }
  partial_.append(bytes.data(), bytes.size());
}

void LineJoiner::Feed(absl::string_view bytes, std::string* out) {
  if (style_.carriage_returns && !bytes.empty() && bytes[0] != '\n' && !partial_.empty() &&
      partial_.back() == '\r') {
    Emit("", out);
  }
  while (!bytes.empty()) {
    const size_t length = LineLength(bytes);
    if (length == absl::string_view::npos) return Keep(bytes, out);
    const absl::string_view line = bytes.substr(0, length);
    if (partial_.size() + line.size() > style_.line_bytes_max) {
      Keep(line, out);
      Emit("", out);
    } else {
      Emit(line, out);
    }
    bytes.remove_prefix(length);
  }
}

void LineJoiner::Show(std::string* out) {
  // Of a carriage return at the end nobody knows yet whether it ends a line.
  const bool waits = style_.carriage_returns && keeps_some() && partial_.back() == '\r';
  if (waits) partial_.pop_back();
  if (keeps_some()) {
    Emit("", out);
    shown_ = true;
  }
  if (waits) partial_.push_back('\r');
}

void LineJoiner::Finish(std::string* out) {
  if (partial_.empty() && !shown_) return;
  Emit(style_.prefix.empty() ? "" : "\n", out);
}

}  // namespace rueda
