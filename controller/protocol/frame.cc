// PURE
#include "controller/protocol/frame.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"

namespace rueda {
namespace {

constexpr uint32_t kFrameMagic = 0x44455552;  // "RUED"
constexpr uint8_t kFrameVersion = 1;

// As it lies on the wire. x86 and Arm are little-endian, and that is what we run on.
struct [[gnu::packed]] Header {
  uint32_t magic;
  uint8_t version;
  uint8_t type;
  uint16_t descriptors;
  uint64_t membership;
  int32_t source;
  int32_t destination;
  uint64_t sequence;
  uint32_t length;
  uint32_t reserved;
};
static_assert(sizeof(Header) == FrameReader::kHeaderBytes);
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

}  // namespace

std::string FrameWriter::Write(FrameType type, absl::string_view payload, uint16_t descriptors) {
  RUEDA_CHECK(payload.size() <= kControlFrameBytesMax) << payload.size() << " bytes in one frame";
  const Header header = {kFrameMagic,
                         kFrameVersion,
                         static_cast<uint8_t>(type),
                         descriptors,
                         scope_.membership,
                         scope_.self,
                         scope_.peer,
                         sequence_,
                         static_cast<uint32_t>(payload.size()),
                         0};
  std::string frame;
  frame.reserve(sizeof header + payload.size() + kMacBytes);
  frame.append(reinterpret_cast<const char*>(&header), sizeof header);
  frame.append(payload.data(), payload.size());
  const Mac mac = ComputeMac(View(key_), frame);
  frame.append(reinterpret_cast<const char*>(mac.data()), mac.size());
  ++sequence_;
  return frame;
}

absl::StatusOr<bool> FrameReader::Read(std::string* buffer, Frame* frame) {
  if (buffer->size() < sizeof(Header)) return false;
  Header header;
  memcpy(&header, buffer->data(), sizeof header);
  if (header.magic != kFrameMagic || header.version != kFrameVersion) {
    return absl::DataLossError("a frame does not begin as one");
  }
  if (header.length > kControlFrameBytesMax) {
    return absl::DataLossError(absl::StrCat("a frame of ", header.length, " bytes"));
  }
  const size_t size = sizeof header + header.length + kMacBytes;
  if (buffer->size() < size) return false;
  const absl::string_view signed_part(buffer->data(), sizeof header + header.length);
  const absl::string_view mac(buffer->data() + signed_part.size(), kMacBytes);
  if (!EqualMacs(ComputeMac(View(key_), signed_part), mac)) {
    return absl::UnauthenticatedError("a frame with a wrong MAC");
  }
  // Only a peer that knows the key gets here.
  if (header.membership != scope_.membership || header.source != scope_.peer ||
      header.destination != scope_.self || header.sequence != sequence_ || header.type == 0 ||
      header.type > kFrameTypeMax || header.reserved != 0) {
    return absl::DataLossError(absl::StrCat(
        "a frame out of place: membership ", header.membership, ", from ", header.source, " to ",
        header.destination, ", sequence number ", header.sequence, ", type ", header.type));
  }
  ++sequence_;
  frame->type = static_cast<FrameType>(header.type);
  frame->descriptors = header.descriptors;
  frame->payload.assign(buffer->data() + sizeof header, header.length);
  buffer->erase(0, size);
  return true;
}

}  // namespace rueda
