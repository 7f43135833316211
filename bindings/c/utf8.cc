#include "bindings/c/utf8.h"

#include <cstdint>

namespace rueda::capi {

bool IsUtf8(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  for (size_t i = 0; i < text.size();) {
    const uint8_t lead = byte(i);
    const size_t length = lead < 0x80   ? 1
                          : lead < 0xC2 ? 0
                          : lead < 0xE0 ? 2
                          : lead < 0xF0 ? 3
                          : lead < 0xF5 ? 4
                                        : 0;
    if (length == 0 || i + length > text.size()) return false;
    for (size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xC0) != 0x80) return false;
    }
    if (length >= 3) {
      const uint8_t second = byte(i + 1);
      const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
      const bool surrogate = lead == 0xED && second >= 0xA0;
      const bool beyond = lead == 0xF4 && second >= 0x90;
      if (overlong || surrogate || beyond) return false;
    }
    i += length;
  }
  return true;
}

}  // namespace rueda::capi
