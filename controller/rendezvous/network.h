// This host's network interfaces, and which of them leads to the other hosts of a job.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace rueda {

struct Interface {
  std::string name;
  std::string address;  // numeric, without a port
  bool is_loopback = false;
};

// Those that are up and have an address; one entry for each address, IPv4 first. Link-local
// addresses are left out: they mean something only together with an interface.
absl::StatusOr<std::vector<Interface>> ListInterfaces();

// Where a job's first rank waits for those of other hosts: the interface `name`; when that is empty,
// the one that the default route leaves by, or else the only one beside loopback. INVALID_ARGUMENT
// lists what there is.
absl::StatusOr<Interface> ChooseInterface(const std::string& name);

// The interface that the route to the peer of a connected TCP socket leaves by.
absl::StatusOr<Interface> InterfaceOf(const UniqueFd& socket);

// The address of `interface` that a library takes which is told its name alone: its first.
absl::StatusOr<std::string> FirstAddressOf(const std::string& interface);

// Whether a numeric address can be reached from anywhere: it is neither loopback nor link-local nor
// of a private network (RFC 1918, RFC 4193, RFC 6598). PURE
bool IsPublicAddress(absl::string_view address);

}  // namespace rueda
