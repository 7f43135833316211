#include "core/base/datagram.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>

namespace rueda {

absl::Status SendDatagram(int socket, absl::string_view bytes, int fd, int flags) {
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const item = CMSG_FIRSTHDR(&message);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(item), &fd, sizeof fd);
  }
  ssize_t n;
  do {
    n = sendmsg(socket, &message, flags | MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  return n < 0 ? absl::UnavailableError(strerror(errno)) : absl::OkStatus();
}

absl::StatusOr<std::string> ReceiveDatagram(int socket, size_t bytes_max, UniqueFd* fd, int flags) {
  fd->reset();
  std::string bytes(bytes_max, 0);
  iovec part = {bytes.data(), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  int passed = -1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof passed)];
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n;
  do {
    n = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
    // ECONNRESET: the other end has closed without reading all. It comes once, before what it
    // wrote.
  } while (n < 0 && (errno == EINTR || errno == ECONNRESET));
  if (n < 0 && errno == EAGAIN) return absl::NotFoundError("nothing has come");
  if (n <= 0) return absl::UnavailableError("the other end is closed");
  const cmsghdr* const item = CMSG_FIRSTHDR(&message);
  if (item != nullptr && item->cmsg_level == SOL_SOCKET && item->cmsg_type == SCM_RIGHTS &&
      item->cmsg_len == CMSG_LEN(sizeof passed)) {
    memcpy(&passed, CMSG_DATA(item), sizeof passed);
    fd->reset(passed);
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return absl::ResourceExhaustedError("no descriptor is left for one that another process sent");
  }
  if ((message.msg_flags & MSG_TRUNC) != 0)
    return absl::DataLossError("a message that is too long");
  bytes.resize(static_cast<size_t>(n));
  return bytes;
}

}  // namespace rueda
