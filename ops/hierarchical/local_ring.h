// The blocks of an operation over several hosts, as the members on one host share them: each has a
// ring of them in its arena. In one half it puts what it gives, in the other what it has finished
// for all. Everything is ordered by two counts of each member, which number blocks from the set's
// beginning on.
//
// A member fills a block when it has taken the results of the one that was there before; as those
// came from all who read it, and nobody fills before, that is all that keeps readers and writers
// apart.
#pragma once

#include <memory>
#include <vector>

#include "ops/host/arena.h"
#include "ops/host/neighbours.h"
#include "ops/shm/shm_group.h"

namespace rueda {

struct LocalRingArgs {
  std::vector<ShmMember> members;  // of this host
  int self = 0;
  const Neighbours* neighbours = nullptr;
  std::shared_ptr<Arena> arena;  // this rank's own
  size_t input_bytes = 0;        // of a block
  size_t output_bytes = 0;       // of a finished slice of one
};

class LocalRing {
 public:
  explicit LocalRing(LocalRingArgs args) : args_(std::move(args)) {
    places_.resize(args_.members.size(), nullptr);
  }
  ~LocalRing();
  LocalRing(const LocalRing&) = delete;

  // Takes memory, unless it has. RESOURCE_EXHAUSTED.
  absl::Status Open();

  int size() const { return static_cast<int>(args_.members.size()); }

  // Of an open ring. Another member's once it is located, and has filled the block, or finished.
  char* own_input(uint64_t block) const { return InputIn(own_, block); }
  char* own_output(uint64_t block) const { return OutputIn(own_, block); }
  const char* input(int member, uint64_t block) const { return InputIn(Place(member), block); }
  const char* output(int member, uint64_t block) const { return OutputIn(Place(member), block); }

  // Publishes this rank's block, with the layout's digest, and wakes who sleeps.
  void Fill(uint64_t block, uint32_t digest);
  // Whether all members have filled it.
  bool AllFilled(uint64_t block);
  // INTERNAL when one of them did for another layout. Before this rank's slice of it is finished.
  absl::Status CheckFilled(uint64_t block, uint32_t digest) const;
  // Looks where the others' rings are, of which a block was filled. INTERNAL: where none can be.
  absl::Status Locate();

  // Publishes this rank's slice of the results. Any thread.
  void Finish(uint64_t block);
  // Whether members [0, owners) have.
  bool AllFinished(uint64_t block, int owners) const;

 private:
  size_t bytes() const { return kRingBlocks * (args_.input_bytes + args_.output_bytes); }
  Area& own_area() const { return *args_.members[static_cast<size_t>(args_.self)].area; }
  char* InputIn(char* ring, uint64_t block) const {
    return ring + block % kRingBlocks * args_.input_bytes;
  }
  char* OutputIn(char* ring, uint64_t block) const {
    return ring + kRingBlocks * args_.input_bytes + block % kRingBlocks * args_.output_bytes;
  }
  char* Place(int member) const { return places_[static_cast<size_t>(member)]; }
  void WakeOthers() const;

  const LocalRingArgs args_;
  char* own_ = nullptr;
  std::vector<char*> places_;  // by member: its ring as mapped here; null: not known yet
  bool located_ = false;
  size_t filled_ = 0;  // members below this index have filled the block that is waited for
};

}  // namespace rueda
