// A way to move bytes between the ranks of a process set. One object per kind and runtime; it makes
// the communicators.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/base/ids.h"
#include "ops/backend/communicator.h"

namespace rueda {

class DeviceBackend;  // ops/backend/device.h

// The ranks that a communicator is made for.
struct Members {
  SetId set = kWorldSet;
  uint32_t generation = 0;    // how many process sets had this id before
  bool low_priority = false;  // its second communicator, for operations of low priority
  std::vector<Rank> ranks;    // world ranks, ascending
  int self = 0;               // this rank's index among them
  bool one_host = true;       // whether all of them share this rank's host
  std::vector<int> hosts;     // by member: a number of its host; empty: nobody has looked
};

// Where what is counted of a process set in shared memory begins: beyond where that of any earlier
// set with its id ever came, so that nothing which that one left is taken for this one's.
inline uint64_t FirstCount(uint32_t generation) {
  return static_cast<uint64_t>(generation) << 40;
}

// The communicators of members on several hosts.
struct Levels {
  // By host, in the order of the hosts' first members: its members' indices, ascending.
  std::vector<std::vector<int>> hosts;
  int host = 0;     // this rank's
  int local = 0;    // its index among its host's members
  int stripes = 1;  // how many members of each host have one on every other host
  std::unique_ptr<Communicator> inside;  // of this host's members
  std::unique_ptr<Communicator> across;  // of one member a host; null beyond the stripes
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual absl::string_view name() const = 0;

  // Whether its members are connected: what one has sent can be lost to the others when it closes.
  virtual bool connects() const = 0;

  // OK when this backend can serve them, else the reason why not, for people. The same answer
  // on every one of them.
  virtual absl::Status Viable(const Members& members) const = 0;

  // Does not block: what takes long (connections) happens behind the communicator's first
  // operation.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Connect(const Members& members) = 0;

  // Beside the communicator of all, what does its operations in two levels;
  // FAILED_PRECONDITION where there are none. Does not block either.
  virtual absl::StatusOr<Levels> ConnectLevels([[maybe_unused]] const Members& members) {
    return absl::FailedPreconditionError("there are no levels");
  }

  // This one, if its tensors are on a device; null: they are on the CPU.
  virtual DeviceBackend* on_device() { return nullptr; }
};

}  // namespace rueda
