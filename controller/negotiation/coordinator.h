// The coordinator: turns what the ranks announce into one totally ordered plan stream. Inside a
// host every rank runs a replica over the shared log and all compute the same plans; between hosts
// rank 0 alone runs it. Nothing it decides depends on a clock: `now` is for reports.
//
// When a batch closes (design decision, docs/internals/protocol.md): at the bucket size; when a
// group is whole; when its lane is free; when a rank waits for something in it; before anything
// incompatible. PURE
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/membership/process_sets.h"
#include "controller/negotiation/blocked_ranks.h"
#include "controller/negotiation/messages.h"
#include "controller/negotiation/participants.h"
#include "controller/negotiation/pending.h"
#include "controller/negotiation/tensor_table.h"

namespace rueda {

struct CoordinatorOptions {
  int world_size = 1;
  int64_t bucket_bytes = 64 << 20;
  Nanos stall_warn = 10 * kSecond;  // first report; then at 6 times this, then every 30 times
  Nanos stall_timeout = 0;          // 0: never
  Nanos deadlock_timeout = 0;       // for texts: ranks look at it themselves (Blocked)
  int tensor_ids_max = kTensorIdsMax;
  std::vector<std::vector<Rank>> process_sets;  // sets 1, 2, ... that exist from the start
  std::shared_ptr<const LeaderTree> leaders;    // who may speak for whom; null: each for itself

  // The age at which an operation that is not complete is reported or expires, whichever is first.
  Nanos first_stall() const {
    return stall_timeout > 0 ? std::min(stall_warn, stall_timeout) : stall_warn;
  }
};

class Coordinator {
 public:
  explicit Coordinator(const CoordinatorOptions& options);

  // Takes one event and appends what follows from it to `plan`. An error means that a peer broke
  // the protocol; the membership can't go on.
  absl::Status Step(const ControlEvent& event, Nanos now, Plan* plan);

  // Whether the lane's open batch holds something, and how many batches were ordered on the lane. A
  // rank that has completed all of them while something is open announces Done.
  bool HasOpenBatch(SetId lane) const;
  uint64_t OrderedOn(SetId lane) const;
  // The highest count of completed batches that a member has announced.
  uint64_t DoneOn(SetId lane) const;

  // Stalls, judged by the caller's clock. Reports for people are appended to `reports`; operations
  // that must fail now to `expired`, for the caller to put into the log. Returns when to call
  // again; it costs nothing before that time, so it may be called at any time.
  // `speaker`: only what that rank should speak of: where each rank has a replica, and may sleep
  // while others' operations stall, the rank that was the first to submit one does. kEverybody: all
  // there is.
  Nanos CheckDeadlines(Nanos now, std::vector<std::string>* reports, std::vector<Expire>* expired,
                       Rank speaker = kEverybody);
  static constexpr Rank kEverybody = -1;

  const ProcessSetTable& process_sets() const { return sets_; }
  const TensorTable& tensors() const { return table_; }
  int pending() const { return pending_.count(); }

 private:
  // What tensors must have in common to share a bucket, besides their scale factors.
  struct FusionKey {
    OperationTraits traits;
    DType dtype = DType::kUInt8;
    friend bool operator==(const FusionKey&, const FusionKey&) = default;
  };
  // What belongs to one process set.
  struct SetState {
    Order open;
    FusionKey fusion_key;  // of what is open
    int64_t bytes = 0;     // of what is open
    uint64_t ordered = 0;
    uint64_t done = 0;
    RankSet joined;  // by member index: those who have joined, while the others have not
    int left = 0;    // how many of its members have left
  };
  // Columns of the tensor table that only the coordinator needs, by slot of the id.
  struct Column {
    TensorId id = kNoTensor;
    int pending_slot = -1;
    int64_t bytes = 0;
    FusionKey fusion_key;
    bool fusable = false;
    uint32_t newer = 0, older = 0;  // the list by last use; 0 is its head
  };
  struct RankState {
    TensorId last = kNoTensor;  // its latest announcement
    uint32_t last_sequence = 0;
    Nanos last_at = 0;
  };

  // What is announced, for one rank or several.
  struct Subject {
    TensorId id;
    int slot;  // in pending_
    int participants;
    const SpecPtr& spec;
  };
  absl::Status OnAnnounced(absl::Span<const Rank> ranks, const Announcement& announcement,
                           Nanos now, Plan* plan);
  absl::Status Announce(Rank rank, int member, const Subject& subject,
                        const Announcement& announcement, Nanos now, Plan* plan);
  absl::Status OnWaited(absl::Span<const Rank> ranks, const Waited& waited, Plan* plan);
  absl::Status OnDone(Rank rank, const Done& event, Plan* plan);
  void OnLeave(Rank rank, Plan* plan);
  void OnExpire(const Expire& event, Plan* plan);
  void OnAsked(Rank rank, Nanos now, Plan* plan);
  void JudgeBlocked(Rank cause, Nanos now, Plan* plan);
  void EndDeadlock(Plan* plan);
  std::string WhoWaitsForWhat();

  absl::StatusOr<TensorId> DefineSpec(const SpecPtr& spec, Plan* plan);
  bool MakeRoom(Plan* plan);
  void ForgetColumn(Column& column, Plan* plan);
  void Touch(Column& column);

  bool Covered(const Instance& instance) const;
  void Complete(Instance* instance, Plan* plan);
  void AddSet(Instance* instance, Plan* plan);
  void RemoveSet(Instance* instance, Plan* plan);
  bool HasPending(SetId set);
  void ForgetTensorsOf(SetId set, Plan* plan);
  void OnJoin(Rank rank, Instance* join, Plan* plan);
  void OnJoinFailed(const ProcessSet& set, Plan* plan);
  absl::Status WhyTooLate(const TensorSpec& spec, int slot, uint32_t sequence) const;
  void RejectIfSomebodyLeft(Instance* instance, Plan* plan);
  static PlannedData DataOf(const Instance& instance, int members);
  void Enqueue(Instance* instance, Plan* plan);
  void NoteDone(SetId lane, uint16_t low_bits, Plan* plan);
  void Close(SetState& state, Plan* plan);
  void RejectInstance(Instance* instance, absl::Status status, Plan* plan);
  void RejectOn(std::vector<Rank> ranks, const SpecPtr& spec, uint32_t sequence,
                absl::Status status, Plan* plan);

  absl::Status CheckJoined(const Instance& instance) const;
  absl::Status Fault(const Instance& instance) const;
  static bool ScalesAlike(const Instance& instance);
  absl::Status Disagreement(const Instance& instance) const;
  absl::Status CheckPlannedDims(const Instance& instance, int members) const;
  absl::Status CheckGathered(const Instance& instance, const Ordered& ordered) const;
  Participants ParticipantsOf(const Instance& instance) const;
  std::string WhoText(const Instance& instance, Nanos now) const;
  std::vector<Rank> RanksOf(const Instance& instance, bool present) const;

  const CoordinatorOptions options_;
  ProcessSetTable sets_;
  TensorTable table_;
  PendingTable pending_;
  std::vector<Column> columns_;       // by id slot + 1; [0] is the head of the list by last use
  std::vector<SetState> set_states_;  // by set
  std::vector<RankState> ranks_;
  RankSet left_;
  std::vector<Rank> left_in_order_;  // the same
  BlockedRanks blocked_;
  Nanos stuck_since_ = kForever;  // since when all are blocked and nothing can complete
  Rank stuck_by_ = 0;             // who was the last to come
  std::string stuck_reported_;    // what they waited for, in the latest report
  Nanos next_look_ = kForever;    // nothing can be overdue before this time
  uint8_t agreed_ = 0;            // what has been wished for
};

}  // namespace rueda
