#include "controller/bus/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/interfaces.h"

namespace rueda {
namespace {

constexpr int kSocketFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr int kBacklog = 1'024;
constexpr Nanos kTcpPatience = 2 * kSecond;
// When nothing is sent the kernel asks after so many seconds, and again, whether the other end is
// there: else a connection that is idle could be lost without anybody noticing. A process that is
// stopped answers too.
constexpr int kTcpKeepAliveSeconds = 1;

absl::StatusOr<socklen_t> AbstractAddress(absl::string_view name, sockaddr_un* address) {
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address->sun_path) {
    return absl::InvalidArgumentError(absl::StrCat("socket name too long: ", name));
  }
  memcpy(address->sun_path + 1, name.data(), name.size());  // a leading zero byte: abstract
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

// Same user, or root on either side.
absl::Status CheckPeer(int fd) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return ErrnoStatus(errno, "asking who is at the other end of a unix socket");
  }
  if (peer.uid != geteuid() && peer.uid != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("the other end of a unix socket belongs to user ", peer.uid));
  }
  return absl::OkStatus();
}

void TuneTcp(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  // What was lost is sent again at even intervals at first, not at ever longer ones: after a short
  // cut of the network the peer is heard of again soon.
  setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &one, sizeof one);
  SetTcpPatience(fd, kTcpPatience);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kTcpKeepAliveSeconds, sizeof kTcpKeepAliveSeconds);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kTcpKeepAliveSeconds, sizeof kTcpKeepAliveSeconds);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
}

// No name service is asked.
absl::StatusOr<Addresses> ResolveNumeric(const std::string& host, const std::string& port) {
  constexpr int kFlags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  absl::StatusOr<Addresses> found = Resolve(host, port, SOCK_STREAM, kFlags);
  if (found.ok()) return found;
  return absl::InvalidArgumentError(
      absl::StrCat("address ", host, " port ", port, ": ", found.status().message()));
}

// Begins to, to the first of the addresses.
absl::StatusOr<UniqueFd> Connect(const Addresses& addresses, const std::string& address) {
  UniqueFd fd(socket(addresses->ai_family, kSocketFlags, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "creating a TCP socket");
  TuneTcp(fd.get());
  if (connect(fd.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 && errno != EINPROGRESS) {
    return ErrnoStatus(errno, absl::StrCat("connecting to ", address));
  }
  return fd;
}

}  // namespace

absl::StatusOr<UniqueFd> ListenUnix(absl::string_view name) {
  sockaddr_un address;
  RUEDA_ASSIGN_OR_RETURN(const socklen_t size, AbstractAddress(name, &address));
  UniqueFd fd(socket(AF_UNIX, kSocketFlags, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "creating a unix socket");
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    const absl::Status status =
        ErrnoStatus(error, absl::StrCat("listening on unix socket @", name));
    return error == EADDRINUSE ? absl::AlreadyExistsError(status.message()) : status;
  }
  return fd;
}

absl::StatusOr<UniqueFd> ConnectUnix(absl::string_view name) {
  sockaddr_un address;
  RUEDA_ASSIGN_OR_RETURN(const socklen_t size, AbstractAddress(name, &address));
  UniqueFd fd(socket(AF_UNIX, kSocketFlags, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "creating a unix socket");
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    // EAGAIN: the listener's backlog is full.
    if (errno == ECONNREFUSED || errno == EAGAIN) {
      return absl::UnavailableError(absl::StrCat("nobody answers on unix socket @", name));
    }
    return ErrnoStatus(errno, absl::StrCat("connecting to unix socket @", name));
  }
  if (const absl::Status status = CheckPeer(fd.get()); !status.ok()) {
    return StatusAt(absl::StrCat("unix socket @", name, ", by which ranks of this host meet"),
                    status);
  }
  return fd;
}

void AddressesDeleter::operator()(addrinfo* list) const {
  freeaddrinfo(list);
}

absl::StatusOr<Addresses> Resolve(const std::string& host, const std::string& port, int type,
                                  int flags) {
  addrinfo hints = {};
  hints.ai_socktype = type;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), port.empty() ? nullptr : port.c_str(), &hints, &list);
  if (error != 0) return absl::NotFoundError(gai_strerror(error));
  return Addresses(list);
}

absl::StatusOr<UniqueFd> ListenTcp(const std::string& host, int port) {
  RUEDA_ASSIGN_OR_RETURN(const Addresses addresses, ResolveNumeric(host, absl::StrCat(port)));
  UniqueFd fd(socket(addresses->ai_family, kSocketFlags, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "creating a TCP socket");
  const int one = 1;
  if (port != 0) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(fd.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listening on ", host, " port ", port));
  }
  return fd;
}

absl::StatusOr<std::string> TcpAddressOf(const UniqueFd& listener) {
  sockaddr_storage address;
  socklen_t size = sizeof address;
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return ErrnoStatus(errno, "asking for a socket's address");
  }
  if (getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return absl::InternalError("a socket has an address that can't be printed");
  }
  return address.ss_family == AF_INET6 ? absl::StrCat("[", host, "]:", port)
                                       : absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> SplitAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  HostPort parts;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &parts.port) ||
      parts.port < 1 || parts.port > UINT16_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("address ", address, " has no port from 1 to ", UINT16_MAX, " at its end"));
  }
  parts.host = address.substr(0, colon);
  if (parts.host.size() > 2 && parts.host.front() == '[' && parts.host.back() == ']') {
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  }
  return parts;
}

absl::Status CheckNumericAddress(const std::string& address) {
  RUEDA_ASSIGN_OR_RETURN(const HostPort parts, SplitAddress(address));
  return ResolveNumeric(parts.host, absl::StrCat(parts.port)).status();
}

absl::StatusOr<UniqueFd> ConnectTcp(const std::string& address) {
  RUEDA_ASSIGN_OR_RETURN(const HostPort parts, SplitAddress(address));
  RUEDA_ASSIGN_OR_RETURN(const Addresses addresses,
                         ResolveNumeric(parts.host, absl::StrCat(parts.port)));
  return Connect(addresses, address);
}

absl::StatusOr<UniqueFd> ConnectTcpByName(const std::string& address) {
  RUEDA_ASSIGN_OR_RETURN(const HostPort parts, SplitAddress(address));
  const absl::StatusOr<Addresses> addresses =
      Resolve(parts.host, absl::StrCat(parts.port), SOCK_STREAM);
  if (!addresses.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the host ", parts.host, ": ", addresses.status().message()));
  }
  return Connect(*addresses, address);
}

void SetTcpPatience(int fd, Nanos patience) {
  const int ms = static_cast<int>(std::clamp<Nanos>(patience / kMillisecond, 1, INT_MAX));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

std::optional<size_t> UnacknowledgedBytes(int fd) {
  int protocol = 0;
  socklen_t size = sizeof protocol;
  int bytes = 0;
  if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) != 0) return std::nullopt;
  if (protocol != IPPROTO_TCP || ioctl(fd, SIOCOUTQ, &bytes) != 0) return std::nullopt;
  return static_cast<size_t>(bytes);
}

absl::Status AwaitConnected(const UniqueFd& socket, const std::string& address, Nanos deadline) {
  pollfd wait = {socket.get(), POLLOUT, 0};
  int ready;
  do {
    ready = poll(&wait, 1, PollTimeoutMs(deadline - MonotonicNow()));
  } while (ready < 0 && errno == EINTR);
  int error = ready == 0 ? ETIMEDOUT : errno;
  socklen_t size = sizeof error;
  if (ready > 0) getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (ready > 0 && error == 0) return absl::OkStatus();
  return ErrnoStatus(error, absl::StrCat("connecting to ", address));
}

std::string PeerAddress(const UniqueFd& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  return NumericAddress(reinterpret_cast<sockaddr*>(&address));
}

int PeerPid(int socket) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

absl::StatusOr<UniqueFd> Accept(const UniqueFd& listener) {
  UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) {
    const int error = errno;
    if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
      return absl::ResourceExhaustedError(ErrnoStatus(error, "accepting a connection").message());
    }
    if (error == EBADF || error == EINVAL || error == ENOTSOCK) {
      return ErrnoStatus(error, "accepting a connection");
    }
    return UniqueFd();  // there is none; or it has an error of its own already (accept(2))
  }
  int domain = 0;
  socklen_t size = sizeof domain;
  getsockopt(fd.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size);
  if (domain == AF_UNIX) {
    RUEDA_RETURN_IF_ERROR(CheckPeer(fd.get()));
  } else {
    TuneTcp(fd.get());
  }
  return fd;
}

}  // namespace rueda
