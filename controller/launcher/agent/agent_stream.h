// Messages between ruedarun and an agent, over the two pipes that a remote shell gives: four bytes
// of length, least significant first, the message, and a line feed (srun passes lines on). Before
// an agent's first message stands a mark: what a login shell prints comes before it. Owner: one at
// each end; its process's only thread.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "google/protobuf/message_lite.h"

namespace rueda {

inline constexpr char kAgentMark[] = "\nrueda agent\n";

class AgentStream {
 public:
  // Both become non-blocking.
  AgentStream(UniqueFd in, UniqueFd out);

  // Never blocks and never fails: what does not go out now waits for Flush, and what goes to a peer
  // that is gone is dropped.
  void Send(const google::protobuf::MessageLite& message);
  void SendMark();
  void Flush();
  size_t waiting_bytes() const { return outgoing_.size() - written_; }

  // Reads what is there, at most about a MiB.
  enum class Got { kAll, kSome, kEnd };  // kSome: there is more; kEnd: nothing will come any more
  Got Read();
  // The next message of what was read, for agent_words.h; false: it has not come yet. DATA_LOSS: it
  // is none; nothing more can be understood.
  absl::StatusOr<bool> Take(std::string* message);
  // Drops what comes before the mark, and the mark; false: it has not come yet. `noise` gets what
  // is dropped. DATA_LOSS: too much has come without it.
  absl::StatusOr<bool> TakeMark(std::string* noise);

  // What has been read and not been taken.
  absl::string_view unread() const { return absl::string_view(incoming_).substr(taken_); }

  int in() const { return in_.get(); }
  int out() const { return out_.get(); }
  void CloseOut();
  // In a process that must not hold them.
  void CloseBoth();

 private:
  UniqueFd in_, out_;
  std::string incoming_, outgoing_;
  size_t taken_ = 0;    // of `incoming_`
  size_t written_ = 0;  // of `outgoing_`
};

}  // namespace rueda
