// Stream sockets for control connections: unix sockets with abstract names inside a host, TCP
// between hosts. All are non-blocking and not inherited by programs that the process starts.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

struct addrinfo;

namespace rueda {

// Abstract names belong to the network namespace, have no file, and vanish with their socket. At
// most 107 bytes. ALREADY_EXISTS when somebody listens there.
absl::StatusOr<UniqueFd> ListenUnix(absl::string_view name);
// UNAVAILABLE when nobody listens (yet). PERMISSION_DENIED when the listener is another user's.
absl::StatusOr<UniqueFd> ConnectUnix(absl::string_view name);

struct AddressesDeleter {
  void operator()(addrinfo* list) const;
};
using Addresses = std::unique_ptr<addrinfo, AddressesDeleter>;
// What getaddrinfo has for a name or a numeric address and a port (empty: none), at least one
// entry. NOT_FOUND: nothing, in its words.
absl::StatusOr<Addresses> Resolve(const std::string& host, const std::string& port, int type,
                                  int flags = 0);

// Listens at `port` on `host`, a numeric address. 0: a port of the kernel's choice. Another one may
// have connections still that are about to end.
absl::StatusOr<UniqueFd> ListenTcp(const std::string& host, int port = 0);
// "127.0.0.1:34567" or "[::1]:34567", of a socket that ListenTcp made.
absl::StatusOr<std::string> TcpAddressOf(const UniqueFd& listener);
// "HOST:PORT" or "[IPv6]:PORT". INVALID_ARGUMENT: it is something else.
struct HostPort {
  std::string host;
  int port;
};
absl::StatusOr<HostPort> SplitAddress(const std::string& address);
// INVALID_ARGUMENT: it has no address in numbers, or no port. No name service is asked.
absl::Status CheckNumericAddress(const std::string& address);
// Begins to connect; the socket is writable when it has. INVALID_ARGUMENT for a malformed address.
absl::StatusOr<UniqueFd> ConnectTcp(const std::string& address);
// The same, to a host by name: whichever of its addresses comes first. UNAVAILABLE: the name is not
// known, yet. May ask a name service, and wait for it.
absl::StatusOr<UniqueFd> ConnectTcpByName(const std::string& address);
// How long nothing may come back before the kernel takes a TCP connection for lost; two seconds if
// nothing is said. Nothing happens to other sockets.
void SetTcpPatience(int fd, Nanos patience);

// How many of the bytes that were written to a TCP connection the other end's kernel has not
// acknowledged; nothing of other sockets.
std::optional<size_t> UnacknowledgedBytes(int fd);

// Blocks until a socket that has begun to connect to `address` is connected, at most to `deadline`:
// DEADLINE_EXCEEDED then, or when the kernel has given up, else what is wrong.
absl::Status AwaitConnected(const UniqueFd& socket, const std::string& address, Nanos deadline);

// The next connection of a listening socket; invalid when there is none. A unix peer of another
// user (but root) is refused: PERMISSION_DENIED. RESOURCE_EXHAUSTED: it waits for a descriptor
// to become free.
absl::StatusOr<UniqueFd> Accept(const UniqueFd& listener);
// The numeric address of the other end of a TCP connection; empty for a unix socket.
std::string PeerAddress(const UniqueFd& socket);
// The process at the other end of a unix socket, as numbered here; 0: it can't be seen from here.
int PeerPid(int socket);

}  // namespace rueda
