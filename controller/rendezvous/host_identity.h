// What makes two ranks neighbours: they can hand each other a file descriptor.
#pragma once

#include <string>

#include "core/base/status.h"

namespace rueda {

// Boot id, network namespace and user of this process, as one word. An error where it can't be had:
// another word would make another host of this one.
absl::StatusOr<std::string> HostIdentity();
// For people.
std::string HostName();

}  // namespace rueda
