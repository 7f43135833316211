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
  absl::StrAppend(out, style_.prefix, partial_, end);
  partial_.clear();
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

void LineJoiner::Finish(std::string* out) {
  if (partial_.empty()) return;
  const bool ended = style_.prefix.empty() || partial_.back() == '\n';
  Emit(ended ? "" : "\n", out);
}

}  // namespace rueda
