// A duration, for people. PURE
#pragma once

#include <string>

#include "core/base/clock.h"

namespace rueda {

// "1.5 s".
std::string Seconds(Nanos duration);

}  // namespace rueda
