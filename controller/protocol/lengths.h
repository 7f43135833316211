// Whether the lengths inside a serialized message are true. PURE
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace rueda {

// A field that holds a message, and such fields of that one. The lite library has no descriptors.
struct MessageField {
  int number;
  absl::Span<const MessageField> inside;
};

// Whether every message inside `bytes`, a serialized message with these fields, ends where the one
// around it ends or before. Protobuf finds out only after it has parsed the one inside, and
// believes a string in there as far as the false length goes: it would reserve 50 MB for a few
// bytes.
bool LengthsFit(absl::Span<const MessageField> fields, absl::string_view bytes);

// The same of a message of rueda.proto by the name of its type, such as "rueda.wire.Plan". It must
// be one that travels by itself.
bool LengthsFit(absl::string_view type, absl::string_view bytes);

}  // namespace rueda
