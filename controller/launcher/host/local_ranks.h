// The ranks of this host: the supervisor process, and what happens when it dies.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "controller/launcher/host/host_ranks.h"
#include "controller/launcher/host/spawner.h"
#include "core/base/unique_fd.h"

namespace rueda {

class LocalRanks : public HostRanks {
 public:
  // Forks the supervisor; from then on this process adopts orphans. SIGCHLD is blocked and SIGPIPE
  // is ignored, and the calling thread is the only one. `in_supervisor` runs in the new process: it
  // closes what that must not hold.
  static absl::StatusOr<std::unique_ptr<LocalRanks>> Start(
      SpawnArgs args, const std::function<void()>& in_supervisor);

  void AddWaits(std::vector<pollfd>* waits) override;
  void Advance(absl::Span<const pollfd> waits) override;
  void Send(const Message& message) override;
  bool gone() const override { return gone_; }
  std::string loss() const override { return loss_; }
  void Kill() override;

  // Nobody is there any more to tell: the supervisor kills the ranks.
  void Abandon() { channel_.Close(); }

 private:
  LocalRanks(Channel channel, pid_t supervisor, UniqueFd pidfd, std::vector<pid_t> other_children);
  void Take();
  void OnLost(int wait_status);

  Channel channel_;
  const pid_t supervisor_;
  const UniqueFd pidfd_;
  const std::vector<pid_t> other_children_;  // that this process had before
  std::map<pid_t, Rank> running_;
  bool finished_ = false;  // the supervisor has said so
  bool gone_ = false;      // and is collected
  std::string loss_;
};

}  // namespace rueda
