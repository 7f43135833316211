// Which of this host's network interfaces leads to the other hosts of a job.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "core/base/interfaces.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace rueda {

// Where a job's first rank waits for those of other hosts: the interface `name`; when that is
// empty, the one that the default route leaves by, or else the only one beside loopback.
// INVALID_ARGUMENT lists what there is.
absl::StatusOr<Interface> ChooseInterface(const std::string& name);

// The interface that the route to `host`, a name or an address, leaves by; not loopback. NOT_FOUND:
// it can't be resolved, or there is no route.
absl::StatusOr<Interface> InterfaceTowards(const std::string& host);

// The interface of this host that has one of the addresses of `host`, a name or an address, with
// that address; loopback only if no other has. NOT_FOUND: there is none, or the name is not known.
absl::StatusOr<Interface> OwnInterfaceOf(const std::string& host);

// Whether `host` is known, and by what this host knows of it another one.
bool LeadsElsewhere(const std::string& host);

// NOT_FOUND: no interface has that address.
absl::StatusOr<Interface> InterfaceWithAddress(const std::string& address);

// The interface that the route to the peer of a connected TCP socket leaves by.
absl::StatusOr<Interface> InterfaceOf(const UniqueFd& socket);

// Whether a numeric address can be reached from anywhere: it is neither loopback nor link-local nor
// of a private network (RFC 1918, RFC 4193, RFC 6598). PURE
bool IsPublicAddress(absl::string_view address);

}  // namespace rueda
