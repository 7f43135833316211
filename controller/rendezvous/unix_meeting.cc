#include "controller/rendezvous/unix_meeting.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controller/bus/socket.h"
#include "controller/protocol/codec.h"
#include "controller/rendezvous/admission.h"
#include "controller/rendezvous/hello_server.h"
#include "core/base/closed_in_child.h"
#include "core/base/log.h"
#include "core/base/process.h"

namespace rueda {
namespace {

constexpr Nanos kRetryMin = kMillisecond / 2;
constexpr Nanos kRetryMax = 10 * kMillisecond;
// Each try reads a directory, perhaps of a network file system, and every rank tries.
constexpr Nanos kRetryMaxUncertain = 250 * kMillisecond;
// How often somebody there may turn out to have another secret before it is believed that the two
// were started with different ones. The first times it may be another job, at an address that an
// earlier one has left in the file.
constexpr int kOtherSecretsMax = 8;

// "rank 0", of a neighbour that says nothing "rank 0 (pid 4711, stopped by a signal)".
std::string Described(const std::string& who, const Link& link, const absl::Status& status) {
  const int pid = PeerPid(link.fd());
  if (pid <= 0 || !absl::IsDeadlineExceeded(status)) return who;
  return absl::StrCat(who, " (pid ", pid,
                      ProcessState(pid) == kStoppedBySignal ? ", stopped by a signal)" : ")");
}

// Of each neighbour a rank has two bells, and while they meet an arena; a leader a connection and a
// pidfd too; and some of its own.
constexpr size_t kDescriptorsPerRank = 5;
constexpr size_t kOwnDescriptors = 64;

absl::Status CheckDescriptors(size_t ranks) {
  const size_t needed = kDescriptorsPerRank * ranks + kOwnDescriptors;
  const size_t limit = MakeRoomForDescriptors(needed);
  if (limit >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(ranks, " ranks on a host need about ", needed,
                   " file descriptors each, and this process may have ", limit,
                   ": raise the hard limit (ulimit -Hn), or start fewer ranks a host"));
}

// Descriptors a rank sends to its leader: arena, bell 1, bell 2.
constexpr size_t kOfferDescriptors = 3;
// How many ranks' descriptors go into one frame.
constexpr size_t kRanksPerFrame = 64;

}  // namespace

UnixMeeting::UnixMeeting(SessionScope scope, Rank rank, int size)
    : scope_(std::move(scope)), rank_(rank), size_(size) {}

std::string MeetingSocketName(const SessionScope& scope, absl::string_view whom) {
  return absl::StrCat(
      "rueda-", NameFor("rueda meeting",
                        absl::StrCat(geteuid(), "/", scope.job, "/", scope.membership, "/", whom)));
}

absl::StatusOr<UniqueFd> UnixMeeting::Listen(Rank leader) const {
  const std::string name = MeetingSocketName(scope_, absl::StrCat(leader));
  absl::StatusOr<UniqueFd> listener = ListenUnix(name);
  if (!absl::IsAlreadyExists(listener.status())) return listener;
  // Anybody on this host can take an abstract name, and a job's name need not be hard to guess.
  const absl::Status answer = ConnectUnix(name).status();
  if (absl::IsPermissionDenied(answer)) return answer;
  if (!answer.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a process of this host keeps the name by which the ranks of the job '",
                     scope_.job, "' meet, unix socket @", name,
                     ", and does not answer: start the job under another name (RUEDA_JOB_ID)"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("another process of this host is waiting as rank ", leader,
                   " of a job of the same name, '", scope_.job, "'"));
}

absl::StatusOr<UniqueFd> UnixMeeting::OpenDoor() {
  return Listen(0);
}

UnixMeeting::Route UnixMeeting::NeighbourlyRoute(Rank leader) const {
  return {leader, absl::StrCat("rank ", leader),
          [this, leader] { return ConnectUnix(MeetingSocketName(scope_, absl::StrCat(leader))); }};
}

absl::Status UnixMeeting::CheckThere(const Route& route) const {
  if (board_ == nullptr) return absl::OkStatus();
  return board_->CheckThere(route.certain ? route.peer : 0);
}

// A socket may outlive the rank that listened there, in whoever has inherited it.
absl::Status UnixMeeting::AwaitProof(Link* link, const Route& route, Nanos deadline) const {
  while (true) {
    const Nanos now = MonotonicNow();
    const Nanos next =
        board_ == nullptr ? deadline : std::min(deadline, now + VerdictBoard::kLookAgain);
    const absl::Status status = WaitEstablished(link, next);
    if (!absl::IsDeadlineExceeded(status) || next == deadline) return status;
    RUEDA_RETURN_IF_ERROR(CheckThere(route));
  }
}

absl::StatusOr<std::unique_ptr<Link>> UnixMeeting::Connect(const Route& route, Nanos deadline) {
  const Nanos pause_max = route.certain ? kRetryMax : kRetryMaxUncertain;
  Nanos pause = kRetryMin;
  int other_secrets = 0;
  while (true) {
    RUEDA_RETURN_IF_ERROR(CheckThere(route));
    absl::StatusOr<UniqueFd> fd = route.reach();
    absl::Status status = fd.status();
    std::string who = fd.ok() || route.first.empty() ? route.who : route.first;
    if (fd.ok()) {
      auto link = Link::Client(*std::move(fd), scope_, rank_, route.peer);
      status = AwaitProof(link.get(), route,
                          std::min(DeadlineAfter(deadline, route.grace),
                                   DeadlineAfter(MonotonicNow(), route.patience)));
      if (status.ok()) return link;
      RUEDA_RETURN_IF_ERROR(CheckThere(route));
      who = Described(route.who, *link, status);
      const bool other_secret = absl::IsUnauthenticated(status);
      if (other_secret) pause = kRetryMaxUncertain;
      if (route.own_secret && other_secret && ++other_secrets == kOtherSecretsMax) {
        return absl::UnauthenticatedError(absl::StrCat(
            route.who, " and rank ", rank_, " have different secrets, or names of the job: all ",
            "ranks need the same secret (RUEDA_SECRET_FILE, RUEDA_SECRET_FD) and the "
            "same name, which is '",
            scope_.job, "' here (RUEDA_JOB_ID)"));
      }
      // One that closes its door has failed, or begins anew: a launcher knows.
      const bool may_learn_more = board_ != nullptr && absl::IsUnavailable(status);
      if (route.certain && !may_learn_more) {
        return StatusAt(absl::StrCat("meeting ", route.who), status);
      }
    } else if (!absl::IsUnavailable(status)) {
      return status;
    }
    if (MonotonicNow() + pause >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          who, " did not come to the start of the job in time (the last try: ", status.message(),
          ")"));
    }
    SleepFor(pause);  // there is nothing to wait on: it has not opened its socket yet
    pause = std::min(pause * 2, pause_max);
  }
}

// At rank 0: everybody's hello, if they all come and fit together.
absl::StatusOr<std::vector<wire::Hello>> UnixMeeting::CollectHellos(const wire::Hello& mine,
                                                                    Nanos deadline) {
  RUEDA_ASSIGN_OR_RETURN(const UniqueFd door, OpenDoor());
  HelloServer server(mine, size_);
  const absl::Status came = server.Collect(door, scope_, board_.get(), deadline);
  CloseDoor();
  links_ = server.TakeLinks();
  RUEDA_RETURN_IF_ERROR(came);
  std::vector<wire::Hello> hellos = server.TakeHellos();
  RUEDA_RETURN_IF_ERROR(Complete(&hellos[0]));
  RUEDA_RETURN_IF_ERROR(CheckHellos(hellos));
  return hellos;
}

// At rank 0: tells those that came how it went, in any case.
absl::Status UnixMeeting::TellAll(const absl::StatusOr<std::vector<wire::Hello>>& hellos,
                                  Nanos deadline) {
  const std::string answer =
      (hellos.ok() ? MakeRoster(*hellos) : RosterOfError(hellos.status())).SerializeAsString();
  for (const auto& link : links_) link->Send(FrameType::kRoster, answer);
  return WaitFlushed(links_, DeadlineAfter(std::max(deadline, MonotonicNow()), kVerdictPatience));
}

absl::StatusOr<wire::Roster> UnixMeeting::AwaitRoster(Link* link, const std::string& who,
                                                      Nanos deadline) {
  wire::Roster roster;
  absl::StatusOr<Link::Received> received = WaitFrame(link, FrameType::kRoster, deadline);
  // Refused; or it is known what became of it.
  if (absl::IsFailedPrecondition(received.status()) || LostRank(received.status()).has_value()) {
    return received.status();
  }
  if (!received.ok()) {
    return StatusAt(absl::StrCat(Described(who, *link, received.status()), " failed to start"),
                    received.status());
  }
  RUEDA_RETURN_IF_ERROR(ParseMessage(received->frame.payload, &roster));
  return roster;
}

absl::StatusOr<wire::Roster> UnixMeeting::Report(const wire::Hello& mine, Nanos deadline) {
  while (true) {
    RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<Link> link, Connect(NeighbourlyRoute(0), deadline));
    link->Send(FrameType::kHello, mine.SerializeAsString());
    // Rank 0 knows who is missing: it has the first word when time is up.
    absl::StatusOr<wire::Roster> roster =
        AwaitRoster(link.get(), "rank 0", DeadlineAfter(deadline, kVerdictPatience));
    if (roster.ok()) links_.push_back(std::move(link));
    // It has closed before it let this rank in.
    const bool may_learn_more = board_ != nullptr && absl::IsUnavailable(roster.status());
    if (!may_learn_more) return roster;
    SleepFor(kRetryMax);
  }
}

absl::StatusOr<std::vector<wire::Hello>> UnixMeeting::Gather(const wire::Hello& mine,
                                                             Nanos deadline) {
  if (size_ == 1) return std::vector<wire::Hello>{mine};
  if (rank_ > 0) {
    RUEDA_ASSIGN_OR_RETURN(const wire::Roster roster, Report(mine, deadline));
    return HellosOf(roster, size_);
  }
  absl::StatusOr<std::vector<wire::Hello>> hellos = CollectHellos(mine, deadline);
  const absl::Status told = TellAll(hellos, deadline);
  if (!hellos.ok()) CloseGently(std::move(links_), MonotonicNow() + kFarewellLimit);
  if (hellos.ok() && !told.ok()) return told;
  return hellos;
}

absl::Status UnixMeeting::CollectLinks(const UniqueFd& listener, absl::Span<const Rank> expected,
                                       Rank leader, Nanos deadline) {
  LinksByRank admitted;
  RUEDA_RETURN_IF_ERROR(
      AdmitRanks(listener, expected, scope_, leader, deadline, &admitted, board_.get()));
  links_.clear();
  for (auto& [rank, link] : admitted) links_.push_back(std::move(link));
  return absl::OkStatus();
}

absl::StatusOr<Neighbourhood> UnixMeeting::Introduce(absl::Span<const Rank> ranks, Rank self,
                                                     const NeighbourOffer& mine, size_t log_bytes,
                                                     Nanos deadline) {
  RUEDA_RETURN_IF_ERROR(CheckDescriptors(ranks.size()));
  const Rank leader = ranks.front();
  const std::vector<Rank> others(ranks.begin() + 1, ranks.end());
  if (leader == 0 && !links_.empty()) {
    // The connections by which the hellos came serve; those of ranks of other hosts have done so.
    if (self == 0) {
      links_.erase(std::remove_if(links_.begin(), links_.end(),
                                  [&](const std::unique_ptr<Link>& link) {
                                    return !std::binary_search(others.begin(), others.end(),
                                                               link->peer());
                                  }),
                   links_.end());
    }
  } else {
    links_.clear();
    if (others.empty()) {
      // No door for nobody: other jobs of one rank, without a launcher, have the same name.
    } else if (self == leader) {
      RUEDA_ASSIGN_OR_RETURN(const UniqueFd listener, Listen(leader));
      const ClosedInChild closed_in_child(listener.get());
      RUEDA_RETURN_IF_ERROR(CollectLinks(listener, others, leader, deadline));
    } else {
      RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<Link> link,
                             Connect(NeighbourlyRoute(leader), deadline));
      links_.push_back(std::move(link));
    }
  }
  return self == leader ? Lead(ranks, mine, log_bytes, deadline)
                        : Follow(ranks, self, mine, log_bytes, deadline);
}

absl::StatusOr<Neighbourhood> UnixMeeting::Lead(absl::Span<const Rank> ranks,
                                                const NeighbourOffer& mine, size_t log_bytes,
                                                Nanos deadline) {
  Neighbourhood neighbourhood;
  RUEDA_ASSIGN_OR_RETURN(neighbourhood.segment,
                         Segment::Create(static_cast<int>(ranks.size()), log_bytes));
  // Every rank's descriptors, by local index; ours first.
  std::vector<int> descriptors = {mine.arena->fd(), mine.bells->background.fd(),
                                  mine.bells->waiter.fd()};
  std::vector<UniqueFd> received_descriptors;
  for (const auto& link : links_) {
    RUEDA_ASSIGN_OR_RETURN(Link::Received received,
                           WaitFrame(link.get(), FrameType::kNeighbours, deadline));
    if (received.descriptors.size() != kOfferDescriptors) {
      return absl::DataLossError(absl::StrCat("rank ", link->peer(), " sent ",
                                              received.descriptors.size(), " descriptors"));
    }
    for (UniqueFd& fd : received.descriptors) {
      descriptors.push_back(fd.get());
      received_descriptors.push_back(std::move(fd));
    }
  }
  // One after the other: the kernel lets a user have no more descriptors on their way than a
  // process may have open, and to all at once they would be three for each pair of ranks.
  for (const auto& link : links_) {
    // The segment goes with the first frame.
    for (size_t first = 0; first < ranks.size(); first += kRanksPerFrame) {
      std::vector<int> part;
      if (first == 0) part.push_back(neighbourhood.segment->memory()->fd());
      const size_t last = std::min(first + kRanksPerFrame, ranks.size());
      for (size_t i = first * kOfferDescriptors; i < last * kOfferDescriptors; ++i) {
        part.push_back(descriptors[i]);
      }
      link->Send(FrameType::kNeighbours, "", std::move(part));
    }
    RUEDA_RETURN_IF_ERROR(WaitFlushed(link.get(), deadline));
    RUEDA_RETURN_IF_ERROR(WaitFrame(link.get(), FrameType::kReady, deadline).status());
  }
  neighbourhood.arenas.push_back(mine.arena);
  neighbourhood.bells.push_back(*mine.bells);
  for (size_t i = 0; i < received_descriptors.size(); i += kOfferDescriptors) {
    RUEDA_ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> arena,
                           SharedMemory::Map(std::move(received_descriptors[i])));
    neighbourhood.arenas.push_back(std::move(arena));
    neighbourhood.bells.push_back({Doorbell(std::move(received_descriptors[i + 1])),
                                   Doorbell(std::move(received_descriptors[i + 2]))});
  }
  return neighbourhood;
}

absl::StatusOr<Neighbourhood> UnixMeeting::Follow(absl::Span<const Rank> ranks, Rank self,
                                                  const NeighbourOffer& mine, size_t log_bytes,
                                                  Nanos deadline) {
  Link* link = links_.front().get();
  link->Send(FrameType::kNeighbours, "",
             {mine.arena->fd(), mine.bells->background.fd(), mine.bells->waiter.fd()});
  std::vector<UniqueFd> descriptors;
  while (descriptors.size() < 1 + ranks.size() * kOfferDescriptors) {
    RUEDA_ASSIGN_OR_RETURN(Link::Received received,
                           WaitFrame(link, FrameType::kNeighbours, deadline));
    if (received.descriptors.empty()) return absl::DataLossError("the leader sent no descriptors");
    for (UniqueFd& fd : received.descriptors) descriptors.push_back(std::move(fd));
  }
  link->Send(FrameType::kReady, "");  // the next one's turn
  RUEDA_RETURN_IF_ERROR(WaitFlushed(link, deadline));
  Neighbourhood neighbourhood;
  const int count = static_cast<int>(ranks.size());
  RUEDA_ASSIGN_OR_RETURN(
      std::shared_ptr<SharedMemory> memory,
      SharedMemory::Map(std::move(descriptors[0]), Segment::MappedBytesFor(count, log_bytes, 0)));
  RUEDA_ASSIGN_OR_RETURN(neighbourhood.segment, Segment::Map(std::move(memory), count, log_bytes));
  for (size_t i = 0; i < ranks.size(); ++i) {
    UniqueFd* offer = &descriptors[1 + i * kOfferDescriptors];
    std::shared_ptr<SharedMemory> arena = mine.arena;  // our own is mapped already
    if (ranks[i] != self) {
      RUEDA_ASSIGN_OR_RETURN(arena, SharedMemory::Map(std::move(offer[0])));
    }
    neighbourhood.arenas.push_back(std::move(arena));
    neighbourhood.bells.push_back({Doorbell(std::move(offer[1])), Doorbell(std::move(offer[2]))});
  }
  return neighbourhood;
}

}  // namespace rueda
