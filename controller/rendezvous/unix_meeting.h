// Processes of one host meet over unix sockets with abstract names that are worked out from the
// job. Rank 0 listens, the others try until it does.
#pragma once

#include <functional>
#include <string>

#include "controller/rendezvous/meeting.h"
#include "core/base/unique_fd.h"

namespace rueda {

// What differs where they are on several hosts is virtual (hosts_meeting.h).
class UnixMeeting : public Meeting {
 public:
  UnixMeeting(SessionScope scope, Rank rank, int size);

  absl::StatusOr<std::vector<wire::Hello>> Gather(const wire::Hello& mine, Nanos deadline) override;
  absl::StatusOr<Neighbourhood> Introduce(absl::Span<const Rank> ranks, Rank self,
                                          const NeighbourOffer& mine, size_t log_bytes,
                                          Nanos deadline) override;
  std::vector<std::unique_ptr<Link>> TakeLinks() override { return std::move(links_); }
  std::shared_ptr<Store> store() override { return nullptr; }
  Secret secret() const override { return scope_.secret; }

 protected:
  // Rank 0's door for all ranks; closed with what is returned.
  virtual absl::StatusOr<UniqueFd> OpenDoor();
  // It need not stay open any longer.
  virtual void CloseDoor() {}
  // The way to it, when it is open: UNAVAILABLE until then, or when it leads nowhere.
  virtual absl::StatusOr<UniqueFd> ReachDoor();
  // Adds to this rank's hello what is known only now.
  virtual absl::Status Complete(wire::Hello* /*hello*/) { return absl::OkStatus(); }
  // Whether it is a way over the network: by which no descriptors go, and which may lead to
  // somebody else, and to rank 0 the next time.
  virtual bool over_network() const { return false; }
  // Whether the secret is known before rank 0 is reached.
  virtual bool has_own_secret() const { return true; }

  SessionScope scope_;

 private:
  std::string SocketName(Rank leader) const;
  // FAILED_PRECONDITION, PERMISSION_DENIED: somebody else has the name.
  absl::StatusOr<UniqueFd> Listen(Rank leader) const;
  // At a leader: waits until all of `expected` are connected and authenticated; links_ then has
  // those that came, also when not all did.
  absl::Status CollectLinks(const UniqueFd& listener, absl::Span<const Rank> expected, Rank leader,
                            Nanos deadline);
  absl::StatusOr<std::vector<wire::Hello>> CollectHellos(const wire::Hello& mine, Nanos deadline);
  absl::Status TellAll(const absl::StatusOr<std::vector<wire::Hello>>& hellos, Nanos deadline);
  absl::StatusOr<wire::Roster> AwaitRoster(Link* link, Nanos deadline);
  absl::StatusOr<wire::Roster> AskNeighbour(Rank leader, Nanos deadline);
  absl::Status TellNeighbours(const wire::Roster& roster, absl::Span<const wire::Hello> hellos,
                              Nanos deadline);
  struct Way {
    std::function<absl::StatusOr<UniqueFd>()> reach;
    bool over_network;
    bool own_secret;  // which does not come to be rank 0's by trying again
  };
  Way NeighbourlyWay(Rank leader) const;
  // Tries again until the way leads to the leader.
  absl::StatusOr<std::unique_ptr<Link>> Connect(Rank leader, Nanos deadline, const Way& way);
  absl::StatusOr<Neighbourhood> Lead(absl::Span<const Rank> ranks, const NeighbourOffer& mine,
                                     size_t log_bytes, Nanos deadline);
  absl::StatusOr<Neighbourhood> Follow(absl::Span<const Rank> ranks, Rank self,
                                       const NeighbourOffer& mine, size_t log_bytes,
                                       Nanos deadline);

  const Rank rank_;
  const int size_;
  std::vector<std::unique_ptr<Link>> links_;  // leader: one a rank, in rank order
};

}  // namespace rueda
