#include "controller/rendezvous/hosts_meeting.h"

#include <errno.h>
#include <fcntl.h>

#include "absl/strings/str_cat.h"
#include "controller/bus/socket.h"
#include "controller/rendezvous/host_voice.h"
#include "controller/rendezvous/secret.h"
#include "core/base/log.h"

namespace rueda {
namespace {

// How long somebody at rank 0's address may take to prove to be it.
constexpr Nanos kProofPatience = 2 * kSecond;
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
      path_(given_address_.empty()
                ? RendezvousPath(config.shared_dir, scope_.job, scope_.membership)
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
      RUEDA_LOG(Warning)
          << "start: RUEDA_ALLOW_UNAUTHENTICATED=1: whoever reaches " << config.meeting_address
          << " can take part in this job, and read and change what it reduces: start "
             "the ranks with ruedarun, give all of them one secret "
             "(RUEDA_SECRET_FILE), or keep others off this network";
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
    const bool is_asked_for = !config.network_interface.empty();
    absl::StatusOr<Interface> chosen = ChooseInterface(config.network_interface);
    if (is_asked_for && !chosen.ok()) return chosen.status();
    if (given && rank == 0) {
      // That which the others will look for, unless another one is asked for.
      absl::StatusOr<Interface> own = OwnInterfaceOf(address.host);
      if (own.ok() && is_asked_for && own->name != chosen->name) {
        return absl::InvalidArgumentError(
            absl::StrCat("RUEDA_MEETING_ADDRESS=", config.meeting_address, " is an address of ",
                         own->name, ", and RUEDA_NETWORK_INTERFACE=", config.network_interface,
                         " another interface: nobody would look for rank 0 there"));
      }
      if (own.ok()) {
        chosen = std::move(own);
      } else if (chosen.ok() && LeadsElsewhere(address.host)) {
        RUEDA_LOG(Warning)
            << "start: RUEDA_MEETING_ADDRESS=" << config.meeting_address
            << ", where the others look for rank 0, is not this host; rank 0 waits at "
            << chosen->address << " (interface " << chosen->name << ")";
      }
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
  if (!hello->data_address().empty()) return absl::OkStatus();
  // Gloo is told the name alone, and takes the first.
  RUEDA_ASSIGN_OR_RETURN(const Interface first, FindInterface(interface_.name));
  hello->set_data_address(first.address);
  return absl::OkStatus();
}

// The way to the rank that speaks for this host; ABORTED: this one does, at `own_door`. Whoever
// takes the name first does.
absl::StatusOr<UniqueFd> HostsMeeting::ReachVoice(const std::string& name, UniqueFd* own_door) {
  RUEDA_RETURN_IF_ERROR(LearnAddress().status());  // and the secret with it
  absl::StatusOr<UniqueFd> door = ListenUnix(name);
  if (absl::IsAlreadyExists(door.status())) return ConnectUnix(name);
  RUEDA_ASSIGN_OR_RETURN(*own_door, std::move(door));
  return absl::AbortedError("nobody speaks for this host yet");
}

absl::StatusOr<wire::Roster> HostsMeeting::SpeakForHost(const UniqueFd& door,
                                                        const wire::Hello& mine, Nanos deadline) {
  const Route route = {.peer = 0,
                       .who = "rank 0",
                       .reach = [this] { return ReachDoor(); },
                       .certain = false,
                       .own_secret = own_secret_,
                       .patience = kProofPatience};
  absl::StatusOr<std::unique_ptr<Link>> up = Connect(route, deadline);
  HostVoice voice(scope_, rank_, size_, board_.get(),
                  [this](wire::Hello* hello) { return Complete(hello); });
  if (!up.ok()) {
    voice.CallOff(door, up.status());
    return up.status();
  }
  wire::Hello hello = mine;
  RUEDA_RETURN_IF_ERROR(Complete(&hello));
  return voice.Speak(door, *std::move(up), hello, DeadlineAfter(deadline, kVerdictPatience));
}

absl::StatusOr<wire::Roster> HostsMeeting::Report(const wire::Hello& mine, Nanos deadline) {
  const std::string voice = "the rank that speaks for this host";
  const std::string name = MeetingSocketName(scope_, HostVoice::NameOf(mine.host_id()));
  UniqueFd own_door;
  Route route = {HostVoice::PeerNumber(size_), voice, [&] { return ReachVoice(name, &own_door); }};
  route.certain = false;
  route.own_secret = own_secret_;
  route.grace = 2 * kVerdictPatience;
  route.first = "rank 0";
  absl::StatusOr<std::unique_ptr<Link>> link = Connect(route, deadline);
  if (own_door.valid()) return SpeakForHost(own_door, mine, deadline);
  RUEDA_RETURN_IF_ERROR(link.status());
  wire::Hello hello = mine;
  if (!interface_.name.empty()) RUEDA_RETURN_IF_ERROR(Complete(&hello));
  (*link)->Send(FrameType::kHello, hello.SerializeAsString());
  return AwaitRoster(link->get(), voice, DeadlineAfter(deadline, 2 * kVerdictPatience));
}

absl::StatusOr<std::vector<wire::Hello>> HostsMeeting::Gather(const wire::Hello& mine,
                                                              Nanos deadline) {
  absl::StatusOr<std::vector<wire::Hello>> hellos = UnixMeeting::Gather(mine, deadline);
  TakeLinks();  // those from the hosts have done their work
  if (hellos.ok() && size_ > 1 && interface_.name.empty()) {
    // The voice has chosen.
    RUEDA_ASSIGN_OR_RETURN(
        interface_, InterfaceWithAddress((*hellos)[static_cast<size_t>(rank_)].data_address()));
  }
  return hellos;
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
