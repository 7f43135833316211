// `ruedarun --check-build`: what was built and what is installed beside it.
#pragma once

#include <string>

namespace rueda {

// For people, with its newlines. `program`: the path of ruedarun.
std::string CheckBuildText(const std::string& program);

}  // namespace rueda
