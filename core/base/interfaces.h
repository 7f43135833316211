// This host's network interfaces.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/base/status.h"

namespace rueda {

struct Interface {
  std::string name;
  std::string address;  // numeric, without a port
  bool is_loopback = false;
};

// Those that are up and have an address; one entry for each address, IPv4 first. Link-local
// addresses are left out: they mean something only together with an interface.
absl::StatusOr<std::vector<Interface>> ListInterfaces();

// The first of `names`, such as "eth0" or "ib0,eth0", that this host has, with its first address.
// INVALID_ARGUMENT, for the knob `network_interface`, lists what there is.
absl::StatusOr<Interface> FindInterface(const std::string& names);

// "lo (127.0.0.1), eth0 (10.0.0.1)".
std::string InterfacesText(absl::Span<const Interface> interfaces);

// As in `Interface`. Empty: it belongs to no IP network, or is link-local.
std::string NumericAddress(const sockaddr* address);

}  // namespace rueda
