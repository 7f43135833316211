// How an agent notices that ruedarun's host has died without a word: a TCP connection to it, which
// carries nothing. The kernel there answers keep-alives also for a ruedarun that is stopped or
// slow, whose silence means nothing.
#pragma once

#include <string>

#include "core/base/clock.h"
#include "core/base/unique_fd.h"

namespace rueda {

// Owner: the agent; its only thread.
class Lifeline {
 public:
  // Begins to connect to `address`, in numbers, with a port; empty: there will be none. `limit`:
  // how long the host may be silent.
  void Open(const std::string& address, Nanos limit);
  // In a process that must not hold it.
  void Close() { fd_.reset(); }

  // What to poll; -1: nothing.
  int fd() const { return fd_.get(); }
  short events() const;
  // After a poll in which something happened there. False: ruedarun's host is gone, or nobody
  // listens there any more.
  bool Advance();

 private:
  bool Connect();
  bool OnFailure(const std::string& why);

  std::string address_;
  Nanos limit_ = 0;
  UniqueFd fd_;
  bool is_connected_ = false;
  bool was_connected_ = false;
};

}  // namespace rueda
