// One stripe between hosts, over TCP connections of its own. The engine itself reads, adds up and
// writes; only who connects is another thread, which ends then.
//
// Each connection carries this stripe's messages in order: the parts of one block after the other,
// and between them the results of the second trip. What comes before there is room for it stays
// unread; no host sends so far ahead that it waits for what lies behind.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "core/base/closed_in_child.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "ops/backend/connector.h"
#include "ops/backend/lane_thread.h"
#include "ops/backend/module_library.h"
#include "ops/backend/wait_set.h"
#include "ops/hierarchical/cut.h"
#include "ops/hierarchical/local_ring.h"
#include "ops/hierarchical/peer_stream.h"
#include "ops/hierarchical/stripe_exchange.h"
#include "ops/paths/peer_paths.h"

namespace rueda {

struct SocketExchangeArgs {
  LaneArgs lane;
  std::vector<Rank> ranks;         // by host: who has the stripe there
  int self = 0;                    // this host
  Connector* connector = nullptr;  // it and what follows outlive the exchange
  WaitSet* wait_set = nullptr;
  CutLimits limits;
  uint64_t first = 0;  // the number of the first block
  LocalRing* ring = nullptr;
};

class SocketExchange : public StripeExchange, private PeerStream::User {
 public:
  // Starts the thread; connects nothing yet.
  static absl::StatusOr<std::unique_ptr<SocketExchange>> Create(SocketExchangeArgs args);
  ~SocketExchange() override;

  void Start(BlockOperation* operation) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool connected() const override { return !streams_.empty(); }
  char* PartAt(int64_t block, int host) const override;
  bool sends_from_anywhere() const override { return true; }
  absl::Status Send(int64_t block, absl::Span<const char* const> parts) override;
  absl::StatusOr<bool> Advance() override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Span<const char* const> Parts(int64_t block) override;
  absl::Status Release(int64_t block) override;
  std::optional<Silence> SilentHost() override;
  void Abort() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // What is under way of a block.
  struct Slot {
    int parts = 0;                     // that have come
    int results = 0;                   // that have come
    int unsent = 0;                    // messages
    std::vector<const char*> part_at;  // by host: where its part is for this one
  };

  explicit SocketExchange(SocketExchangeArgs args);

  // On the thread.
  void Connect() ABSL_LOCKS_EXCLUDED(mutex_);

  // PeerStream::User.
  absl::StatusOr<char*> PlaceFor(int peer, const CrossHeader& header) override;
  void OnReceived(int peer, const CrossHeader& header) override;
  void OnSent(const CrossHeader& header) override { --SlotOf(header.block).unsent; }

  absl::Status Open() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<bool> Step();
  absl::StatusOr<bool> MoveStreams();
  absl::StatusOr<bool> MakeBlock();
  absl::Status CheckParts(int64_t block) const;
  bool FinishBlock();
  int ResultsOf(int64_t block) const;
  char* Destination(int peer, const CrossHeader& header);
  absl::StatusOr<char*> PlaceForResult(int peer, const CrossHeader& header);
  // What the kernel says of the sockets; false: nothing new.
  bool Look();
  absl::Status Watch();
  void Unwatch();
  absl::Status CheckTime();
  void SetTimer(Nanos until);
  absl::Status AddEvents(int fd, int host) const;

  int hosts() const { return args_.limits.hosts; }
  int others() const { return hosts() - 1; }
  Slot& SlotOf(uint64_t number) { return slots_[number % kRingBlocks]; }
  PeerStream& StreamOf(int host) { return *streams_[static_cast<size_t>(host)]; }
  size_t OutgoingBytes() const;
  size_t IncomingBytes() const { return sizeof(CrossHeader) + args_.limits.part_bytes; }
  char* Incoming(uint64_t number, int from) const;

  const SocketExchangeArgs args_;
  LaneStore store_;
  PeerPaths paths_;

  // Handed over by the thread.
  Mutex mutex_;
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> failed_{false};
  std::atomic<bool> met_{false};

  // The engine's.
  bool connecting_ = false;
  std::vector<std::unique_ptr<PeerStream>> streams_;  // by host; null: this one. Empty: not open
  size_t next_stream_ = 0;                            // whose turn it is
  UniqueFd events_;                                   // an epoll instance of all
  UniqueFd timer_;                                    // among them
  ClosedInChild closed_in_child_[2];
  bool watched_ = false;
  std::unique_ptr<char[]> outgoing_;
  std::unique_ptr<char[]> incoming_;
  std::vector<uint64_t> expected_;          // by host: before that no block's part comes,
  std::vector<uint64_t> expected_results_;  // nor result
  uint64_t released_;                       // before that one nobody needs parts any more
  Slot slots_[kRingBlocks];
  Nanos moved_at_ = 0;  // 0: just now
  bool timer_is_set_ = false;

  BlockOperation* now_ = nullptr;
  // How many blocks of it have come so far.
  int64_t sent_ = 0;
  int64_t made_ = 0;
  int64_t finished_ = 0;

  LaneThread thread_;
};

}  // namespace rueda
