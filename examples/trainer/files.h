// Files that are there whole or not at all.
#pragma once

#include <string>

namespace trainer {

// Replaces what is there, on the disk when it returns. std::runtime_error, which says what is wrong
// with which file: what was there is there still.
void WriteFile(const std::string& path, const std::string& text);

}  // namespace trainer
