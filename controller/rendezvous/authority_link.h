// The way from a process of an elastic job to the authority that decides who is in the next
// membership (controller/membership/authority.h), and to the process that has started it, which
// keeps memory for others: an inherited socket, whose other end the launcher has.
#pragma once

#include <cstdint>
#include <vector>

#include "controller/protocol/rueda.pb.h"
#include "core/base/closed_in_child.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace rueda {

// Any thread.
class AuthorityLink {
 public:
  // The process's, by the setting elastic_fd: made once, and there to its end. FAILED_PRECONDITION:
  // there is no such socket, or this is a forked child of a process of the job.
  static absl::StatusOr<AuthorityLink*> Of(int fd);

  // Asks for the next membership, and waits until there is one: for as long as the launcher has
  // others to wait for. CANCELLED, with why: this process is not wanted any more. UNAVAILABLE: the
  // launcher has gone.
  absl::StatusOr<wire::Record> Ask(uint64_t commits, int32_t blames);
  // The last one that was got; number 0: none.
  wire::Record last() const;

  // Holds memory open beyond this process's end, for Fetch of others. Does not block, and says not
  // whether it worked. Before the first record it does nothing.
  void Keep(wire::KeptPart part, int memory) const;
  // What a process has kept that was started here, and has ended: its part by name, number,
  // membership and rank, and the memory. NOT_FOUND: none has. UNAVAILABLE: the launcher has gone.
  struct Kept {
    wire::KeptPart part;
    UniqueFd memory;
  };
  absl::StatusOr<Kept> Fetch(const wire::KeptPart& wanted);

  // What is due at the next commit, and what is to be waited for, as far as this process has heard.
  struct Due {
    int32_t keeping = 0;  // of the last record, less what was told since
    bool added = false;
    bool dismissed = false;        // this process is
    std::vector<int32_t> leaving;  // slots of members
    bool removed() const { return dismissed || !leaving.empty(); }
  };
  // Does not block.
  Due due();

 private:
  explicit AuthorityLink(UniqueFd fd) : fd_(std::move(fd)), closed_in_child_(fd_.get()) {}
  // The next message, and the memory that came along; `flags` of recv.
  absl::StatusOr<wire::ToProcess> Receive(int flags, UniqueFd* memory = nullptr) const;
  void OnNews(const wire::ToProcess& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads what has come, none of which is an answer.
  void TakeChanges() ABSL_EXCLUSIVE_LOCKS_REQUIRED(reading_) ABSL_LOCKS_EXCLUDED(mutex_);

  const UniqueFd fd_;
  const ClosedInChild closed_in_child_;
  Mutex reading_;  // held by whoever reads, while one asks by that one
  mutable Mutex mutex_;
  wire::Record last_ ABSL_GUARDED_BY(mutex_);
  Due due_ ABSL_GUARDED_BY(mutex_);
};

// A record that can be followed: as many hosts as slots, ranks among them. DATA_LOSS. PURE
absl::Status CheckRecord(const wire::Record& record);

}  // namespace rueda
