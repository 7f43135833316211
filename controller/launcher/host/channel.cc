#include "controller/launcher/host/channel.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace rueda {
namespace {

// What a datagram begins with; the payload follows.
struct Header {
  MessageKind kind;
  int32_t rank, pid, value, flags, blames;
};

}  // namespace

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
    const Message& message = waiting_.front();
    Header header = {message.kind,  message.rank,  message.pid,
                     message.value, message.flags, message.blames};
    iovec parts[] = {{&header, sizeof header},
                     {const_cast<char*>(message.payload.data()), message.payload.size()}};
    msghdr datagram = {};
    datagram.msg_iov = parts;
    datagram.msg_iovlen = 2;
    if (sendmsg(fd_.get(), &datagram, MSG_NOSIGNAL) < 0) {
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
    n = recv(fd_.get(), nullptr, 0, MSG_PEEK | MSG_TRUNC);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return Got::kNothing;
  if (n < static_cast<ssize_t>(sizeof(Header))) return Got::kClosed;
  Header header;
  message->payload.resize(static_cast<size_t>(n) - sizeof header);
  iovec parts[] = {{&header, sizeof header}, {message->payload.data(), message->payload.size()}};
  msghdr datagram = {};
  datagram.msg_iov = parts;
  datagram.msg_iovlen = 2;
  do {
    n = recvmsg(fd_.get(), &datagram, 0);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return Got::kClosed;
  message->kind = header.kind;
  message->rank = header.rank;
  message->pid = header.pid;
  message->value = header.value;
  message->flags = header.flags;
  message->blames = header.blames;
  return Got::kMessage;
}

}  // namespace rueda
