// Results that are strings of bytes, for other files of this folder.
#pragma once

#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "rueda/rueda.h"

namespace rueda::capi {

// A copy, as a uint8 vector.
absl::Status GiveBytes(absl::string_view bytes, rueda_result* result);

}  // namespace rueda::capi
