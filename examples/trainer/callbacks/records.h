// TFRecord: how records follow each other in TensorBoard's event files. PURE.
//
// https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trainer {

// CRC-32C (Castagnoli's polynomial, RFC 3720 B.4). By bits: an event has a hundred bytes. Abseil
// has it too, but not yet in Debian 12.
uint32_t Crc32c(std::string_view bytes);

// The record's length, its checksum, the bytes, their checksum.
std::string Record(std::string_view bytes);

}  // namespace trainer
