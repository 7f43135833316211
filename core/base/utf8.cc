#include "core/base/utf8.h"

#include <algorithm>
#include <cstdint>

namespace rueda {
namespace {

constexpr char32_t kDelete = 0x7F;
// More control characters (C1).
constexpr char32_t kC1First = 0x80, kC1Last = 0x9F;
// They turn the direction of writing (Unicode's UAX #9).
constexpr char32_t kEmbedFirst = 0x202A, kEmbedLast = 0x202E;
constexpr char32_t kIsolateFirst = 0x2066, kIsolateLast = 0x2069;

// The character of a valid sequence.
char32_t Decode(absl::string_view sequence) {
  const auto lead = static_cast<uint8_t>(sequence[0]);
  if (sequence.size() == 1) return lead;
  char32_t code = lead & (0x7Fu >> sequence.size());
  for (const char next : sequence.substr(1)) code = code << 6 | (static_cast<uint8_t>(next) & 0x3F);
  return code;
}

bool MayBeShown(char32_t code) {
  if (code < ' ') return code == '\t' || code == '\n';
  return code != kDelete && !(code >= kC1First && code <= kC1Last) &&
         !(code >= kEmbedFirst && code <= kEmbedLast) &&
         !(code >= kIsolateFirst && code <= kIsolateLast);
}

}  // namespace

size_t Utf8Length(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xED && byte(1) >= 0xA0;
  const bool beyond = lead == 0xF4 && byte(1) >= 0x90;
  return overlong || surrogate || beyond ? 0 : length;
}

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string Printable(absl::string_view text, size_t bytes_max) {
  std::string shown;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const bool good = length > 0 && MayBeShown(Decode(text.substr(0, length)));
    const absl::string_view next = good ? text.substr(0, length) : "?";
    if (shown.size() + next.size() > bytes_max) break;
    shown.append(next.data(), next.size());
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return shown;
}

}  // namespace rueda
