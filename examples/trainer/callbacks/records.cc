#include "examples/trainer/callbacks/records.h"

namespace trainer {
namespace {

std::string LittleEndian(uint64_t number, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(number >> (8 * i));
  return text;
}

// So that a checksum of bytes that have one among them is not of a kind with it.
uint32_t Masked(uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

std::string Record(std::string_view bytes) {
  const std::string length = LittleEndian(bytes.size(), 8);
  return length + LittleEndian(Masked(Crc32c(length)), 4) + std::string(bytes) +
         LittleEndian(Masked(Crc32c(bytes)), 4);
}

}  // namespace trainer
