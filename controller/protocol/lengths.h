// Whether the lengths inside a serialised message are true. PURE
#pragma once

#include "absl/strings/string_view.h"

namespace rueda {

// Whether every message inside `bytes`, a serialised message of the type named `type`
// ("rueda.wire.Plan"), ends where the one around it ends or before. The library finds out only
// after it has parsed the one inside, and believes a string in there as far as the false length
// goes: it would reserve 50 MB for a few bytes. `type` must be one that travels by itself.
bool LengthsFit(absl::string_view type, absl::string_view bytes);

}  // namespace rueda
