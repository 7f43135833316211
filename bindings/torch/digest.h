// A number for what ranks must have alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace rueda::libtorch {

// FNV-1a (http://www.isthe.com/chongo/tech/comp/fnv/): the same on all ranks.
class Digest {
 public:
  void Add(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      value_ = (value_ ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
    }
  }
  void Add(int64_t number) { Add(&number, sizeof number); }
  std::string text() const {
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(value_));
    return hex;
  }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace rueda::libtorch
