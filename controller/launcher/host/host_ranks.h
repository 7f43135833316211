// The ranks that one host has of a job, as the launcher sees them: a stream of messages from
// whoever owns their processes. local_ranks.h: on this host. front/remote_ranks.h: behind an agent.
#pragma once

#include <poll.h>

#include <deque>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "controller/launcher/decide/message.h"

namespace rueda {

// Owner: the launcher process; its only thread. Nothing blocks.
class HostRanks {
 public:
  virtual ~HostRanks() = default;

  // Adds what to wait for to what others do; after poll all of it goes to Advance.
  virtual void AddWaits(std::vector<pollfd>* waits) = 0;
  virtual void Advance(absl::Span<const pollfd> waits) = 0;

  virtual void Send(const Message& message) = 0;
  // The next message. kFinished comes last, or kLost, and then what is known of the ranks all the
  // same.
  bool Receive(Message* message) {
    if (received_.empty()) return false;
    *message = received_.front();
    received_.pop_front();
    return true;
  }

  // Whether nothing more will come, and no process is left that this one has started.
  virtual bool gone() const = 0;
  // After kLost: what happened, for people.
  virtual std::string loss() const = 0;
  // Ends it at once: it was waited for long enough.
  virtual void Kill() = 0;

 protected:
  std::deque<Message> received_;
  size_t first_wait_ = 0;  // of those that AddWaits has added
};

}  // namespace rueda
