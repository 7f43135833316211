// PURE
#include "controller/negotiation/coordinator.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/seconds.h"

namespace rueda {
namespace {

// How long all ranks must have been blocked before that is reported: the plan that goes on with
// something may be under way to one of them.
constexpr Nanos kStuckAfter = kSecond / 10;

int64_t BytesOf(const Signature& signature) {
  int64_t bytes = 0;
  for (const PartSignature& part : signature.parts) {
    bytes += part.shape.elements() * static_cast<int64_t>(DTypeSize(part.dtype));
  }
  return bytes;
}

absl::Status LeftInstead(const TensorSpec& spec, uint32_t sequence, Rank rank) {
  return absl::FailedPreconditionError(absl::StrCat(SpecLabel(spec, sequence),
                                                    " can't complete: rank ", rank,
                                                    " has shut down without submitting it"));
}

// Whether the plan says for each pair of members how many rows of an alltoall go from one to the
// other: one of them gives unequal parts.
bool SaysEachPair(const Instance& instance, int members) {
  return instance.spec->signature.kind == OpKind::kAlltoall && members > 1 &&
         std::any_of(instance.extras.begin(), instance.extras.end(),
                     [](const CallExtras& extras) { return extras.first_dims.size() > 1; });
}

// Those who have joined and did not announce it bring no rows.
void BringNoRows(Instance* instance, int members) {
  const Signature& signature = instance->spec->signature;
  if (TraitsOf(signature.kind).gives != Who::kAll || instance->complete(members)) return;
  const size_t dims = signature.kind == OpKind::kAlltoall ? 1 : signature.parts.size();
  for (int member = 0; TraitsOf(signature.kind).ragged && member < members; ++member) {
    if (!instance->who.Contains(member)) instance->extras[member].first_dims.assign(dims, 0);
  }
}

// The rows along the first dimension that every participant brings or gets, as the plan has them:
// see Ordered.
std::vector<int64_t> PlannedDims(const Instance& instance, int members) {
  std::vector<int64_t> dims;
  const OpKind kind = instance.spec->signature.kind;
  // Equal parts: one number stands for all.
  const auto by_member = [&](const CallExtras& extras) {
    if (extras.first_dims.size() == 1) {
      dims.insert(dims.end(), members, extras.first_dims[0] / members);
    } else {
      dims.insert(dims.end(), extras.first_dims.begin(), extras.first_dims.end());
    }
  };
  if (kind == OpKind::kScatter) {
    for (const CallExtras& extras : instance.extras) {
      if (!extras.first_dims.empty()) by_member(extras);  // the root's
    }
  } else if (SaysEachPair(instance, members)) {
    for (const CallExtras& extras : instance.extras) by_member(extras);
  } else if (TraitsOf(kind).ragged) {
    for (const CallExtras& extras : instance.extras) {
      dims.insert(dims.end(), extras.first_dims.begin(), extras.first_dims.end());
    }
  }
  return dims;
}

}  // namespace

Coordinator::Coordinator(const CoordinatorOptions& options)
    : options_(options),
      sets_(options.world_size, options.process_sets),
      columns_(1),
      set_states_(sets_.end()),
      ranks_(options.world_size),
      left_(options.world_size),
      blocked_(options.world_size) {
  for (SetId id = 0; id < sets_.end(); ++id) {
    set_states_[id].joined = RankSet(sets_.Find(id)->size());
  }
}

Participants Coordinator::ParticipantsOf(const Instance& instance) const {
  return Participants(*instance.spec, *sets_.Find(instance.spec->set));
}

absl::Status Coordinator::Step(const ControlEvent& event, Nanos now, Plan* plan) {
  const Rank rank = event.rank;
  if (rank < 0 || rank >= options_.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("an event from rank ", rank));
  }
  const absl::Span<const Rank> ranks = event.SpokenFor(options_.leaders.get());
  if (ranks.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " speaks for others"));
  }
  absl::Status status;
  if (const auto* announced = std::get_if<Announced>(&event.what)) {
    status = OnAnnounced(ranks, announced->announcement, now, plan);
  } else if (const auto* waited = std::get_if<Waited>(&event.what)) {
    status = OnWaited(ranks, *waited, plan);
  } else if (const auto* done = std::get_if<Done>(&event.what)) {
    status = OnDone(rank, *done, plan);
  } else if (std::holds_alternative<Leave>(event.what)) {
    OnLeave(rank, plan);
    JudgeBlocked(rank, now, plan);
  } else if (const auto* blocked = std::get_if<Blocked>(&event.what)) {
    if (!left_.Contains(rank)) blocked_.Set(rank, *blocked);
    JudgeBlocked(rank, now, plan);
  } else if (std::holds_alternative<Asked>(event.what)) {
    OnAsked(rank, now, plan);
  } else if (const auto* wished = std::get_if<Wished>(&event.what)) {
    if ((wished->bits & ~agreed_) != 0) plan->push_back(Agreed{agreed_ |= wished->bits});
  } else {
    OnExpire(std::get<Expire>(event.what), plan);
  }
  return status;
}

// Announcements -------------------------------------------------------------------------------

// Inlined, as there is mostly one: a call more is 7 % of all the instructions.
[[gnu::always_inline]] inline absl::Status Coordinator::Announce(Rank rank, int member,
                                                                 const Subject& subject,
                                                                 const Announcement& announcement,
                                                                 Nanos now, Plan* plan) {
  const auto& [id, slot, participants, spec] = subject;
  const bool waited = announcement.waited && !announcement.partly;
  RUEDA_ASSIGN_OR_RETURN(Instance * instance, pending_.Announce(slot, member, participants, spec,
                                                                announcement.extras, waited, now));
  RankState& state = ranks_[rank];
  state.last = id;
  state.last_at = now;
  if (instance == nullptr) {
    const uint32_t sequence = pending_.LastSequence(slot, member);
    RejectOn({rank}, spec, sequence, WhyTooLate(*spec, slot, sequence), plan);
    return absl::OkStatus();
  }
  state.last_sequence = instance->sequence;
  if (instance->who.count() == 1) {
    instance->id = id;
    instance->first = rank;
    next_look_ = std::min(next_look_, DeadlineAfter(now, options_.first_stall()));
  }
  instance->waited |= announcement.waited;
  if (spec->signature.kind == OpKind::kJoin) {
    OnJoin(rank, instance, plan);
  } else if (Covered(*instance)) {
    Complete(instance, plan);
  } else {
    RejectIfSomebodyLeft(instance, plan);
  }
  return absl::OkStatus();
}

absl::Status Coordinator::OnAnnounced(absl::Span<const Rank> ranks,
                                      const Announcement& announcement, Nanos now, Plan* plan) {
  // An id that was forgotten while the announcement was under way stands for its spec still.
  const SpecPtr* const live = table_.Get(announcement.id);
  const SpecPtr spec = live != nullptr                ? *live
                       : announcement.id == kNoTensor ? announcement.spec
                                                      : table_.GetOrRecall(announcement.id);
  if (spec == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", ranks[0], " announced an unknown tensor, id ", announcement.id));
  }
  const ProcessSet* set = sets_.Find(spec->set);
  if (set == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", ranks[0], " announced ", SpecLabel(*spec), ", which does not exist"));
  }
  const Participants participants(*spec, *set);
  std::optional<Subject> subject;
  for (const Rank rank : ranks) {
    const int member = participants.IndexOf(rank);
    if (member < 0 || !set->Contains(rank)) continue;
    if (!subject.has_value()) {
      RUEDA_RETURN_IF_ERROR(CheckExtras(*spec, announcement.extras, set->size(), rank));
      TensorId id = live != nullptr ? announcement.id : table_.Find(*spec);
      if (id == kNoTensor) {
        RUEDA_ASSIGN_OR_RETURN(id, DefineSpec(spec, plan));
      }
      Column& column = columns_[TensorTable::SlotOf(id) + 1];
      Touch(column);
      subject.emplace(Subject{id, column.pending_slot, participants.size(), spec});
    }
    RUEDA_RETURN_IF_ERROR(Announce(rank, member, *subject, announcement, now, plan));
  }
  if (!subject.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", ranks[0], " announced ",
                                                   SpecLabel(*spec), ", in which it has no part"));
  }
  NoteDone(spec->set, announcement.done, plan);
  return absl::OkStatus();
}

// Whether everybody has announced it but for those who have joined.
bool Coordinator::Covered(const Instance& instance) const {
  const Participants participants = ParticipantsOf(instance);
  if (instance.complete(participants.size())) return true;
  const RankSet& joined = set_states_[instance.spec->set].joined;
  if (joined.count() == 0) return false;
  const ProcessSet& set = *sets_.Find(instance.spec->set);
  for (int member = 0; member < participants.size(); ++member) {
    if (!instance.who.Contains(member) &&
        !joined.Contains(set.IndexOf(participants.rank(member)))) {
      return false;
    }
  }
  return true;
}

// Of an unnamed operation that the others have given up. Where that was because a rank had left,
// the last to submit it hear the same as the first.
absl::Status Coordinator::WhyTooLate(const TensorSpec& spec, int slot, uint32_t sequence) const {
  const Participants participants(spec, *sets_.Find(spec.set));
  for (const Rank rank : left_in_order_) {
    const int member = participants.IndexOf(rank);
    if (member >= 0 && !pending_.HasAnnounced(slot, member, sequence)) {
      return LeftInstead(spec, sequence, rank);
    }
  }
  return absl::FailedPreconditionError(absl::StrCat(
      SpecLabel(spec, sequence), " came too late: it failed on the other ranks before"));
}

// Names who left first, so that all who submit it hear the same: those who were told may leave too
// before the last one comes.
void Coordinator::RejectIfSomebodyLeft(Instance* instance, Plan* plan) {
  if (set_states_[instance->spec->set].left == 0) return;
  const Participants participants = ParticipantsOf(*instance);
  for (const Rank rank : left_in_order_) {
    const int member = participants.IndexOf(rank);
    if (member < 0 || instance->who.Contains(member)) continue;
    RejectInstance(instance, LeftInstead(*instance->spec, instance->sequence, rank), plan);
    return;
  }
}

// From now on the rank is not waited for.
void Coordinator::OnJoin(Rank rank, Instance* join, Plan* plan) {
  const SetId set = join->spec->set;
  SetState& state = set_states_[set];
  state.joined.Insert(sets_.Find(set)->IndexOf(rank));
  // Who takes part is the same for all of a batch.
  if (!state.open.batch.empty()) Close(state, plan);
  pending_.ForEach([&](Instance& instance) {
    const bool waits = instance.spec->set == set && &instance != join;
    if (waits && Covered(instance)) Complete(&instance, plan);
  });
  if (!join->complete(sets_.Find(set)->size())) {
    RejectIfSomebodyLeft(join, plan);
    return;
  }
  // Everything that was pending has been completed by this join, or rejected. It is of the time
  // before the join's end.
  if (!state.open.batch.empty()) Close(state, plan);
  plan->push_back(Joined{set, rank, join->sequence});
  pending_.Remove(join);
  state.joined = RankSet(sets_.Find(set)->size());
  pending_.ResetUnnamed(set);
}

absl::StatusOr<TensorId> Coordinator::DefineSpec(const SpecPtr& spec, Plan* plan) {
  if (table_.size() >= options_.tensor_ids_max && !MakeRoom(plan)) {
    return absl::ResourceExhaustedError(absl::StrCat("more than ", options_.tensor_ids_max,
                                                     " different tensors are in flight at once"));
  }
  const TensorId id = table_.NextId();
  RUEDA_RETURN_IF_ERROR(table_.Define(id, spec));
  const uint32_t index = TensorTable::SlotOf(id) + 1;
  if (index >= columns_.size()) columns_.resize(index + 1);
  Column& column = columns_[index];
  const Signature& signature = spec->signature;
  column.id = id;
  column.pending_slot = pending_.SlotFor(*spec);
  column.bytes = BytesOf(signature);
  column.fusion_key = {signature.traits(),
                       signature.parts.empty() ? DType::kUInt8 : signature.parts[0].dtype};
  column.fusable = TraitsOf(signature.kind).fuses && !signature.is_group();
  column.newer = column.older = index;  // alone, until Touch links it
  plan->push_back(Define{id, spec});
  return id;
}

// Forgets the tensor that was used least recently and is not pending.
bool Coordinator::MakeRoom(Plan* plan) {
  for (uint32_t index = columns_[0].newer; index != 0; index = columns_[index].newer) {
    Column& column = columns_[index];
    if (pending_.HasPending(column.pending_slot)) continue;
    const bool open =
        std::any_of(set_states_.begin(), set_states_.end(), [&](const SetState& state) {
          return std::any_of(state.open.batch.begin(), state.open.batch.end(),
                             [&](const Ordered& ordered) { return ordered.id == column.id; });
        });
    if (open) continue;
    ForgetColumn(column, plan);
    return true;
  }
  return false;
}

void Coordinator::ForgetColumn(Column& column, Plan* plan) {
  columns_[column.older].newer = column.newer;
  columns_[column.newer].older = column.older;
  pending_.Release(column.pending_slot);
  table_.Forget(column.id);
  plan->push_back(Forget{column.id});
  column = Column();
}

// Moves the column to the young end. columns_[0].newer is the oldest, columns_[0].older the
// youngest.
void Coordinator::Touch(Column& column) {
  const uint32_t index = static_cast<uint32_t>(&column - columns_.data());
  if (columns_[0].older == index) return;
  if (column.newer != index) {
    columns_[column.older].newer = column.newer;
    columns_[column.newer].older = column.older;
  }
  column.older = columns_[0].older;
  column.newer = 0;
  columns_[column.older].newer = index;
  columns_[0].older = index;
}

// Waiting, completing, leaving ----------------------------------------------------------------

absl::Status Coordinator::OnWaited(absl::Span<const Rank> ranks, const Waited& waited, Plan* plan) {
  const SpecPtr* const live = table_.Get(waited.id);
  const SpecPtr spec_ptr = live != nullptr ? *live : table_.GetOrRecall(waited.id);
  const TensorId id = live != nullptr       ? waited.id
                      : spec_ptr == nullptr ? kNoTensor
                                            : table_.Find(*spec_ptr);
  if (id == kNoTensor) return absl::OkStatus();  // ended, and forgotten since
  const TensorSpec& spec = *spec_ptr;
  const Participants participants(spec, *sets_.Find(spec.set));
  Instance* const instance =
      pending_.Find(columns_[TensorTable::SlotOf(id) + 1].pending_slot, waited.sequence);
  bool any = false;
  bool is_pending = false;
  for (const Rank rank : ranks) {
    const int member = participants.IndexOf(rank);
    if (member < 0) continue;
    any = true;
    if (instance == nullptr || !instance->who.Contains(member)) continue;
    is_pending = true;
    instance->waited = true;
    instance->waiters.Insert(member);
  }
  if (!any) return absl::InvalidArgumentError("a wait from outside the process set");
  if (is_pending) return absl::OkStatus();
  SetState& state = set_states_[spec.set];
  for (const Ordered& ordered : state.open.batch) {
    if (ordered.id == id && static_cast<uint16_t>(ordered.sequence) == waited.sequence) {
      Close(state, plan);
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status Coordinator::OnDone(Rank rank, const Done& event, Plan* plan) {
  const ProcessSet* set = sets_.Find(event.lane);
  if (set == nullptr || !set->Contains(rank)) {
    return absl::InvalidArgumentError("a completion report from outside the process set");
  }
  NoteDone(event.lane, event.count, plan);
  return absl::OkStatus();
}

void Coordinator::NoteDone(SetId lane_id, uint16_t low_bits, Plan* plan) {
  SetState& state = set_states_[lane_id];
  // A member is fewer than 2^15 batches behind the order, since it has fewer operations in flight.
  static_assert(kSubmissionsMax <= (1 << 15));
  const uint64_t done =
      state.ordered - static_cast<uint16_t>(static_cast<uint16_t>(state.ordered) - low_bits);
  state.done = std::max(state.done, done);
  if (state.done == state.ordered && !state.open.batch.empty()) Close(state, plan);
}

void Coordinator::OnLeave(Rank rank, Plan* plan) {
  if (!left_.Insert(rank)) return;
  left_in_order_.push_back(rank);
  blocked_.Remove(rank);
  for (SetId id = 0; id < sets_.end(); ++id) {
    if (sets_.Find(id) != nullptr && sets_.Find(id)->Contains(rank)) ++set_states_[id].left;
  }
  pending_.ForEach([&](Instance& instance) { RejectIfSomebodyLeft(&instance, plan); });
  plan->push_back(Left{rank});
}

void Coordinator::OnExpire(const Expire& event, Plan* plan) {
  if (table_.Get(event.id) == nullptr) return;
  Instance* instance =
      pending_.Find(columns_[TensorTable::SlotOf(event.id) + 1].pending_slot, event.sequence);
  if (instance == nullptr) return;
  RejectInstance(
      instance,
      absl::CancelledError(absl::StrCat(
          SpecLabel(*instance->spec, instance->sequence), " stalled for longer than ",
          Seconds(options_.stall_timeout), ": submitted by ", RanksText(RanksOf(*instance, true)),
          "; missing: ", RanksText(RanksOf(*instance, false)))),
      plan);
}

// Completion ----------------------------------------------------------------------------------

void Coordinator::Complete(Instance* instance, Plan* plan) {
  absl::Status status = CheckJoined(*instance);
  if (status.ok()) status = Fault(*instance);
  if (status.ok()) status = Disagreement(*instance);
  if (!status.ok()) {
    RejectInstance(instance, std::move(status), plan);
  } else if (instance->spec->signature.kind == OpKind::kAddProcessSet) {
    AddSet(instance, plan);
  } else if (instance->spec->signature.kind == OpKind::kRemoveProcessSet) {
    RemoveSet(instance, plan);
  } else {
    Enqueue(instance, plan);
  }
}

void Coordinator::AddSet(Instance* instance, Plan* plan) {
  const std::vector<Rank>& ranks = instance->spec->signature.ranks;
  absl::StatusOr<SetId> id = sets_.Add(ranks);
  if (!id.ok()) {
    RejectInstance(instance, id.status(), plan);
    return;
  }
  if (static_cast<size_t>(*id) == set_states_.size()) set_states_.emplace_back();
  SetState& state = set_states_[*id];
  state = SetState();
  state.joined = RankSet(static_cast<int>(ranks.size()));
  state.left = static_cast<int>(
      std::count_if(ranks.begin(), ranks.end(), [&](Rank r) { return left_.Contains(r); }));
  plan->push_back(SetAdded{*id, ranks, instance->sequence});
  pending_.Remove(instance);
}

void Coordinator::RemoveSet(Instance* instance, Plan* plan) {
  const std::vector<Rank>& ranks = instance->spec->signature.ranks;
  const ProcessSet* set = sets_.Find(ranks);
  absl::Status status;
  if (set == nullptr || set->id == kWorldSet) {
    status = absl::NotFoundError(
        absl::StrCat("there is no process set {", absl::StrJoin(ranks, ", "), "} to remove"));
  } else {
    for (size_t member = 0; member < instance->extras.size(); ++member) {
      const int64_t in_flight = instance->extras[member].first_dims[0];
      if (in_flight == 0) continue;
      status = absl::FailedPreconditionError(
          absl::StrCat("process set ", set->id, " can't be removed: rank ", member, " has ",
                       in_flight, " operations in flight on it; wait for them first"));
      break;
    }
    // Somebody has said otherwise, and counted wrongly.
    if (status.ok() && HasPending(set->id)) {
      status = absl::FailedPreconditionError(absl::StrCat(
          "process set ", set->id, " can't be removed: an operation on it is pending"));
    }
  }
  if (!status.ok()) {
    RejectInstance(instance, std::move(status), plan);
    return;
  }
  // Nothing is in flight on any rank, so nothing refers to its tensors.
  const SetId id = set->id;
  ForgetTensorsOf(id, plan);
  pending_.ResetUnnamed(id);
  sets_.Remove(id).IgnoreError();
  set_states_[id] = SetState();
  plan->push_back(SetRemoved{id, instance->sequence});
  pending_.Remove(instance);
}

bool Coordinator::HasPending(SetId set) {
  bool found = HasOpenBatch(set);
  pending_.ForEach([&](const Instance& instance) { found |= instance.spec->set == set; });
  return found;
}

void Coordinator::ForgetTensorsOf(SetId set, Plan* plan) {
  for (size_t index = 1; index < columns_.size(); ++index) {
    const SpecPtr* spec = table_.Get(columns_[index].id);
    if (spec != nullptr && (*spec)->set == set) ForgetColumn(columns_[index], plan);
  }
}

// What all members bring, if they have said so and the plan has room for it.
PlannedData Coordinator::DataOf(const Instance& instance, int members) {
  size_t bytes = 0;
  for (const CallExtras& extras : instance.extras) {
    if (extras.data() == nullptr) return nullptr;
    bytes += extras.data()->size();
  }
  if (instance.extras.size() != static_cast<size_t>(members) || bytes > kInlineBytesMax) {
    return nullptr;
  }
  std::vector<std::string> data;
  data.reserve(instance.extras.size());
  for (const CallExtras& extras : instance.extras) data.push_back(*extras.data());
  return std::make_shared<const std::vector<std::string>>(std::move(data));
}

void Coordinator::Enqueue(Instance* instance, Plan* plan) {
  const TensorSpec& spec = *instance->spec;
  const Signature& signature = spec.signature;
  const ProcessSet& set = *sets_.Find(spec.set);
  const TensorId id = instance->id;
  const Column& column = columns_[TensorTable::SlotOf(id) + 1];
  SetState& state = set_states_[spec.set];
  Ordered ordered;
  ordered.id = id;
  ordered.sequence = instance->sequence;
  BringNoRows(instance, set.size());
  absl::Status status = CheckPlannedDims(*instance, set.size());
  if (status.ok()) {
    ordered.first_dims = PlannedDims(*instance, set.size());
    status = CheckGathered(*instance, ordered);
  }
  if (!status.ok()) {
    RejectInstance(instance, std::move(status), plan);
    return;
  }
  PlannedData data = DataOf(*instance, set.size());
  const bool has_data = data != nullptr;
  std::vector<Rank> absent;
  const bool may_miss = state.joined.count() > 0 && signature.peer < 0;
  for (int member = 0; may_miss && member < set.size(); ++member) {
    if (!instance->who.Contains(member)) absent.push_back(set.ranks[member]);
  }
  Scaling scaling;
  if (!instance->extras.empty()) {
    int first = 0;
    while (!instance->who.Contains(first)) ++first;
    scaling = instance->extras[first].scaling;
  }
  if (!state.open.batch.empty() &&
      (has_data || column.fusion_key != state.fusion_key || scaling != state.open.scaling ||
       absent != state.open.absent || column.bytes > options_.bucket_bytes - state.bytes)) {
    Close(state, plan);
  }
  if (state.open.batch.empty()) state.fusion_key = column.fusion_key;
  state.bytes += column.bytes;
  state.open.lane = spec.set;
  state.open.absent = std::move(absent);
  state.open.scaling = scaling;
  if (signature.peer >= 0) {
    state.open.from = signature.root;
    state.open.to = signature.peer;
  }
  state.open.batch.push_back(std::move(ordered));
  state.open.data = std::move(data);
  const bool waited = instance->waited;
  pending_.Remove(instance);
  if (has_data || waited || !column.fusable || state.bytes >= options_.bucket_bytes ||
      state.done == state.ordered) {
    Close(state, plan);
  }
}

void Coordinator::Close(SetState& state, Plan* plan) {
  plan->push_back(std::move(state.open));
  state.open = Order();
  state.bytes = 0;
  ++state.ordered;
}

void Coordinator::RejectInstance(Instance* instance, absl::Status status, Plan* plan) {
  const SpecPtr spec = instance->spec;
  const uint32_t sequence = instance->sequence;
  std::vector<Rank> ranks = RanksOf(*instance, true);
  pending_.Remove(instance);
  if (spec->signature.kind == OpKind::kJoin) OnJoinFailed(*sets_.Find(spec->set), plan);
  RejectOn(std::move(ranks), spec, sequence, std::move(status), plan);
}

// Nobody has joined any more. What goes by number could meet only what those who had joined submit
// next, which is something else.
void Coordinator::OnJoinFailed(const ProcessSet& set, Plan* plan) {
  RankSet joined = std::exchange(set_states_[set.id].joined, RankSet(set.size()));
  pending_.ForEach([&](Instance& instance) {
    if (instance.spec->set != set.id || !instance.spec->unnamed()) return;
    const Participants participants = ParticipantsOf(instance);
    for (int member = 0; member < participants.size(); ++member) {
      const Rank rank = participants.rank(member);
      if (instance.who.Contains(member) || !joined.Contains(set.IndexOf(rank))) continue;
      RejectInstance(&instance,
                     absl::FailedPreconditionError(
                         absl::StrCat(SpecLabel(*instance.spec, instance.sequence),
                                      " can't complete: it went on without rank ", rank,
                                      ", which had joined, and the join has failed")),
                     plan);
      return;
    }
  });
}

void Coordinator::RejectOn(std::vector<Rank> ranks, const SpecPtr& spec, uint32_t sequence,
                           absl::Status status, Plan* plan) {
  if (spec->signature.kind == OpKind::kJoin) {
    // What has ended is in the plan before the join's end, so that members count alike.
    SetState& state = set_states_[spec->set];
    if (!state.open.batch.empty()) Close(state, plan);
    for (const Rank rank : ranks) pending_.CatchUp(*sets_.Find(spec->set), rank);
  }
  plan->push_back(Reject{spec, sequence, std::move(ranks), std::move(status)});
}

// Whether it can go on without those who have joined and did not announce it before.
absl::Status Coordinator::CheckJoined(const Instance& instance) const {
  if (set_states_[instance.spec->set].joined.count() == 0) return absl::OkStatus();
  const Signature& signature = instance.spec->signature;
  const Participants participants = ParticipantsOf(instance);
  std::vector<Rank> missed;
  for (int member = 0; member < participants.size(); ++member) {
    const Rank rank = participants.rank(member);
    if (!instance.who.Contains(member) && !CanMiss(signature, rank)) missed.push_back(rank);
  }
  if (missed.empty()) return absl::OkStatus();
  const char* const why = TraitsOf(signature.kind).has_ranks
                              ? "; process sets can be changed when all ranks have joined"
                          : signature.peer >= 0
                              ? "; it sends and receives nothing until all ranks have joined"
                              : " and can't be the root until all ranks have joined";
  return absl::FailedPreconditionError(
      absl::StrCat(SpecLabel(*instance.spec, instance.sequence), ": ", RanksText(missed),
                   missed.size() == 1 ? " has joined" : " have joined", why));
}

// What ranks have said is wrong with what they give; ranks that say the same, together.
absl::Status Coordinator::Fault(const Instance& instance) const {
  if (instance.extras.empty()) return absl::OkStatus();
  const Participants participants = ParticipantsOf(instance);
  const std::string* fault = nullptr;
  std::vector<Rank> ranks;
  for (int member = 0; member < participants.size(); ++member) {
    const std::string* text = instance.extras[member].fault();
    if (text == nullptr || (fault != nullptr && *text != *fault)) continue;
    fault = text;
    ranks.push_back(participants.rank(member));
  }
  if (fault == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(RanksText(ranks), ": ", *fault));
}

// Whether those who announced it gave the same factors.
bool Coordinator::ScalesAlike(const Instance& instance) {
  const Scaling* first = nullptr;
  for (size_t member = 0; member < instance.extras.size(); ++member) {
    if (!instance.who.Contains(static_cast<int>(member))) continue;
    const Scaling& scaling = instance.extras[member].scaling;
    if (first != nullptr && scaling != *first) return false;
    first = &scaling;
  }
  return true;
}

absl::Status Coordinator::Disagreement(const Instance& instance) const {
  if (!instance.mixed && instance.extras.empty()) return absl::OkStatus();
  const Participants participants = ParticipantsOf(instance);
  if (!instance.mixed && ScalesAlike(instance)) return absl::OkStatus();
  // What each member sent, as people read it; equal texts form a group, in order of lowest rank.
  std::vector<std::pair<std::string, std::vector<Rank>>> groups;
  absl::string_view difference;
  const CallExtras* first_extras = nullptr;
  const Signature* first = nullptr;
  size_t differs_at = SIZE_MAX;
  for (int member = 0; instance.mixed && member < participants.size(); ++member) {
    if (!instance.who.Contains(member)) continue;  // it has joined
    const Signature& signature = instance.specs[member]->signature;
    if (first == nullptr) first = &signature;
    if (signature != *first) {
      differs_at = std::min(differs_at, Signature::FirstDifference(*first, signature));
    }
  }
  if (differs_at == SIZE_MAX) differs_at = 0;
  for (int member = 0; member < participants.size(); ++member) {
    if (!instance.who.Contains(member)) continue;
    const TensorSpec& spec = instance.mixed ? *instance.specs[member] : *instance.spec;
    std::string sent = spec.signature.ToString(differs_at);
    if (!instance.extras.empty()) {
      const CallExtras& extras = instance.extras[member];
      if (first_extras == nullptr) first_extras = &extras;
      if (extras.scaling != first_extras->scaling) difference = "scale factors";
      if (!extras.scaling.none()) absl::StrAppend(&sent, " ", extras.scaling.ToString());
    }
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& entry) { return entry.first == sent; });
    if (group == groups.end()) group = groups.insert(group, {std::move(sent), {}});
    group->second.push_back(participants.rank(member));
  }
  for (int member = 0; instance.mixed && member < participants.size(); ++member) {
    if (!instance.who.Contains(member)) continue;
    difference = Signature::Difference(*first, instance.specs[member]->signature);
    if (!difference.empty()) break;
  }
  if (difference.empty()) return absl::OkStatus();
  std::string text =
      absl::StrCat(instance.spec->unnamed()
                       ? SpecLabel(*instance.spec, instance.sequence)
                       : absl::StrCat("tensor '", instance.spec->name, "'",
                                      instance.spec->set == kWorldSet
                                          ? ""
                                          : absl::StrCat(" of process set ", instance.spec->set)),
                   ": the ranks disagree on the ", difference, ": ");
  for (size_t i = 0; i < groups.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "; ", RanksText(groups[i].second), " sent ",
                    groups[i].first);
  }
  return absl::InvalidArgumentError(text);
}

// Whether the plan has room for the first dimensions, before memory is taken for them.
absl::Status Coordinator::CheckPlannedDims(const Instance& instance, int members) const {
  int64_t count = 0;
  for (const CallExtras& extras : instance.extras) {
    count += static_cast<int64_t>(extras.first_dims.size());
  }
  if (SaysEachPair(instance, members)) count = int64_t{members} * members;
  if (count <= kPlannedDimsMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(SpecLabel(*instance.spec, instance.sequence), ": ", count,
                   " first dimensions are too many for the plan, which has room for ",
                   kPlannedDimsMax, "; use fewer tensors in a group, or equal splits"));
}

// Ragged kinds: what each rank sends has a size that can be counted; what one gets may not.
absl::Status Coordinator::CheckGathered(const Instance& instance, const Ordered& ordered) const {
  const Signature& signature = instance.spec->signature;
  if (!TraitsOf(signature.kind).ragged) return absl::OkStatus();
  const size_t parts = signature.parts.size();
  for (size_t part = 0; part < parts; ++part) {
    // All of a part together: no rank gets more.
    int64_t rows = 0;
    bool overflows = false;
    for (size_t i = part; i < ordered.first_dims.size(); i += parts) {
      overflows |= __builtin_add_overflow(rows, ordered.first_dims[i], &rows);
    }
    std::vector<int64_t> dims = {rows};
    const absl::Span<const int64_t> row = signature.parts[part].shape.dims();
    dims.insert(dims.end(), row.begin(), row.end());
    if (overflows || !Shape::Validate(dims).ok()) {
      return absl::InvalidArgumentError(absl::StrCat(SpecLabel(*instance.spec, instance.sequence),
                                                     ": what the ranks sent is too large to be "
                                                     "counted"));
    }
  }
  return absl::OkStatus();
}

// Lanes, as their ranks see them --------------------------------------------------------------

bool Coordinator::HasOpenBatch(SetId lane) const {
  return !set_states_[lane].open.batch.empty();
}
uint64_t Coordinator::OrderedOn(SetId lane) const {
  return set_states_[lane].ordered;
}
uint64_t Coordinator::DoneOn(SetId lane) const {
  return set_states_[lane].done;
}

// Stalls --------------------------------------------------------------------------------------

std::vector<Rank> Coordinator::RanksOf(const Instance& instance, bool present) const {
  const Participants participants = ParticipantsOf(instance);
  const ProcessSet& set = *sets_.Find(instance.spec->set);
  const RankSet& joined = set_states_[set.id].joined;
  std::vector<Rank> ranks;
  for (int member = 0; member < participants.size(); ++member) {
    if (instance.who.Contains(member) != present) continue;
    const Rank rank = participants.rank(member);
    // Nobody misses those who have joined.
    if (!present && joined.count() > 0 && joined.Contains(set.IndexOf(rank))) continue;
    ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());  // of a send/recv the sender is first
  return ranks;
}

std::string Coordinator::WhoText(const Instance& instance, Nanos now) const {
  std::string text =
      absl::StrCat("submitted by ", RanksText(RanksOf(instance, true)), "; missing: ");
  const std::vector<Rank> missing = RanksOf(instance, false);
  constexpr size_t kShown = 8;
  for (size_t i = 0; i < missing.size() && i < kShown; ++i) {
    const RankState& state = ranks_[missing[i]];
    absl::StrAppend(&text, i == 0 ? "" : ", ", "rank ", missing[i]);
    const SpecPtr* last = table_.Get(state.last);
    if (last == nullptr) {
      absl::StrAppend(&text, " (has submitted nothing)");
    } else {
      absl::StrAppend(&text, " (last submitted ", SpecLabel(**last, state.last_sequence), " ",
                      Seconds(now - state.last_at), " ago",
                      blocked_.is_blocked(missing[i]) ? ", and waits" : "", ")");
    }
  }
  if (missing.size() > kShown) absl::StrAppend(&text, " and ", missing.size() - kShown, " more");
  return text;
}

void Coordinator::OnAsked(Rank rank, Nanos now, Plan* plan) {
  constexpr int kTold = 256;
  int count = 0;
  pending_.ForEach([&](Instance& instance) {
    const int member = ParticipantsOf(instance).IndexOf(rank);
    if (member < 0 || !instance.who.Contains(member) || ++count > kTold) return;
    // The tensors of a group may take megabytes, and one tells as much.
    const Signature& whole = instance.spec->signature;
    Signature signature;
    static_cast<OperationTraits&>(signature) = whole;
    if (!whole.parts.empty()) signature.parts.push_back(whole.parts.front());
    signature.ranks = whole.ranks;
    plan->push_back(Told{rank, MakeSpec(instance.spec->set, instance.spec->name, signature),
                         instance.sequence, WhoText(instance, now)});
  });
}

Nanos Coordinator::CheckDeadlines(Nanos now, std::vector<std::string>* reports,
                                  std::vector<Expire>* expired, Rank speaker) {
  if (now < next_look_) return next_look_;
  Nanos next = kForever;
  pending_.ForEach([&](Instance& instance) {
    if (speaker != kEverybody && instance.first != speaker) return;
    const Nanos age = now - instance.since;
    const TensorId id = instance.id;
    if (options_.stall_timeout > 0) {
      if (age >= options_.stall_timeout) {
        expired->push_back({id, static_cast<uint16_t>(instance.sequence)});
        next = now;  // until it has ended
        return;
      }
      next = std::min(next, DeadlineAfter(instance.since, options_.stall_timeout));
    }
    // First at the warning age, then at 6 times that, then every 30 times.
    const auto due = [&] {
      const int64_t factor = instance.reports == 0   ? 1
                             : instance.reports == 1 ? 6
                                                     : 30 * (instance.reports - 1);
      return factor * options_.stall_warn;
    };
    if (age >= due()) {
      reports->push_back(absl::StrCat(SpecLabel(*instance.spec, instance.sequence),
                                      " has waited for ", Seconds(now - instance.since), ": ",
                                      WhoText(instance, now)));
      while (age >= due()) ++instance.reports;
    }
    next = std::min(next, DeadlineAfter(instance.since, due()));
  });
  if (stuck_since_ != kForever && (speaker == kEverybody || speaker == stuck_by_)) {
    if (now < stuck_since_ + kStuckAfter) {
      next = std::min(next, stuck_since_ + kStuckAfter);
    } else if (std::string what = WhoWaitsForWhat(); what != stuck_reported_) {
      reports->push_back(absl::StrCat(
          "every rank waits, and nothing that was submitted can complete unless "
          "another thread submits more: ",
          what, ". ",
          options_.deadlock_timeout == 0 ? "RUEDA_DEADLOCK_TIMEOUT_S=0: it is never ended"
                                         : absl::StrCat("These operations are ended after ",
                                                        Seconds(options_.deadlock_timeout),
                                                        " of this (RUEDA_DEADLOCK_TIMEOUT_S)")));
      stuck_reported_ = std::move(what);
    }
  }
  next_look_ = next;
  return next;
}

// Deadlocks -----------------------------------------------------------------------------------

void Coordinator::JudgeBlocked(Rank cause, Nanos now, Plan* plan) {
  const bool can_complete =
      std::any_of(set_states_.begin(), set_states_.end(),
                  [](const SetState& state) { return !state.open.batch.empty(); });
  if (!blocked_.all(Blocked::kForMoments) || can_complete || pending_.count() == 0) {
    stuck_since_ = kForever;
    return;
  }
  if (stuck_since_ == kForever) {
    stuck_since_ = now;
    stuck_by_ = cause;
    while (left_.Contains(stuck_by_)) stuck_by_ = (stuck_by_ + 1) % options_.world_size;
    next_look_ = std::min(next_look_, now + kStuckAfter);
  }
  if (blocked_.MustAsk()) plan->push_back(StillBlocked{blocked_.question()});
  if (blocked_.all(Blocked::kStill)) EndDeadlock(plan);
}

// The same operations on all ranks, and what each error says is the same but for the operation.
void Coordinator::EndDeadlock(Plan* plan) {
  const std::string why = absl::StrCat(
      " was ended: for ", Seconds(options_.deadlock_timeout),
      " (RUEDA_DEADLOCK_TIMEOUT_S) every rank has waited, and nothing that was submitted could "
      "complete: ",
      WhoWaitsForWhat());
  // Joins last: what ends with one says so.
  for (const bool joins : {false, true}) {
    pending_.ForEach([&](Instance& instance) {
      if ((instance.spec->signature.kind == OpKind::kJoin) != joins) return;
      absl::Status status =
          absl::CancelledError(absl::StrCat(SpecLabel(*instance.spec, instance.sequence), why));
      RejectInstance(&instance, std::move(status), plan);
    });
  }
  blocked_.Clear();
  stuck_since_ = kForever;
  stuck_reported_.clear();
}

std::string Coordinator::WhoWaitsForWhat() {
  constexpr int kShown = 8;
  std::string text;
  int count = 0;
  pending_.ForEach([&](Instance& instance) {
    if (instance.waiters.count() == 0 || ++count > kShown) return;
    const Participants participants = ParticipantsOf(instance);
    std::vector<Rank> waiting;
    for (int member = 0; member < participants.size(); ++member) {
      if (instance.waiters.Contains(member)) waiting.push_back(participants.rank(member));
    }
    std::sort(waiting.begin(), waiting.end());
    absl::StrAppend(&text, count == 1 ? "" : "; ", RanksText(waiting),
                    waiting.size() == 1 ? " waits for " : " wait for ",
                    SpecLabel(*instance.spec, instance.sequence), ", which ",
                    RanksText(RanksOf(instance, false)), " did not submit");
  });
  if (count > kShown) absl::StrAppend(&text, "; and ", count - kShown, " more");
  return text;
}

}  // namespace rueda
