// Messages between the launcher and its supervisor process, over a pair of unix sockets. Owner: one
// at each end; its process's only thread uses it.
#pragma once

#include <deque>
#include <utility>

#include "controller/launcher/decide/message.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace rueda {

class Channel {
 public:
  static absl::StatusOr<std::pair<Channel, Channel>> CreatePair();

  // Never blocks and never fails: what does not go out now waits for Flush, and what goes to a peer
  // that is gone is dropped.
  void Send(const Message& message);
  void Flush();
  bool wants_write() const { return !waiting_.empty(); }

  enum class Got { kMessage, kNothing, kClosed };
  Got Receive(Message* message);

  int fd() const { return fd_.get(); }
  void Close() { fd_.reset(); }

 private:
  explicit Channel(int fd) : fd_(fd) {}

  UniqueFd fd_;
  std::deque<Message> waiting_;
};

}  // namespace rueda
