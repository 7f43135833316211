// FAKE: see wire.h.
#include "test/support/fake_cuda/wire.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

namespace rueda::fake_cuda {
namespace {

constexpr int kLookMs = 20;

// Whether it is worth another try.
bool Ready(int socket, short events, const Stop& stop) {
  for (;;) {
    if (stop != nullptr && stop()) return false;
    pollfd wanted = {socket, events, 0};
    const int ready = poll(&wanted, 1, kLookMs);
    if (ready == 1) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

}  // namespace

bool SendAll(int socket, const void* data, size_t bytes, const Stop& stop) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(socket, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      from += sent;
      bytes -= static_cast<size_t>(sent);
    } else if ((errno != EAGAIN && errno != EINTR) || !Ready(socket, POLLOUT, stop)) {
      return false;
    }
  }
  return true;
}

bool ReceiveAll(int socket, void* data, size_t bytes, const Stop& stop) {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t received = recv(socket, to, bytes, MSG_DONTWAIT);
    if (received > 0) {
      to += received;
      bytes -= static_cast<size_t>(received);
    } else if (received == 0 || (errno != EAGAIN && errno != EINTR) ||
               !Ready(socket, POLLIN, stop)) {
      return false;
    }
  }
  return true;
}

}  // namespace rueda::fake_cuda
