// Processes of one host meet over unix sockets with abstract names that are worked out from the
// job. Rank 0 listens, the others try until it does.
#pragma once

#include <functional>
#include <string>

#include "controller/rendezvous/meeting.h"
#include "core/base/unique_fd.h"

namespace rueda {

// The abstract unix socket at which the ranks of a job that are on one host and of one user meet
// `whom`.
std::string MeetingSocketName(const SessionScope& scope, absl::string_view whom);

// What differs where they are on several hosts is virtual (hosts_meeting.h).
class UnixMeeting : public Meeting {
 public:
  UnixMeeting(SessionScope scope, Rank rank, int size);

  void Consult(std::unique_ptr<VerdictBoard> board) override { board_ = std::move(board); }
  VerdictBoard* board() const override { return board_.get(); }
  absl::StatusOr<std::vector<wire::Hello>> Gather(const wire::Hello& mine, Nanos deadline) override;
  absl::StatusOr<Neighbourhood> Introduce(absl::Span<const Rank> ranks, Rank self,
                                          const NeighbourOffer& mine, size_t log_bytes,
                                          Nanos deadline) override;
  absl::Status WhatBecameOf(Rank rank) const override {
    return board_ == nullptr ? absl::OkStatus() : board_->CheckThere(rank);
  }
  std::vector<std::unique_ptr<Link>> TakeLinks() override { return std::move(links_); }
  std::shared_ptr<Store> store() override { return nullptr; }
  Secret secret() const override { return scope_.secret; }

 protected:
  // How much longer than itself the others let rank 0 take to say what is wrong.
  static constexpr Nanos kVerdictPatience = 2 * kSecond;

  // How a rank comes to another one.
  struct Route {
    Rank peer;
    std::string who;                                  // for people
    std::function<absl::StatusOr<UniqueFd>()> reach;  // UNAVAILABLE: it may work the next time
    bool certain = true;        // who is there is nobody else: one that fails is not tried again
    bool own_secret = true;     // which does not come to be the other's by trying again
    Nanos patience = kForever;  // for the proof of one that is there
    Nanos grace = 0;            // how long after the deadline that may still come
    std::string first = "";     // who has to come before anybody can be reached; empty: `who`
  };
  // Tries again until the route leads there. `deadline` is for trying.
  absl::StatusOr<std::unique_ptr<Link>> Connect(const Route& route, Nanos deadline);
  absl::Status CheckThere(const Route& route) const;
  absl::Status AwaitProof(Link* link, const Route& route, Nanos deadline) const;
  static absl::StatusOr<wire::Roster> AwaitRoster(Link* link, const std::string& who,
                                                  Nanos deadline);

  // Rank 0's door for all ranks; closed with what is returned.
  virtual absl::StatusOr<UniqueFd> OpenDoor();
  // It need not stay open any longer.
  virtual void CloseDoor() {}
  // Adds to a hello of this host what is known only now.
  virtual absl::Status Complete(wire::Hello* /*hello*/) { return absl::OkStatus(); }
  // Sends this rank's hello to rank 0, and gets the answer. Not at rank 0.
  virtual absl::StatusOr<wire::Roster> Report(const wire::Hello& mine, Nanos deadline);

  SessionScope scope_;
  std::unique_ptr<VerdictBoard> board_;  // null: there is none
  const Rank rank_;
  const int size_;

 private:
  // FAILED_PRECONDITION, PERMISSION_DENIED: somebody else has the name.
  absl::StatusOr<UniqueFd> Listen(Rank leader) const;
  Route NeighbourlyRoute(Rank leader) const;
  // At a leader: waits until all of `expected` are connected and authenticated; links_ then has
  // them.
  absl::Status CollectLinks(const UniqueFd& listener, absl::Span<const Rank> expected, Rank leader,
                            Nanos deadline);
  absl::StatusOr<std::vector<wire::Hello>> CollectHellos(const wire::Hello& mine, Nanos deadline);
  absl::Status TellAll(const absl::StatusOr<std::vector<wire::Hello>>& hellos, Nanos deadline);
  absl::StatusOr<Neighbourhood> Lead(absl::Span<const Rank> ranks, const NeighbourOffer& mine,
                                     size_t log_bytes, Nanos deadline);
  absl::StatusOr<Neighbourhood> Follow(absl::Span<const Rank> ranks, Rank self,
                                       const NeighbourOffer& mine, size_t log_bytes,
                                       Nanos deadline);

  std::vector<std::unique_ptr<Link>> links_;  // leader: one a rank, in rank order
};

}  // namespace rueda
