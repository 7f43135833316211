// Processes of several hosts meet over TCP. Rank 0 listens on one interface, and writes where, with a
// secret, to a file that all hosts see and only this user may read; the others look for it. The ranks
// of each host then meet over unix sockets, to become neighbours.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "controller/rendezvous/network.h"
#include "controller/rendezvous/rendezvous_file.h"
#include "controller/rendezvous/unix_meeting.h"

namespace rueda {

class HostsMeeting : public UnixMeeting {
 public:
  // `shared_dir`: that file's directory. `network_interface`: the one for everything of this job;
  // empty: the one by which the others are reached. A secret of the scope goes before the file's.
  static absl::StatusOr<std::unique_ptr<Meeting>> Create(SessionScope scope, Rank rank, int size,
                                                         const std::string& shared_dir,
                                                         const std::string& network_interface);

  std::string address() const override { return interface_.address; }
  std::string network_interface() const override { return interface_.name; }

 protected:
  absl::StatusOr<UniqueFd> OpenDoor() override;
  void CloseDoor() override { file_.reset(); }
  absl::StatusOr<UniqueFd> ReachDoor() override;
  absl::Status Complete(wire::Hello* hello) override;
  bool over_network() const override { return true; }

 private:
  HostsMeeting(SessionScope scope, Rank rank, int size, std::string path, Interface interface)
      : UnixMeeting(std::move(scope), rank, size),
        path_(std::move(path)),
        interface_(std::move(interface)),
        own_secret_(!scope_.secret.empty()) {}

  const std::string path_;
  Interface interface_;
  const bool own_secret_;  // not to be taken from the file, nor written to it
  std::optional<RendezvousFile> file_;
};

}  // namespace rueda
