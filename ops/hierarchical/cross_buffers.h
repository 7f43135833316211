// The memory that one stripe's blocks pass through between hosts, and the messages that carry them:
// for each of a ring of blocks what this host sends of it, what it receives, and the finished
// slice.
//
// Two messages a block and host. The first carries a part of what this host's members bring, behind
// a header; receives for it are posted a whole ring ahead, also beyond an operation's end, so that
// it never waits for the receiver. The second carries a reduced part.
#pragma once

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "ops/backend/module_library.h"
#include "ops/hierarchical/local_ring.h"
#include "ops/hierarchical/stripe_exchange.h"

namespace rueda {

// One thread posts what goes out, another awaits what comes and posts the rest.
class CrossBuffers {
 public:
  // `library` and `ring` outlive this.
  CrossBuffers(const rueda_module* module, rueda_module_communicator* library,
               const CutLimits& limits, int host, LocalRing* ring);
  ~CrossBuffers() { Close(); }

  // Connects to all hosts, and posts the first receives. Blocks.
  absl::Status Open();
  // Afterwards nothing touches the memory. No other call is under way, nor follows.
  void Close();

  // Where part `i` of what is sent goes, `before` bytes of the stripe's parts being in front of it.
  char* Outgoing(uint64_t block, int i, size_t before) const;
  absl::Status SendPart(uint64_t block, int to, int i, size_t before, CrossHeader header);
  // What came from another host: the header, and behind it the part.
  const CrossHeader* Incoming(uint64_t block, int from) const;
  absl::Status AwaitParts(uint64_t block);
  // Nobody looks at what came any more: the next may come there.
  absl::Status PostParts(uint64_t block);
  absl::Status AwaitPartsSent(uint64_t block);

  // Reduced parts, at `offset` in the finished slice.
  absl::Status PostResult(uint64_t block, int from, size_t offset, size_t bytes);
  absl::Status SendResult(uint64_t block, int to, size_t offset, size_t bytes);
  absl::Status AwaitResults(uint64_t block, size_t receives, size_t sends);

 private:
  struct Slot {
    rueda_module_buffer* outgoing = nullptr;
    rueda_module_buffer* incoming = nullptr;
    rueda_module_buffer* finished = nullptr;
  };

  Slot& SlotOf(uint64_t block) { return slots_[block % kRingBlocks]; }
  size_t OutgoingBytes() const;
  size_t IncomingBytes() const { return sizeof(CrossHeader) + limits_.part_bytes; }
  size_t OffsetOf(int host) const;
  int others() const { return limits_.hosts - 1; }
  absl::Status OpenSlot(uint64_t block);
  absl::Status Post(rueda_module_buffer* buffer, bool sends, int host, uint32_t tag, size_t offset,
                    size_t bytes);
  absl::Status Await(rueda_module_buffer* buffer, size_t receives, size_t sends);

  const rueda_module* const module_;
  rueda_module_communicator* const library_;
  const CutLimits limits_;
  const int host_;
  LocalRing* const ring_;
  std::unique_ptr<char[]> outgoing_;
  std::unique_ptr<char[]> incoming_;
  Slot slots_[kRingBlocks];
};

}  // namespace rueda
