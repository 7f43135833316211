// What makes two ranks neighbours: they can hand each other a file descriptor.
#pragma once

#include <string>

namespace rueda {

// Boot id, network namespace and user of this process, as one word.
std::string HostIdentity();
// For people.
std::string HostName();

}  // namespace rueda
