#include "controller/rendezvous/hosts_meeting.h"

#include <errno.h>
#include <fcntl.h>

#include "absl/strings/str_cat.h"
#include "controller/bus/socket.h"
#include "controller/rendezvous/secret.h"
#include "core/base/log.h"

namespace rueda {
namespace {

// How long one try to connect takes at most. The file may be of a job that is gone, whose host
// answers nothing; the next try reads it anew.
constexpr Nanos kTry = kSecond;

// What everybody knows, for those who want no secret.
constexpr char kNoSecret[] = "rueda: no secret";

// A copy of an inherited listening socket, which stays for the next init of this process; programs
// that it starts don't get it.
absl::StatusOr<UniqueFd> InheritSocket(absl::string_view variable, int fd) {
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) {
    return absl::FailedPreconditionError(
        absl::StrCat(variable, "=", fd,
                     ": there is no such open descriptor; did a program between the launcher "
                     "and this one close it?"));
  }
  if (fcntl(copy.get(), F_SETFL, O_NONBLOCK) != 0) return ErrnoStatus(errno, variable);
  return copy;
}

}  // namespace

HostsMeeting::HostsMeeting(SessionScope scope, Rank rank, int size, const Config& config, int port)
    : UnixMeeting(std::move(scope), rank, size),
      given_address_(config.meeting_address),
      path_(given_address_.empty() ? RendezvousPath(config.shared_dir, scope_.job, scope_.epoch)
                                   : ""),
      port_(port),
      own_secret_(!scope_.secret.empty()) {}

absl::StatusOr<std::unique_ptr<Meeting>> HostsMeeting::Create(SessionScope scope, Rank rank,
                                                              int size, const Config& config) {
  const bool given = !config.meeting_address.empty();
  if (given && scope.secret.empty()) {
    if (config.allow_unauthenticated == 0) {
      return absl::FailedPreconditionError(
          "RUEDA_MEETING_ADDRESS without a secret: give all ranks one (RUEDA_SECRET_FILE or "
          "RUEDA_SECRET_FD), or set RUEDA_ALLOW_UNAUTHENTICATED=1 where nobody else can reach "
          "them");
    }
    scope.secret = kNoSecret;
    if (rank == 0) {
      RUEDA_LOG(Warning) << "start: RUEDA_ALLOW_UNAUTHENTICATED=1: whoever reaches "
                         << config.meeting_address << " can take part in this job";
    }
  }
  HostPort address = {};
  if (given) {
    absl::StatusOr<HostPort> valid = SplitAddress(config.meeting_address);
    if (!valid.ok()) return StatusAt("RUEDA_MEETING_ADDRESS", valid.status());
    address = *std::move(valid);
  }
  std::unique_ptr<HostsMeeting> meeting(
      new HostsMeeting(std::move(scope), rank, size, config, address.port));
  if (given && rank == 0 && config.meeting_fd >= 0) {
    RUEDA_ASSIGN_OR_RETURN(meeting->given_door_,
                           InheritSocket("RUEDA_MEETING_FD", static_cast<int>(config.meeting_fd)));
    RUEDA_ASSIGN_OR_RETURN(meeting->interface_, InterfaceOf(meeting->given_door_));
  } else if (rank == 0 || !config.network_interface.empty()) {
    absl::StatusOr<Interface> chosen = ChooseInterface(config.network_interface);
    if (given && rank == 0) {
      // That which the others will look for, unless another one is asked for.
      absl::StatusOr<Interface> own = OwnInterfaceOf(address.host);
      const bool fits = config.network_interface.empty() ||
                        (own.ok() && chosen.ok() && own->name == chosen->name);
      if (own.ok() && fits) chosen = std::move(own);
    }
    RUEDA_ASSIGN_OR_RETURN(meeting->interface_, std::move(chosen));
  }
  return std::unique_ptr<Meeting>(std::move(meeting));
}

absl::StatusOr<UniqueFd> HostsMeeting::OpenDoor() {
  if (given_door_.valid()) {
    RUEDA_RETURN_IF_ERROR(NoteDoor(given_door_));
    return std::move(given_door_);
  }
  RUEDA_ASSIGN_OR_RETURN(UniqueFd listener, ListenTcp(interface_.address, port_));
  RUEDA_RETURN_IF_ERROR(NoteDoor(listener));
  RUEDA_LOG(Info) << "start: waiting for the other ranks at " << door_;
  if (!given_address_.empty()) return listener;
  RendezvousPoint point;
  RUEDA_ASSIGN_OR_RETURN(point.address, TcpAddressOf(listener));
  if (!own_secret_) {
    scope_.secret = NewSecret();
    point.secret = scope_.secret;
  }
  RUEDA_ASSIGN_OR_RETURN(RendezvousFile file, RendezvousFile::Publish(path_, point));
  file_.emplace(std::move(file));
  return listener;
}

absl::Status HostsMeeting::NoteDoor(const UniqueFd& listener) {
  RUEDA_ASSIGN_OR_RETURN(const std::string address, TcpAddressOf(listener));
  door_ = absl::StrCat(address, " (interface ", interface_.name, ")");
  return absl::OkStatus();
}

absl::Status HostsMeeting::Complete(wire::Hello* hello) {
  // Gloo is told the name alone, and takes the first.
  RUEDA_ASSIGN_OR_RETURN(const Interface first, FindInterface(interface_.name));
  hello->set_data_address(first.address);
  return absl::OkStatus();
}

// Where rank 0 waits, and from a file the secret too.
absl::StatusOr<std::string> HostsMeeting::LearnAddress() {
  if (!given_address_.empty()) return given_address_;
  RUEDA_ASSIGN_OR_RETURN(RendezvousPoint point, ReadRendezvous(path_));
  if (!own_secret_ && point.secret.bytes().size() < kSecretBytesMin) {
    return absl::FailedPreconditionError(
        "rank 0 has a secret of its own (RUEDA_SECRET_FILE or RUEDA_SECRET_FD), and this rank has "
        "none; give it to all ranks");
  }
  if (!own_secret_) scope_.secret = std::move(point.secret);
  return std::move(point.address);
}

absl::StatusOr<UniqueFd> HostsMeeting::ReachDoor() {
  RUEDA_ASSIGN_OR_RETURN(const std::string address, LearnAddress());
  RUEDA_ASSIGN_OR_RETURN(UniqueFd socket, ConnectTcpByName(address));
  const absl::Status connected = AwaitConnected(socket, address, MonotonicNow() + kTry);
  if (!connected.ok()) {
    return absl::UnavailableError(absl::StrCat("looking for rank 0: ", connected.message()));
  }
  if (interface_.name.empty()) {
    RUEDA_ASSIGN_OR_RETURN(interface_, InterfaceOf(socket));
  }
  return socket;
}

}  // namespace rueda
