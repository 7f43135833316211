// The ranks of a host behind an agent (agent/agent.h), which a remote shell has started there.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/launcher/agent/agent.pb.h"
#include "controller/launcher/agent/agent_stream.h"
#include "controller/launcher/decide/rank_plan.h"
#include "controller/launcher/front/output.h"
#include "controller/launcher/host/host_ranks.h"
#include "core/base/unique_fd.h"

namespace rueda {

class RemoteRanks : public HostRanks {
 public:
  // Starts the agent, `program`, by `words`. What its ranks print goes to `output`, which outlives
  // this. NOT_FOUND and so on, for people: there is no such remote shell.
  static absl::StatusOr<std::unique_ptr<RemoteRanks>> Start(JobHost host,
                                                            std::vector<std::string> words,
                                                            std::string program, Output* output);
  // A process that is still there is killed; its agent notices that nobody reads any more.
  ~RemoteRanks() override;

  // Before the job runs. What has come from the agent by now:
  const std::optional<launch::Hello>& hello() const { return hello_; }
  const std::optional<launch::Ready>& ready() const { return ready_; }
  const std::optional<launch::Refusal>& refusal() const { return refusal_; }
  void Send(const launch::ToAgent& message) { stream_.Send(message); }
  // The last line of what the remote shell and the host have said for themselves.
  std::string LastNoise() const;
  // Once it is gone: why.
  const std::string& WhyGone() const { return why_gone_; }
  // From now on the ranks are running, and what comes besides is the user's.
  void SetRunning();

  void AddWaits(std::vector<pollfd>* waits) override;
  void Advance(absl::Span<const pollfd> waits) override;
  void Send(const Message& message) override;
  bool gone() const override { return gone_; }
  std::string loss() const override;
  void Kill() override;
  // Nobody is there any more to tell: the agent kills its ranks.
  void HangUp() { stream_.CloseOut(); }

 private:
  RemoteRanks(JobHost host, std::string shell, std::string program, pid_t pid, UniqueFd pidfd,
              AgentStream stream, UniqueFd errors, Output* output);
  void OnProcessEnded();
  AgentStream::Got ReadStream();
  absl::Status TakeMessages();
  void Take(launch::FromAgent* message);
  void ReadErrors();
  void SayLines();
  std::string WhyEnded(int wait_status) const;
  void OnEnd(int wait_status);
  void OnBroken(const absl::Status& why);

  const JobHost host_;
  const std::string shell_;
  const std::string program_;
  const pid_t pid_;
  const UniqueFd pidfd_;
  AgentStream stream_;
  UniqueFd errors_;
  Output* const output_;
  std::optional<launch::Hello> hello_;
  std::optional<launch::Ready> ready_;
  std::optional<launch::Refusal> refusal_;
  std::string noise_;
  bool marked_ = false;  // the agent's messages have begun
  bool running_ = false;
  bool finished_ = false;
  bool broken_ = false;
  bool gone_ = false;
  std::string why_gone_;
};

}  // namespace rueda
