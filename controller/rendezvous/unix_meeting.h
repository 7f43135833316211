// Processes of one host meet over unix sockets with abstract names that are worked out from the
// job. Rank 0 listens, the others try until it does.
#pragma once

#include <string>

#include "controller/rendezvous/meeting.h"

namespace rueda {

class UnixMeeting : public Meeting {
 public:
  UnixMeeting(SessionScope scope, Rank rank, int size);

  absl::StatusOr<std::vector<wire::Hello>> Gather(const wire::Hello& mine, Nanos deadline) override;
  absl::StatusOr<Neighbourhood> Introduce(absl::Span<const Rank> ranks, Rank self,
                                          const NeighbourOffer& mine, size_t log_bytes,
                                          Nanos deadline) override;
  std::vector<std::unique_ptr<Link>> TakeLinks() override { return std::move(links_); }
  std::shared_ptr<Store> store() override { return nullptr; }
  std::string secret() const override { return scope_.secret; }

 private:
  std::string SocketName(Rank leader) const;
  // At a leader: waits until all of `expected` are connected and authenticated; links_ then has
  // those that came, also when not all did.
  absl::Status CollectLinks(absl::Span<const Rank> expected, Rank leader, Nanos deadline);
  absl::Status CollectHellos(const wire::Hello& mine, Nanos deadline, wire::Hellos* all);
  absl::Status TellHellos(const wire::Hellos& all, Nanos deadline);
  absl::StatusOr<std::unique_ptr<Link>> Connect(Rank leader, Nanos deadline);
  absl::StatusOr<Neighbourhood> Lead(absl::Span<const Rank> ranks, const NeighbourOffer& mine,
                                     size_t log_bytes, Nanos deadline);
  absl::StatusOr<Neighbourhood> Follow(absl::Span<const Rank> ranks, Rank self,
                                       const NeighbourOffer& mine, size_t log_bytes,
                                       Nanos deadline);

  const SessionScope scope_;
  const Rank rank_;
  const int size_;
  std::vector<std::unique_ptr<Link>> links_;  // leader: one a rank, in rank order
};

}  // namespace rueda
