// What makes two ranks neighbours: they can hand each other a file descriptor.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace rueda {

// Boot id, network namespace and user of this process, as one word. An error where it can't be had:
// another word would make another host of this one.
absl::StatusOr<std::string> HostIdentity();
// Of such a word: what all hosts have in common that are one machine, as containers are.
std::string MachineOf(const std::string& host_identity);
// In which processes have the numbers that this one sees, among those of this host; 0: that can't
// be seen.
uint64_t PidNamespace();
// For people.
std::string HostName();

}  // namespace rueda
