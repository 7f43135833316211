// A 64-bit fingerprint of memory, as fast as memory is read. PURE.
#ifndef RUEDA_CPP_FINGERPRINT_HPP_
#define RUEDA_CPP_FINGERPRINT_HPP_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace rueda {
namespace detail {

// Eight lanes, so that a processor multiplies for one while it waits for another. A word goes into
// its lane by a product of 128 bits whose halves are folded: of one half alone the highest bits,
// where signs are, would not reach the others, and two flipped signs could cancel each other. Not
// against those who choose their bytes.
class Fingerprint {
 public:
  void Add(const void* memory, size_t bytes) {
    const char* next = static_cast<const char*>(memory);
    for (size_t left = bytes; left >= sizeof lanes_; left -= sizeof lanes_) {
      AddBlock(next);
      next += sizeof lanes_;
    }
    // Zeros fill the last block up; the length tells them from others'.
    if (const size_t rest = bytes % sizeof lanes_; rest > 0) {
      char block[sizeof lanes_] = {};
      std::memcpy(block, next, rest);
      AddBlock(block);
    }
    lanes_[0] = Mix(lanes_[0], bytes);
  }
  void Add(uint64_t number) { lanes_[0] = Mix(lanes_[0], number); }

  uint64_t value() const {
    uint64_t all = 0;
    for (const uint64_t lane : lanes_) all = Mix(all, lane);
    return Mix(all, 0);  // so that each bit depends on all, also on the last lane's
  }

 private:
  // Odd, with bits all over: the golden ratio's, as Knuth (6.4) has it for multiplicative hashing.
  static constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;

  __extension__ typedef unsigned __int128 Wide;  // of GCC and Clang

  static uint64_t Mix(uint64_t lane, uint64_t word) {
    const Wide product = static_cast<Wide>(lane ^ word) * kFactor;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  void AddBlock(const char* block) {
    uint64_t words[8];
    std::memcpy(words, block, sizeof words);
    for (int i = 0; i < 8; ++i) lanes_[i] = Mix(lanes_[i], words[i]);
  }

  // Different, so that lanes can't change places; else any numbers.
  uint64_t lanes_[8] = {1, 2, 3, 4, 5, 6, 7, 8};
};

inline uint64_t FingerprintOf(std::string_view bytes) {
  Fingerprint print;
  print.Add(bytes.data(), bytes.size());
  return print.value();
}

}  // namespace detail
}  // namespace rueda

#endif  // RUEDA_CPP_FINGERPRINT_HPP_
