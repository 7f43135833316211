// The control segment: what the ranks of one host share in one membership besides their arenas.
// Made by the host's leader, new in every membership, mapped by all.
//
//   head       what it was made for; the membership's first failure, if any, which is written once
//   pages      one a rank: whether it sleeps, what it is doing, whether it has left
//   log        the announcement log (controller/bus/host_log.h lays it out)
//   areas      two a rank and process set, the second for what is of low priority: arrivals,
//              descriptors, slots, blocks of the algorithms
//
// Sparse: what nobody touches takes no memory. The areas of a process set take address space once
// the set is used.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/ids.h"
#include "core/base/shared_memory.h"

namespace rueda {

// Sizes of the algorithms' memory. Powers of two.
inline constexpr size_t kSlotBytes = 32u << 10;    // an operation up to this size is a small one
inline constexpr size_t kBlockBytes = 256u << 10;  // of a staged operation: fits the caches

inline constexpr size_t kRingBlocks = 4;  // of an operation over several hosts, in turn

// How a rank waits, as its neighbours need to know. Only the rank itself writes it.
enum class Sleep : uint32_t {
  kAwake = 0,
  kBackground = 1,  // its background thread is parked: ring bell 1
  kWaiter = 2,      // a waiter sleeps on its own: ring bell 2
  // As kBackground, and nothing of its own is under way: ring bell 1 only if others can't go on.
  kIdle = 4,
};

struct alignas(64) RankPage {
  alignas(64) std::atomic<uint32_t> sleep;
  alignas(64) std::atomic<uint32_t> activity;  // the tensor id of the bucket it works on; 0: none
  std::atomic<uint32_t> left;                  // 1 once it touches no neighbour's memory any more
};

// Where one rank's operands lie, for one arrival.
struct Descriptor {
  uint32_t input_region;  // 0: not in an arena
  uint32_t output_region;
  uint64_t input_offset;
  uint64_t output_offset;
};

// One rank's part of the algorithms' memory for one communicator.
struct alignas(4096) Area {
  // How often this rank has arrived. Grows by one an operation; an early arrival may be taken back
  // once (adr/0018). A rank arrives at k + 1 only after its last read of what belongs to k, so
  // memory alternates by the count's lowest bit.
  alignas(64) std::atomic<uint64_t> arrivals;
  uint32_t digest[2];  // of the bucket's layout, by arrival parity
  alignas(64) Descriptor descriptor[2];
  // Of a send/recv (pair.cc): how far this rank is with sending, and with receiving.
  alignas(64) std::atomic<uint64_t> offered;
  uint32_t pair_parity;  // in which block the data is
  uint32_t pair_digest;
  alignas(64) std::atomic<uint64_t> accepted;
  // Of operations over several hosts (ops/hierarchical), whose blocks lie in the rank's arena: how
  // many it has filled, and how many slices of results it has finished. Both go up for ever.
  alignas(64) std::atomic<uint64_t> filled;
  uint64_t ring_offset;
  uint32_t ring_digest[kRingBlocks];
  alignas(64) std::atomic<uint64_t> finished;
  alignas(4096) char slot[2][kSlotBytes];
  char input[2][kBlockBytes];
  char output[2][kBlockBytes];
};

class Segment {
 public:
  static constexpr size_t kFailureBytesMax = 4'000;

  // Creates the segment for `ranks` neighbours with `log_bytes` for the log. Under a limit on the
  // size of files it has areas for fewer process sets.
  static absl::StatusOr<std::unique_ptr<Segment>> Create(int ranks, size_t log_bytes);
  // The neighbour's view of the same segment. INVALID_ARGUMENT: it was made for others.
  static absl::StatusOr<std::unique_ptr<Segment>> Map(std::shared_ptr<SharedMemory> memory,
                                                      int ranks, size_t log_bytes);

  static size_t BytesFor(int ranks, size_t log_bytes);
  // What is mapped with the areas of `sets` process sets: whole pages of any kernel. What Map is
  // given has those of none.
  static size_t MappedBytesFor(int ranks, size_t log_bytes, int sets);

  const std::shared_ptr<SharedMemory>& memory() const { return memory_; }
  RankPage& page(int local) const { return pages_[local]; }
  char* log() const { return log_; }
  // Of a process set, by local index. RESOURCE_EXHAUSTED: a limit on address space or files
  // leaves no room for them.
  absl::StatusOr<Area*> Areas(SetId set, bool low_priority = false) const;
  int ranks() const { return ranks_; }

  // Whether the membership has failed. One load; called in every wait.
  bool failed() const { return failure_->state.load(std::memory_order_acquire) != 0; }
  // Records the failure unless there is one already; the first wins. `record` is a serialized
  // wire::Failure of at most kFailureBytesMax bytes.
  void Fail(absl::string_view record);
  // The record, once it is written; empty while its writer is still at it.
  std::string failure() const;

 private:
  struct Failure {
    std::atomic<uint32_t> state;  // 0: none; 1: being written; 2: written
    uint32_t bytes;
    char record[kFailureBytesMax];
  };
  struct Head {
    uint64_t ranks, log_bytes;  // what it was made for
    Failure failure;
  };

  Segment(std::shared_ptr<SharedMemory> memory, int ranks, size_t log_bytes);
  Head& head() const { return *reinterpret_cast<Head*>(memory_->data()); }

  const std::shared_ptr<SharedMemory> memory_;
  const int ranks_;
  Failure* failure_;
  RankPage* pages_;
  char* log_;
  size_t head_bytes_;  // before the areas
};

}  // namespace rueda
