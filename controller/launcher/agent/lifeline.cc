#include "controller/launcher/agent/lifeline.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>

#include "controller/bus/socket.h"

namespace rueda {
namespace {

// How often within the limit the other kernel is asked.
constexpr Nanos kQuestions = 6;

// What ends a connection on which nothing was said: the other end, or nobody's answer.
int ErrorOf(int fd) {
  char ignored[256];
  ssize_t n;
  while ((n = recv(fd, ignored, sizeof ignored, MSG_DONTWAIT)) > 0) {
  }
  return n == 0 ? ECONNRESET : errno;
}

// To the host's user: ruedarun passes on what an agent prints.
void SayThereIsNone(const std::string& address, const std::string& why) {
  fprintf(
      stderr,
      "can't connect to ruedarun at %s (%s): if its host dies without a word, this host's ranks "
      "stay\n",
      address.c_str(), why.c_str());
}

}  // namespace

void Lifeline::Open(const std::string& address, Nanos limit) {
  address_ = address;
  limit_ = limit;
  if (!address.empty()) Connect();
}

bool Lifeline::Connect() {
  is_connected_ = false;
  absl::StatusOr<UniqueFd> fd = ConnectTcp(address_);
  if (!fd.ok()) return OnFailure(std::string(fd.status().message()));
  fd_ = *std::move(fd);
  const auto seconds = static_cast<int>(std::max<Nanos>(limit_ / kQuestions / kSecond, 1));
  const int on = 1;
  setsockopt(fd_.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
  // It is looked at when a question is due.
  SetTcpPatience(fd_.get(), std::max(limit_ - seconds * kSecond, kSecond));
  return true;
}

short Lifeline::events() const {
  return is_connected_ ? POLLIN : POLLOUT;
}

bool Lifeline::Advance() {
  if (!is_connected_) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    is_connected_ = error == 0;
    was_connected_ |= is_connected_;
    return is_connected_ || OnFailure(strerror(error));
  }
  const int error = ErrorOf(fd_.get());
  if (error == EAGAIN || error == EINTR) return true;
  // Somebody between may have forgotten a connection that says nothing: a new one tells.
  return error == ECONNRESET && Connect();
}

bool Lifeline::OnFailure(const std::string& why) {
  fd_.reset();
  if (was_connected_) return false;
  SayThereIsNone(address_, why);
  return true;
}

}  // namespace rueda
