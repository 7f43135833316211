#include "controller/launcher/host/channel.h"

#include <errno.h>
#include <sys/socket.h>

namespace rueda {

absl::StatusOr<std::pair<Channel, Channel>> Channel::CreatePair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) {
    return ErrnoStatus(errno, "making a pair of sockets");
  }
  return std::pair(Channel(fds[0]), Channel(fds[1]));
}

void Channel::Send(const Message& message) {
  waiting_.push_back(message);
  Flush();
}

void Channel::Flush() {
  while (!waiting_.empty()) {
    if (send(fd_.get(), &waiting_.front(), sizeof(Message), MSG_NOSIGNAL) < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == ENOBUFS) return;
      waiting_.clear();
      return;
    }
    waiting_.pop_front();
  }
}

Channel::Got Channel::Receive(Message* message) {
  ssize_t n;
  do {
    n = recv(fd_.get(), message, sizeof *message, 0);
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(sizeof *message)) return Got::kMessage;
  return n < 0 && errno == EAGAIN ? Got::kNothing : Got::kClosed;
}

}  // namespace rueda
