// Bytes that nobody else is to see: they are in one place, which core dumps leave out, and are
// wiped when the last copy of this is gone. Copies share them. Whoever makes one wipes what it was
// made from.
#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace rueda {

class Secret {
 public:
  Secret() = default;
  Secret(absl::string_view bytes);                                        // NOLINT: as a value
  Secret(const std::string& bytes) : Secret(absl::string_view(bytes)) {}  // NOLINT
  Secret(const char* text) : Secret(absl::string_view(text)) {}           // NOLINT

  bool empty() const { return memory_ == nullptr; }
  absl::string_view bytes() const;
  // In time that depends on both, for tests.
  friend bool operator==(const Secret& a, const Secret& b) { return a.bytes() == b.bytes(); }

 private:
  class Memory;
  std::shared_ptr<const Memory> memory_;  // null: no bytes
};

// Overwrites what a secret was made from.
void Wipe(std::string* text);

}  // namespace rueda
