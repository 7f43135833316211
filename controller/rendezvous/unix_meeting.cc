#include "controller/rendezvous/unix_meeting.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "controller/bus/socket.h"
#include "controller/protocol/codec.h"
#include "controller/rendezvous/admission.h"
#include "core/base/log.h"

namespace rueda {
namespace {

// How much longer than itself the others let rank 0 take to say what is wrong.
constexpr Nanos kVerdictPatience = 2 * kSecond;

constexpr Nanos kRetryMin = kMillisecond / 2;
constexpr Nanos kRetryMax = 10 * kMillisecond;
// Each try reads a directory, perhaps of a network file system, and every rank tries.
constexpr Nanos kRetryMaxOverNetwork = 250 * kMillisecond;
// How long somebody at rank 0's address may take to prove to be it.
constexpr Nanos kProofPatience = 2 * kSecond;
// How often somebody there may turn out to have another secret before it is believed that the two
// were started with different ones. The first times it may be another job, at an address that an
// earlier one has left in the file.
constexpr int kOtherSecretsMax = 8;
// How long those that were told why a start has failed may take to close.
constexpr Nanos kFarewell = kSecond;

// Descriptors a rank sends to its leader: arena, bell 1, bell 2.
constexpr size_t kOfferDescriptors = 3;
// How many ranks' descriptors go into one frame.
constexpr size_t kRanksPerFrame = 64;

}  // namespace

UnixMeeting::UnixMeeting(SessionScope scope, Rank rank, int size)
    : scope_(std::move(scope)), rank_(rank), size_(size) {}

std::string UnixMeeting::SocketName(Rank leader) const {
  return absl::StrCat(
      "rueda-", NameFor("rueda meeting",
                        absl::StrCat(geteuid(), "/", scope_.job, "/", scope_.epoch, "/", leader)));
}

absl::StatusOr<UniqueFd> UnixMeeting::Listen(Rank leader) const {
  const std::string name = SocketName(leader);
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

absl::StatusOr<UniqueFd> UnixMeeting::ReachDoor() {
  return ConnectUnix(SocketName(0));
}

UnixMeeting::Way UnixMeeting::NeighbourlyWay(Rank leader) const {
  return {[this, leader] { return ConnectUnix(SocketName(leader)); }, false, true};
}

absl::Status UnixMeeting::CollectLinks(const UniqueFd& listener, absl::Span<const Rank> expected,
                                       Rank leader, Nanos deadline) {
  std::map<Rank, std::unique_ptr<Link>> admitted;
  absl::Status status = AdmitRanks(listener, expected, scope_, leader, deadline, &admitted);
  links_.clear();
  for (auto& [rank, link] : admitted) links_.push_back(std::move(link));
  return status;
}

absl::StatusOr<std::unique_ptr<Link>> UnixMeeting::Connect(Rank leader, Nanos deadline,
                                                           const Way& way) {
  Nanos pause = kRetryMin;
  int other_secrets = 0;
  while (true) {
    absl::StatusOr<UniqueFd> fd = way.reach();
    absl::Status status = fd.status();
    if (fd.ok()) {
      auto link = Link::Client(*std::move(fd), scope_, rank_, leader);
      const Nanos patience = way.over_network ? kProofPatience : kForever;
      status =
          WaitEstablished(link.get(), std::min(deadline, DeadlineAfter(MonotonicNow(), patience)));
      if (status.ok()) return link;
      const bool other_secret = absl::IsUnauthenticated(status);
      if (other_secret) pause = kRetryMaxOverNetwork;
      if (way.own_secret && other_secret && ++other_secrets == kOtherSecretsMax) {
        return absl::UnauthenticatedError(
            absl::StrCat("rank ", leader, " and rank ", rank_,
                         " have different secrets, or names of the job: all ",
                         "ranks need the same secret (RUEDA_SECRET_FILE, RUEDA_SECRET_FD) and the "
                         "same name, which is '",
                         scope_.job, "' here (RUEDA_JOB_ID)"));
      }
      if (!way.over_network) {
        return StatusAt(absl::StrCat("meeting rank ", leader), status);
      }
    } else if (!absl::IsUnavailable(status)) {
      return status;
    }
    if (MonotonicNow() + pause >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "rank ", leader,
          " did not come to the start of the job in time (the last try: ", status.message(), ")"));
    }
    SleepFor(pause);  // there is nothing to wait on: it has not opened its socket yet
    pause = std::min(pause * 2, (way.over_network ? kRetryMaxOverNetwork : kRetryMax));
  }
}

// At rank 0: everybody's hello, if they all come and fit together.
absl::StatusOr<std::vector<wire::Hello>> UnixMeeting::CollectHellos(const wire::Hello& mine,
                                                                    Nanos deadline) {
  std::vector<Rank> others;
  for (Rank rank = 1; rank < size_; ++rank) others.push_back(rank);
  RUEDA_ASSIGN_OR_RETURN(const UniqueFd door, OpenDoor());
  const absl::Status came = CollectLinks(door, others, 0, deadline);
  CloseDoor();
  RUEDA_RETURN_IF_ERROR(came);
  std::vector<wire::Hello> hellos = {mine};
  RUEDA_RETURN_IF_ERROR(Complete(&hellos[0]));
  for (const auto& link : links_) {
    absl::StatusOr<Link::Received> received = WaitFrame(link.get(), FrameType::kHello, deadline);
    const absl::Status parsed = received.ok()
                                    ? ParseMessage(received->frame.payload, &hellos.emplace_back())
                                    : received.status();
    if (!parsed.ok()) {
      return StatusAt(absl::StrCat("rank ", link->peer(), " failed to start"), parsed);
    }
  }
  RUEDA_RETURN_IF_ERROR(CheckHellos(hellos));
  return hellos;
}

// At rank 0: tells those that came how it went, in any case. Those of other hosts get the roster
// from the first of their host.
absl::Status UnixMeeting::TellAll(const absl::StatusOr<std::vector<wire::Hello>>& hellos,
                                  Nanos deadline) {
  const std::string all =
      (hellos.ok() ? MakeRoster(*hellos) : RosterOfError(hellos.status())).SerializeAsString();
  std::map<std::string, Rank> leaders;  // by host
  if (hellos.ok()) leaders.emplace((*hellos)[0].host_id(), 0);
  for (const auto& link : links_) {
    Rank leader = link->peer();
    if (hellos.ok() && over_network()) {
      leader = leaders.try_emplace((*hellos)[leader].host_id(), leader).first->second;
    }
    if (leader == 0 || leader == link->peer()) {
      link->Send(FrameType::kRoster, all);
    } else {
      wire::Roster ask;
      ask.set_ask(leader);
      link->Send(FrameType::kRoster, ask.SerializeAsString());
    }
  }
  return WaitFlushed(links_, DeadlineAfter(deadline, kVerdictPatience));
}

absl::StatusOr<wire::Roster> UnixMeeting::AwaitRoster(Link* link, Nanos deadline) {
  wire::Roster roster;
  absl::StatusOr<Link::Received> received = WaitFrame(link, FrameType::kRoster, deadline);
  if (received.ok()) {
    RUEDA_RETURN_IF_ERROR(ParseMessage(received->frame.payload, &roster));
    return roster;
  }
  return StatusAt(absl::StrCat("rank ", link->peer(), " failed to start"), received.status());
}

absl::StatusOr<wire::Roster> UnixMeeting::AskNeighbour(Rank leader, Nanos deadline) {
  RUEDA_ASSIGN_OR_RETURN(const std::unique_ptr<Link> link,
                         Connect(leader, deadline, NeighbourlyWay(leader)));
  return AwaitRoster(link.get(), DeadlineAfter(deadline, kVerdictPatience));
}

// At the first rank of a host that is not rank 0's.
absl::Status UnixMeeting::TellNeighbours(const wire::Roster& roster,
                                         absl::Span<const wire::Hello> hellos, Nanos deadline) {
  std::vector<Rank> neighbours;
  for (Rank rank = 0; rank < size_; ++rank) {
    if (hellos[rank].host_id() == hellos[rank_].host_id()) neighbours.push_back(rank);
  }
  if (neighbours.front() != rank_ || neighbours.size() == 1) return absl::OkStatus();
  neighbours.erase(neighbours.begin());
  RUEDA_ASSIGN_OR_RETURN(UniqueFd listener, Listen(rank_));
  const absl::Status came = CollectLinks(listener, neighbours, rank_, deadline);
  listener.reset();
  const std::string answer = (came.ok() ? roster : RosterOfError(came)).SerializeAsString();
  for (const auto& link : links_) link->Send(FrameType::kRoster, answer);
  const absl::Status told = WaitFlushed(links_, DeadlineAfter(deadline, kVerdictPatience));
  CloseGently(std::move(links_), MonotonicNow() + kFarewell);
  RUEDA_RETURN_IF_ERROR(came);
  return told;
}

absl::StatusOr<std::vector<wire::Hello>> UnixMeeting::Gather(const wire::Hello& mine,
                                                             Nanos deadline) {
  if (size_ == 1) return std::vector<wire::Hello>{mine};
  if (rank_ == 0) {
    absl::StatusOr<std::vector<wire::Hello>> hellos = CollectHellos(mine, deadline);
    const absl::Status told = TellAll(hellos, deadline);
    if (!hellos.ok()) CloseGently(std::move(links_), MonotonicNow() + kFarewell);
    if (hellos.ok() && !told.ok()) return told;
    return hellos;
  }
  RUEDA_ASSIGN_OR_RETURN(
      std::unique_ptr<Link> link,
      Connect(0, deadline, {[this] { return ReachDoor(); }, over_network(), has_own_secret()}));
  wire::Hello hello = mine;
  RUEDA_RETURN_IF_ERROR(Complete(&hello));
  link->Send(FrameType::kHello, hello.SerializeAsString());
  // Rank 0 knows who is missing: it has the first word when time is up.
  RUEDA_ASSIGN_OR_RETURN(wire::Roster roster,
                         AwaitRoster(link.get(), DeadlineAfter(deadline, kVerdictPatience)));
  if (const Rank leader = AskOf(roster, size_); leader >= 0) {
    link.reset();
    RUEDA_ASSIGN_OR_RETURN(roster, AskNeighbour(leader, deadline));
  }
  RUEDA_ASSIGN_OR_RETURN(std::vector<wire::Hello> hellos, HellosOf(roster, size_));
  if (over_network()) {
    RUEDA_RETURN_IF_ERROR(TellNeighbours(roster, hellos, deadline));
  } else {
    links_.push_back(std::move(link));
  }
  return hellos;
}

absl::StatusOr<Neighbourhood> UnixMeeting::Introduce(absl::Span<const Rank> ranks, Rank self,
                                                     const NeighbourOffer& mine, size_t log_bytes,
                                                     Nanos deadline) {
  const Rank leader = ranks.front();
  const std::vector<Rank> others(ranks.begin() + 1, ranks.end());
  if (leader == 0 && !over_network()) {
    // The connections to rank 0 serve; those to ranks of other hosts have done their work.
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
    if (self == leader) {
      RUEDA_ASSIGN_OR_RETURN(const UniqueFd listener, Listen(leader));
      RUEDA_RETURN_IF_ERROR(CollectLinks(listener, others, leader, deadline));
    } else {
      RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<Link> link,
                             Connect(leader, deadline, NeighbourlyWay(leader)));
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
  // The segment goes with the first frame.
  for (size_t first = 0; first < ranks.size(); first += kRanksPerFrame) {
    std::vector<int> part;
    if (first == 0) part.push_back(neighbourhood.segment->memory()->fd());
    const size_t last = std::min(first + kRanksPerFrame, ranks.size());
    for (size_t i = first * kOfferDescriptors; i < last * kOfferDescriptors; ++i) {
      part.push_back(descriptors[i]);
    }
    for (const auto& link : links_) link->Send(FrameType::kNeighbours, "", part);
    RUEDA_RETURN_IF_ERROR(WaitFlushed(links_, deadline));
  }
  neighbourhood.arenas.push_back(mine.arena);
  RUEDA_ASSIGN_OR_RETURN(Doorbell background, mine.bells->background.Duplicate());
  RUEDA_ASSIGN_OR_RETURN(Doorbell waiter, mine.bells->waiter.Duplicate());
  neighbourhood.bells.push_back({std::move(background), std::move(waiter)});
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
  Neighbourhood neighbourhood;
  RUEDA_ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> memory,
                         SharedMemory::Map(std::move(descriptors[0])));
  RUEDA_ASSIGN_OR_RETURN(
      neighbourhood.segment,
      Segment::Map(std::move(memory), static_cast<int>(ranks.size()), log_bytes));
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
