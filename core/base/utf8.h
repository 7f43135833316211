// UTF-8 (RFC 3629), and texts that a stranger may have written. PURE
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace rueda {

// The length of the character that `text`, which is not empty, begins with; 0: it is none.
size_t Utf8Length(absl::string_view text);

// What travels in messages of type string must be UTF-8.
bool IsUtf8(absl::string_view text);

// For a terminal or a log: at most `bytes_max` bytes of the text, with a '?' for each control
// character but tabs and line feeds, for each character that turns the direction of writing, and
// for each byte that is no UTF-8.
std::string Printable(absl::string_view text, size_t bytes_max);

}  // namespace rueda
