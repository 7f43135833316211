// PURE
#include "controller/negotiation/aggregator.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "controller/negotiation/participants.h"

namespace rueda {
namespace {

// The later of two counts of which only the low bits are known; they are near each other.
uint16_t LaterDone(uint16_t a, uint16_t b) {
  return static_cast<int16_t>(a - b) > 0 ? a : b;
}

}  // namespace

Aggregator::Aggregator(const LeaderTree& leaders, Rank leader, SpeaksFor speaks_for, Nanos patience,
                       absl::Span<const std::vector<Rank>> process_sets)
    : leaders_(leaders),
      leader_(leader),
      speaks_for_(speaks_for),
      patience_(patience),
      sets_(leaders.world_size(), process_sets),
      participants_(sets_.end(), -1),
      joined_(sets_.end(), false),
      left_from_(sets_.end(), false) {
  const absl::Span<const Rank> below = leaders.RanksOf(leader, speaks_for);
  ranks_.assign(below.begin(), below.end());
  std::sort(ranks_.begin(), ranks_.end());
}

int Aggregator::Index(Rank rank) const {
  const int near = rank - ranks_.front();  // mostly they are neighbours
  const int size = static_cast<int>(ranks_.size());
  if (near >= 0 && near < size && ranks_[near] == rank) return near;
  const auto it = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  return it != ranks_.end() && *it == rank ? static_cast<int>(it - ranks_.begin()) : -1;
}

bool Aggregator::IsBelow(const ControlEvent& event) const {
  if (Index(event.rank) < 0) return false;
  return event.speaks_for == SpeaksFor::kRank ||
         (speaks_for_ == SpeaksFor::kSubtree && leaders_.IsLeader(event.rank) &&
          (event.speaks_for == SpeaksFor::kHost || event.rank != leader_));
}

int Aggregator::CountParticipants(const TensorSpec& spec) {
  const Participants participants(spec, *sets_.Find(spec.set));
  const auto count = [&] {
    return static_cast<int>(std::count_if(
        ranks_.begin(), ranks_.end(), [&](Rank rank) { return participants.IndexOf(rank) >= 0; }));
  };
  if (spec.pair().first >= 0) return count();
  int& known = participants_[spec.set];
  if (known < 0) known = count();
  return known;
}

absl::Status Aggregator::Step(const ControlEvent& event, Nanos now,
                              std::vector<ControlEvent>* out) {
  if (!IsBelow(event)) {
    return absl::InvalidArgumentError(
        absl::StrCat("an event of rank ", event.rank, " where it has no voice"));
  }
  if (std::holds_alternative<Announced>(event.what)) return OnAnnounced(event, now, out);
  if (std::holds_alternative<Waited>(event.what)) return OnWaited(event, out);
  if (std::holds_alternative<Leave>(event.what)) OnLeave(event.rank, out);
  // Rank 0 judges, or is asked, so it must know all.
  if (std::holds_alternative<Blocked>(event.what) || std::holds_alternative<Asked>(event.what)) {
    next_look_ = PassOnDue(kForever, out);
  }
  out->push_back(event);
  return absl::OkStatus();
}

absl::Status Aggregator::OnAnnounced(const ControlEvent& event, Nanos now,
                                     std::vector<ControlEvent>* out) {
  const Announcement& announcement = std::get<Announced>(event.what).announcement;
  const SpecPtr spec =
      announcement.id == kNoTensor ? announcement.spec : table_.GetOrRecall(announcement.id);
  const ProcessSet* set = spec == nullptr ? nullptr : sets_.Find(spec->set);
  const auto bad = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", event.rank, " announced what it can't: ",
                     spec == nullptr ? absl::StrCat("id ", announcement.id) : SpecLabel(*spec)));
  };
  if (set == nullptr || (event.speaks_for == SpeaksFor::kRank && !set->Contains(event.rank))) {
    return bad();
  }
  if (spec->signature.kind == OpKind::kJoin) OnJoin(spec->set, out);
  if (!HoldsBack(spec->set)) {
    out->push_back(event);
    return absl::OkStatus();
  }
  const bool has_slot = table_.Get(announcement.id) != nullptr;
  const int slot =
      has_slot ? slots_[TensorTable::SlotOf(announcement.id)] : pending_.SlotFor(*spec);
  const absl::Cleanup release = [&] {
    if (!has_slot) pending_.Release(slot);
  };
  const Participants participants(*spec, *set);
  Instance* instance = nullptr;
  bool any = false;
  for (const Rank rank : event.SpokenFor(&leaders_)) {
    if (participants.IndexOf(rank) < 0) continue;
    any = true;
    RUEDA_ASSIGN_OR_RETURN(
        Instance * found,
        pending_.Announce(slot, Index(rank), static_cast<int>(ranks_.size()), spec,
                          announcement.extras, announcement.waited && !announcement.partly, now));
    if (found == nullptr) {  // the others gave up on it; rank 0 says so
      out->push_back({rank, event.what});
      continue;
    }
    Claim(*found, slot, now);
    if (instance != nullptr && found != instance) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", event.rank, " announced ",
                                                     SpecLabel(*spec),
                                                     " for ranks that are not at the same one"));
    }
    instance = found;
  }
  if (!any) return bad();
  if (instance == nullptr) return absl::OkStatus();
  instance->waited |= announcement.waited;
  Column& column = ColumnOf(*instance);
  if (column.state == State::kHeld) {
    column.held.push_back({arrivals_++, event.rank, event.speaks_for, announcement.waited,
                           announcement.partly, announcement.done, announcement.id,
                           announcement.spec});
  } else {
    out->push_back(event);
  }
  if (!instance->complete(CountParticipants(*spec))) return absl::OkStatus();
  if (column.state == State::kHeld) {
    Speak(instance, out);
  } else {
    Finish(instance);
  }
  return absl::OkStatus();
}

// Gives a new instance its column, and keeps its slot.
void Aggregator::Claim(const Instance& instance, int slot, Nanos now) {
  if (static_cast<size_t>(instance.record) >= columns_.size()) columns_.resize(instance.record + 1);
  Column& column = ColumnOf(instance);
  if (column.slot >= 0) return;
  column.slot = slot;
  pending_.Retain(slot);
  next_look_ = std::min(next_look_, DeadlineAfter(now, patience_));
}

// All below have announced it.
void Aggregator::Speak(Instance* instance, std::vector<ControlEvent>* out) {
  Column& column = ColumnOf(*instance);
  if (instance->mixed || !instance->extras.empty() || column.held.size() == 1) {
    HeldEvents events;
    TakeHeld(*instance, &events);
    PassOn(&events, out);
    Finish(instance);
    return;
  }
  Announcement together;
  together.done = column.held.front().done;
  for (Held& held : column.held) {
    if (held.id != kNoTensor) together.id = held.id;
    together.done = LaterDone(together.done, held.done);
  }
  if (together.id == kNoTensor) together.spec = std::move(column.held.front().spec);
  together.waited = instance->waited;
  together.partly = instance->waited && instance->waiters.count() < instance->who.count();
  column.held.clear();
  column.state = State::kSpoken;
  column.waits_kept = together.partly;
  out->push_back({leader_, Announced{std::move(together)}, speaks_for_});
}

void Aggregator::TakeHeld(const Instance& instance, HeldEvents* events) {
  for (Held& held : ColumnOf(instance).held) {
    Announcement announcement;
    announcement.id = held.id;
    announcement.spec = std::move(held.spec);
    announcement.waited = held.waited;
    announcement.partly = held.partly;
    announcement.done = held.done;
    if (!instance.extras.empty() && held.speaks_for == SpeaksFor::kRank) {
      announcement.extras = instance.extras[Index(held.rank)];
    }
    events->emplace(held.arrival,
                    ControlEvent{held.rank, Announced{std::move(announcement)}, held.speaks_for});
  }
  ColumnOf(instance).held.clear();
}

// In the order of arrival: rank 0 counts a rank's unnamed operations.
void Aggregator::PassOn(HeldEvents* events, std::vector<ControlEvent>* out) {
  for (auto& [arrival, event] : *events) out->push_back(std::move(event));
}

void Aggregator::OnJoin(SetId set, std::vector<ControlEvent>* out) {
  if (joined_[set]) return;
  joined_[set] = true;
  PassOnAllOf(set, out);
}

void Aggregator::OnLeave(Rank rank, std::vector<ControlEvent>* out) {
  left_.push_back(rank);
  for (SetId set = 0; set < sets_.end(); ++set) {
    if (left_from_[set] || sets_.Find(set) == nullptr || !sets_.Find(set)->Contains(rank)) continue;
    left_from_[set] = true;
    PassOnAllOf(set, out);
  }
}

// What is held of the set can't become complete here any more: rank 0 decides.
void Aggregator::PassOnAllOf(SetId set, std::vector<ControlEvent>* out) {
  HeldEvents events;
  pending_.ForEach([&](Instance& instance) {
    if (instance.spec->set != set || ColumnOf(instance).state == State::kSpoken) return;
    TakeHeld(instance, &events);
    Finish(&instance);
  });
  PassOn(&events, out);
}

absl::Status Aggregator::OnWaited(const ControlEvent& event, std::vector<ControlEvent>* out) {
  const Waited& waited = std::get<Waited>(event.what);
  Instance* instance = nullptr;
  if (const SpecPtr spec = table_.GetOrRecall(waited.id); spec != nullptr) {
    const int slot = pending_.SlotFor(*spec);
    instance = pending_.Find(slot, waited.sequence);
    pending_.Release(slot);
  }
  if (instance == nullptr || ColumnOf(*instance).state == State::kPassedOn) {
    out->push_back(event);
    return absl::OkStatus();
  }
  Column& column = ColumnOf(*instance);
  const bool is_first = !instance->waited;
  bool is_new = false;
  for (const Rank rank : event.SpokenFor(&leaders_)) {
    if (const int index = Index(rank); instance->who.Contains(index)) {
      is_new |= instance->waiters.Insert(index);
    }
  }
  if (column.state == State::kHeld) {
    const auto own = std::find_if(column.held.begin(), column.held.end(), [&](const Held& held) {
      const absl::Span<const Rank> ranks = leaders_.RanksOf(held.rank, held.speaks_for);
      return std::find(ranks.begin(), ranks.end(), event.rank) != ranks.end();
    });
    if (own == column.held.end()) {
      out->push_back(event);
      return absl::OkStatus();
    }
    const bool all = own->rank == event.rank && own->speaks_for == event.speaks_for;
    own->partly = !all && (own->partly || !own->waited);
    own->waited = true;
    instance->waited = true;
    return absl::OkStatus();
  }
  // One that waits is enough to close a batch. That all do is of interest too, and is said once.
  if (!is_new) return absl::OkStatus();
  instance->waited = true;
  if (instance->waiters.count() == instance->who.count()) {
    column.waits_kept = false;
    out->push_back({leader_, waited, speaks_for_});
  } else if (is_first) {
    out->push_back(event);
  } else {
    column.waits_kept = true;
    next_look_ = std::min(next_look_, DeadlineAfter(instance->since, patience_));
  }
  return absl::OkStatus();
}

// Who waits where, when nothing moves: not all in the same operation.
void Aggregator::PassOnWaits(const Instance& instance, std::vector<ControlEvent>* out) {
  const TensorId id = table_.Find(*instance.spec);
  if (id == kNoTensor) return;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!instance.waiters.Contains(static_cast<int>(i))) continue;
    out->push_back({ranks_[i], Waited{id, static_cast<uint16_t>(instance.sequence)}});
  }
}

absl::Status Aggregator::Apply(const PlanItem& item) {
  if (const auto* order = std::get_if<Order>(&item)) {
    OnOrder(*order);
  } else if (const auto* define = std::get_if<Define>(&item)) {
    RUEDA_RETURN_IF_ERROR(table_.Define(define->id, define->spec));
    const uint32_t slot = TensorTable::SlotOf(define->id);
    if (slot >= slots_.size()) slots_.resize(slot + 1, -1);
    slots_[slot] = pending_.SlotFor(*define->spec);
  } else if (const auto* forget = std::get_if<Forget>(&item)) {
    if (table_.Get(forget->id) == nullptr) return absl::OkStatus();
    pending_.Release(slots_[TensorTable::SlotOf(forget->id)]);
    table_.Forget(forget->id);
  } else if (const auto* added = std::get_if<SetAdded>(&item)) {
    End(kWorldSet, OpKind::kAddProcessSet, added->sequence);
    RUEDA_ASSIGN_OR_RETURN(const SetId id, sets_.Add(added->ranks));
    const size_t end = static_cast<size_t>(sets_.end());
    participants_.resize(end);
    joined_.resize(end);
    left_from_.resize(end);
    participants_[id] = -1;
    joined_[id] = false;
    left_from_[id] = std::any_of(left_.begin(), left_.end(),
                                 [&](Rank rank) { return sets_.Find(id)->Contains(rank); });
  } else if (const auto* removed = std::get_if<SetRemoved>(&item)) {
    End(kWorldSet, OpKind::kRemoveProcessSet, removed->sequence);
    pending_.ResetUnnamed(removed->set);
    return sets_.Remove(removed->set);
  } else if (const auto* joined = std::get_if<Joined>(&item)) {
    if (sets_.Find(joined->set) == nullptr) {
      return absl::InvalidArgumentError("the plan says that an unknown process set has joined");
    }
    joined_[joined->set] = false;
    pending_.ResetUnnamed(joined->set);
  } else if (const auto* reject = std::get_if<Reject>(&item)) {
    OnReject(*reject);
  } else if (std::holds_alternative<Told>(item)) {
    tells_all_ = true;
  }
  return absl::OkStatus();
}

void Aggregator::OnOrder(const Order& order) {
  for (const Ordered& ordered : order.batch) {
    if (table_.Get(ordered.id) == nullptr) continue;
    Instance* instance = pending_.Find(slots_[TensorTable::SlotOf(ordered.id)],
                                       static_cast<uint16_t>(ordered.sequence));
    if (instance != nullptr) Finish(instance);
  }
}

void Aggregator::End(SetId set, OpKind kind, uint32_t sequence) {
  const int slot = pending_.UnnamedSlot(set, kind);
  Instance* instance = slot < 0 ? nullptr : pending_.Find(slot, static_cast<uint16_t>(sequence));
  if (instance != nullptr) Finish(instance);
}

// What was passed on ends now for those whom it concerns. On the other ranks of a host, which pass
// on nothing, what the leader has passed on before it was complete is held still.
void Aggregator::OnReject(const Reject& reject) {
  const int slot = pending_.SlotFor(*reject.spec);
  Instance* instance = pending_.Find(slot, static_cast<uint16_t>(reject.sequence));
  if (instance != nullptr) {
    for (const Rank rank : reject.ranks) {
      if (const int index = Index(rank); index >= 0) {
        instance->who.Erase(index);
        instance->waiters.Erase(index);
      }
    }
    std::erase_if(ColumnOf(*instance).held, [&](const Held& held) {
      const absl::Span<const Rank> ranks = leaders_.RanksOf(held.rank, held.speaks_for);
      return std::none_of(ranks.begin(), ranks.end(),
                          [&](Rank rank) { return instance->who.Contains(Index(rank)); });
    });
    if (instance->who.count() == 0) Finish(instance);
  }
  pending_.Release(slot);
}

Nanos Aggregator::CheckDeadlines(Nanos now, std::vector<ControlEvent>* out) {
  if (std::exchange(tells_all_, false)) {
    next_look_ = PassOnDue(kForever, out);
  } else if (now >= next_look_) {
    next_look_ = PassOnDue(now, out);
  }
  return next_look_;
}

// Returns when the next is due.
Nanos Aggregator::PassOnDue(Nanos now, std::vector<ControlEvent>* out) {
  Nanos next = kForever;
  HeldEvents overdue;
  std::vector<ControlEvent> waits;
  pending_.ForEach([&](Instance& instance) {
    Column& column = ColumnOf(instance);
    if (column.state == State::kPassedOn) return;
    if (column.state == State::kSpoken && !column.waits_kept) return;
    const Nanos due = DeadlineAfter(instance.since, patience_);
    if (now < due) {
      next = std::min(next, due);
    } else if (column.state == State::kHeld) {
      TakeHeld(instance, &overdue);
      column.state = State::kPassedOn;
    } else {
      PassOnWaits(instance, &waits);
      column.waits_kept = false;
    }
  });
  PassOn(&overdue, out);
  std::move(waits.begin(), waits.end(), std::back_inserter(*out));
  return next;
}

void Aggregator::Finish(Instance* instance) {
  Column& column = ColumnOf(*instance);
  const int slot = column.slot;
  column.held.clear();
  column.state = State::kHeld;
  column.slot = -1;
  column.waits_kept = false;
  pending_.Remove(instance);
  pending_.Release(slot);
}

}  // namespace rueda
