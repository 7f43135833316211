// Gloo asks for the name of a peer on its own thread, and throws where the peer is gone already,
// which ends the process. Calls inside libgloo go through its table of symbols, in which this
// module comes first. The connection that has no name fails a moment later, in a way that Gloo
// reports.
#include <gloo/transport/tcp/address.h>
#include <sys/socket.h>

namespace gloo::transport::tcp {

__attribute__((visibility("default"))) Address Address::fromPeerName(int fd) {
  sockaddr_storage name = {};
  socklen_t size = sizeof name;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) name = {};
  return Address(name);
}

}  // namespace gloo::transport::tcp
