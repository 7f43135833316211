// Processes of several hosts meet over TCP. All are given an address, at whose port rank 0 listens,
// or at a socket that the launcher has given it; or else rank 0 listens on one interface, and
// writes where, with a secret, to a file that all hosts see and only this user may read, and the
// others look for it. One rank of each host comes to rank 0, and speaks for the others
// (host_voice.h); these then meet over unix sockets, to become neighbours.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "controller/rendezvous/network.h"
#include "controller/rendezvous/rendezvous_file.h"
#include "controller/rendezvous/unix_meeting.h"
#include "core/config/config.h"

namespace rueda {

class HostsMeeting : public UnixMeeting {
 public:
  // By the settings meeting_address (and, at rank 0, meeting_fd) or else shared_dir, that file's
  // directory. A secret of the scope goes before the file's; without a file there must be one,
  // unless allow_unauthenticated says that there need be none. The setting network_interface is the
  // one for everything of this job; empty: the one by which the others are reached.
  static absl::StatusOr<std::unique_ptr<Meeting>> Create(SessionScope scope, Rank rank, int size,
                                                         const Config& config);

  absl::StatusOr<std::vector<wire::Hello>> Gather(const wire::Hello& mine, Nanos deadline) override;
  std::string address() const override { return interface_.address; }
  std::string network_interface() const override { return interface_.name; }
  std::string waited_at() const override { return door_; }

 protected:
  absl::StatusOr<UniqueFd> OpenDoor() override;
  void CloseDoor() override { file_.reset(); }
  absl::Status Complete(wire::Hello* hello) override;
  absl::StatusOr<wire::Roster> Report(const wire::Hello& mine, Nanos deadline) override;

 private:
  HostsMeeting(SessionScope scope, Rank rank, int size, const Config& config, int port);

  absl::StatusOr<std::string> LearnAddress();
  absl::StatusOr<UniqueFd> ReachDoor();
  absl::StatusOr<UniqueFd> ReachVoice(const std::string& name, UniqueFd* own_door);
  absl::StatusOr<wire::Roster> SpeakForHost(const UniqueFd& door, const wire::Hello& mine,
                                            Nanos deadline);
  absl::Status NoteDoor(const UniqueFd& listener);

  const std::string given_address_;  // empty: a file has it
  const std::string path_;           // of that
  const int port_;                   // at which rank 0 listens; 0: at any
  UniqueFd given_door_;              // rank 0's, by the launcher
  Interface interface_;
  std::string door_;       // rank 0's: where it is
  const bool own_secret_;  // not to be taken from the file, nor written to it
  std::optional<RendezvousFile> file_;
};

}  // namespace rueda
