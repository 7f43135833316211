// `ruedarun --config-file`: options in a file of YAML, in the manner of horovodrun's. PURE
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/status.h"

namespace rueda {

// The options that `text` stands for, as words of a command line, such as "--np=4". Its keys are
// the names of options, with '-' or '_', at the top or in horovodrun's sections (`params`,
// `timeline`, `stall_check`, `logging`, `library_options`), where the section's name is the first
// part of the option's; a list stands for the option again and again. INVALID_ARGUMENT names the
// line.
absl::StatusOr<std::vector<std::string>> ReadConfigFile(const std::string& text);

}  // namespace rueda
