// All backends of one rank, out of the list (core/config/backends.h). The engine owns them.
#pragma once

#include <memory>
#include <vector>

#include "ops/backend/make.h"

namespace rueda {

// In order of preference. `args.other` is set here.
std::vector<std::unique_ptr<Backend>> MakeBackends(BackendArgs args);

}  // namespace rueda
