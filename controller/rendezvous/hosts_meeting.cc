#include "controller/rendezvous/hosts_meeting.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "controller/bus/socket.h"
#include "controller/rendezvous/secret.h"
#include "core/base/log.h"
#include "core/base/random.h"

namespace rueda {
namespace {

// How long one try to connect takes at most. The file may be of a job that is gone, whose host
// answers nothing; the next try reads it anew.
constexpr int kTryMs = 1'000;

absl::Status AwaitConnected(const UniqueFd& socket, const std::string& address) {
  pollfd wait = {socket.get(), POLLOUT, 0};
  int ready;
  do {
    ready = poll(&wait, 1, kTryMs);
  } while (ready < 0 && errno == EINTR);
  int error = ready == 0 ? ETIMEDOUT : errno;
  socklen_t size = sizeof error;
  if (ready > 0) getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (ready > 0 && error == 0) return absl::OkStatus();
  return absl::UnavailableError(
      ErrnoStatus(error, absl::StrCat("connecting to rank 0 at ", address)).message());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Meeting>> HostsMeeting::Create(
    SessionScope scope, Rank rank, int size, const std::string& shared_dir,
    const std::string& network_interface) {
  Interface interface;
  if (rank == 0 || !network_interface.empty()) {
    RUEDA_ASSIGN_OR_RETURN(interface, ChooseInterface(network_interface));
  }
  std::string path = RendezvousPath(shared_dir, scope.job, scope.epoch);
  return std::unique_ptr<Meeting>(
      new HostsMeeting(std::move(scope), rank, size, std::move(path), std::move(interface)));
}

absl::StatusOr<UniqueFd> HostsMeeting::OpenDoor() {
  RUEDA_ASSIGN_OR_RETURN(UniqueFd listener, ListenTcp(interface_.address));
  RendezvousPoint point;
  RUEDA_ASSIGN_OR_RETURN(point.address, TcpAddressOf(listener));
  if (!own_secret_) {
    scope_.secret.resize(kSecretBytes);
    FillRandom(scope_.secret.data(), scope_.secret.size());
    point.secret = scope_.secret;
  }
  RUEDA_ASSIGN_OR_RETURN(RendezvousFile file, RendezvousFile::Publish(path_, point));
  file_.emplace(std::move(file));
  RUEDA_LOG(Info) << "start: waiting for the other ranks at " << point.address << " (interface "
                  << interface_.name << ")";
  return listener;
}

absl::Status HostsMeeting::Complete(wire::Hello* hello) {
  // Gloo is told the name alone, and takes the first.
  RUEDA_ASSIGN_OR_RETURN(const Interface first, FindInterface(interface_.name));
  hello->set_data_address(first.address);
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> HostsMeeting::ReachDoor() {
  RUEDA_ASSIGN_OR_RETURN(const RendezvousPoint point, ReadRendezvous(path_));
  if (!own_secret_ && point.secret.size() < kSecretBytesMin) {
    return absl::FailedPreconditionError(
        "rank 0 has a secret of its own (RUEDA_SECRET_FILE or RUEDA_SECRET_FD), and this rank has "
        "none; give it to all ranks");
  }
  RUEDA_ASSIGN_OR_RETURN(UniqueFd socket, ConnectTcp(point.address));
  RUEDA_RETURN_IF_ERROR(AwaitConnected(socket, point.address));
  if (!own_secret_) scope_.secret = point.secret;
  if (interface_.name.empty()) {
    RUEDA_ASSIGN_OR_RETURN(interface_, InterfaceOf(socket));
  }
  return socket;
}

}  // namespace rueda
