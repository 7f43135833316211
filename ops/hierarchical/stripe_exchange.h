// One stripe between hosts, as BlockPipeline drives it: takes this host's parts to the members of
// the other hosts who have the same stripe, has the operation make the finished stripe of what all
// have sent, and publishes that to the host. Over Gloo (GlooExchange), or over sockets of our own
// (SocketExchange).
//
// The engine's; nothing of it blocks.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "core/base/status.h"
#include "ops/hierarchical/block_operation.h"

namespace rueda {

// In front of what a host sends of a block.
struct CrossHeader {
  uint64_t block;
  uint64_t bytes;  // that follow
  uint32_t digest;
  uint32_t is_result;  // of the second trip; over Gloo that has no header
  uint32_t reserved[10];
};
static_assert(sizeof(CrossHeader) == 64, "what follows begins on a cache line");

// What came first of a block from host `from`, for host `self`: INTERNAL when it is not of the
// operation's layout.
absl::Status CheckPart(const BlockOperation& operation, int64_t block, const CrossHeader& header,
                       int from, int self);

class StripeExchange {
 public:
  virtual ~StripeExchange() = default;

  // Begins an operation that has this stripe, and outlives it; the one before is finished. The ring
  // is open. Connects behind the first one.
  virtual void Start(BlockOperation* operation) = 0;
  // Whether blocks can be sent; rings the engine when that comes true.
  virtual bool connected() const = 0;
  // Where this host's part of the block for a host can be put; free when all of its members have
  // filled the block.
  virtual char* PartAt(int64_t block, int host) const = 0;
  // Whether it may lie anywhere else instead, until the block is finished.
  virtual bool sends_from_anywhere() const = 0;
  // Sends a block. `parts`: by host, where this host's are, its own too.
  virtual absl::Status Send(int64_t block, absl::Span<const char* const> parts) = 0;
  // Moves on what is under way, as far as that is the engine's to do, and says whether anything
  // moved; or why it can't go on.
  virtual absl::StatusOr<bool> Advance() = 0;
  // Of an operation that is taken from parts: those of a finished block, by host; nobody needs them
  // any more.
  virtual absl::Span<const char* const> Parts(int64_t block) = 0;
  virtual absl::Status Release(int64_t block) = 0;
  // See Communicator; a host.
  virtual std::optional<Silence> SilentHost() = 0;
  virtual void Abort() = 0;
};

}  // namespace rueda
