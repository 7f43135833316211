// Whether a name is UTF-8 (RFC 3629): what travels in messages of type string must be.
#pragma once

#include "absl/strings/string_view.h"

namespace rueda::capi {

bool IsUtf8(absl::string_view text);

}  // namespace rueda::capi
