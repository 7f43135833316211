// PURE
#include "controller/negotiation/aggregator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controller/negotiation/participants.h"

namespace rueda {

Aggregator::Aggregator(std::vector<Rank> local_ranks, int world_size, Nanos patience,
                       absl::Span<const std::vector<Rank>> process_sets)
    : local_ranks_(std::move(local_ranks)),
      patience_(patience),
      sets_(world_size, process_sets),
      joined_(sets_.end(), false) {}

int Aggregator::LocalIndex(Rank rank) const {
  const auto it = std::lower_bound(local_ranks_.begin(), local_ranks_.end(), rank);
  return it != local_ranks_.end() && *it == rank ? static_cast<int>(it - local_ranks_.begin()) : -1;
}

int Aggregator::LocalParticipants(const TensorSpec& spec) const {
  const Participants participants(spec, *sets_.Find(spec.set));
  return static_cast<int>(std::count_if(local_ranks_.begin(), local_ranks_.end(), [&](Rank rank) {
    return participants.IndexOf(rank) >= 0;
  }));
}

absl::Status Aggregator::Step(const ControlEvent& event, Nanos now,
                              std::vector<ControlEvent>* out) {
  if (LocalIndex(event.rank) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("an event of rank ", event.rank, " in the log of another host"));
  }
  if (std::holds_alternative<Announced>(event.what)) return OnAnnounced(event, now, out);
  if (std::holds_alternative<Waited>(event.what)) return OnWaited(event, out);
  if (std::holds_alternative<Leave>(event.what)) OnLeave(event.rank, out);
  out->push_back(event);
  return absl::OkStatus();
}

absl::Status Aggregator::OnAnnounced(const ControlEvent& event, Nanos now,
                                     std::vector<ControlEvent>* out) {
  const Announcement& announcement = std::get<Announced>(event.what).announcement;
  const SpecPtr spec =
      announcement.id == kNoTensor ? announcement.spec : table_.GetOrRecall(announcement.id);
  const ProcessSet* set = spec == nullptr ? nullptr : sets_.Find(spec->set);
  if (set == nullptr || !set->Contains(event.rank) ||
      Participants(*spec, *set).IndexOf(event.rank) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", event.rank, " announced what it can't: ",
                     spec == nullptr ? absl::StrCat("id ", announcement.id) : SpecLabel(*spec, 0)));
  }
  if (spec->signature.kind == OpKind::kJoin) OnJoin(spec->set, out);
  if (!HoldsBack(spec->set)) {
    out->push_back(event);
    return absl::OkStatus();
  }
  const int slot = pending_.SlotFor(*spec);
  RUEDA_ASSIGN_OR_RETURN(
      Instance * instance,
      pending_.Announce(slot, LocalIndex(event.rank), static_cast<int>(local_ranks_.size()), spec,
                        announcement.extras, announcement.waited, now));
  if (instance == nullptr) {  // the others gave up on it; the root says so
    out->push_back(event);
    return absl::OkStatus();
  }
  Held& held = held_[instance];
  if (held.pending_slot < 0) {
    held.pending_slot = slot;
    next_look_ = std::min(next_look_, DeadlineAfter(now, patience_));
  } else {
    pending_.Release(slot);
  }
  if (held.passed_on) {
    out->push_back(event);
  } else {
    held.events.emplace(arrivals_++, event);
  }
  if (instance->complete(LocalParticipants(*spec))) {
    PassOn(&held.events, out);
    Finish(instance);
  }
  return absl::OkStatus();
}

// Whether all ranks of this host still announce what concerns them.
bool Aggregator::HoldsBack(SetId set) const {
  return !joined_[set] && std::none_of(left_.begin(), left_.end(),
                                       [&](Rank rank) { return sets_.Find(set)->Contains(rank); });
}

void Aggregator::OnJoin(SetId set, std::vector<ControlEvent>* out) {
  if (joined_[set]) return;
  joined_[set] = true;
  PassOnAllOf(set, out);
}

void Aggregator::OnLeave(Rank rank, std::vector<ControlEvent>* out) {
  left_.push_back(rank);
  for (SetId set = 0; set < sets_.end(); ++set) {
    if (sets_.Find(set) != nullptr && sets_.Find(set)->Contains(rank)) PassOnAllOf(set, out);
  }
}

// What is held of the set can't become complete here any more: the root decides.
void Aggregator::PassOnAllOf(SetId set, std::vector<ControlEvent>* out) {
  HeldEvents events;
  pending_.ForEach([&](Instance& instance) {
    if (instance.spec->set != set) return;
    events.merge(held_[&instance].events);
    Finish(&instance);
  });
  PassOn(&events, out);
}

// In the order of arrival: the root counts a rank's unnamed operations.
void Aggregator::PassOn(HeldEvents* events, std::vector<ControlEvent>* out) {
  for (auto& [arrival, event] : *events) out->push_back(std::move(event));
  events->clear();
}

absl::Status Aggregator::OnWaited(const ControlEvent& event, std::vector<ControlEvent>* out) {
  const Waited& waited = std::get<Waited>(event.what);
  if (const SpecPtr spec = table_.GetOrRecall(waited.id); spec != nullptr) {
    const int slot = pending_.SlotFor(*spec);
    Instance* instance = pending_.Find(slot, waited.sequence);
    pending_.Release(slot);
    if (instance != nullptr && !held_[instance].passed_on) {
      for (auto& [arrival, held] : held_[instance].events) {
        if (held.rank != event.rank) continue;
        std::get<Announced>(held.what).announcement.waited = true;
        return absl::OkStatus();
      }
    }
  }
  out->push_back(event);
  return absl::OkStatus();
}

absl::Status Aggregator::Apply(const PlanItem& item) {
  if (const auto* define = std::get_if<Define>(&item)) {
    return table_.Define(define->id, define->spec);
  }
  if (const auto* forget = std::get_if<Forget>(&item)) {
    table_.Forget(forget->id);
  } else if (const auto* added = std::get_if<SetAdded>(&item)) {
    RUEDA_RETURN_IF_ERROR(sets_.Add(added->ranks).status());
    joined_.resize(static_cast<size_t>(sets_.end()), false);
  } else if (const auto* removed = std::get_if<SetRemoved>(&item)) {
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
  }
  return absl::OkStatus();
}

// What the leader had passed on before it was complete here ends now for those whom it concerns. On
// the other ranks, which pass on nothing, it is held still.
void Aggregator::OnReject(const Reject& reject) {
  const int slot = pending_.SlotFor(*reject.spec);
  Instance* instance = pending_.Find(slot, static_cast<uint16_t>(reject.sequence));
  if (instance != nullptr) {
    for (const Rank rank : reject.ranks) {
      if (const int index = LocalIndex(rank); index >= 0) instance->who.Erase(index);
    }
    std::erase_if(held_[instance].events, [&](const auto& held) {
      return !instance->who.Contains(LocalIndex(held.second.rank));
    });
    if (instance->who.count() == 0) Finish(instance);
  }
  pending_.Release(slot);
}

Nanos Aggregator::Look(Nanos now, std::vector<ControlEvent>* out) {
  if (now < next_look_) return next_look_;
  Nanos next = kForever;
  HeldEvents overdue;
  pending_.ForEach([&](Instance& instance) {
    Held& held = held_[&instance];
    if (held.passed_on) return;
    const Nanos due = DeadlineAfter(instance.since, patience_);
    if (now < due) {
      next = std::min(next, due);
      return;
    }
    overdue.merge(held.events);
    held.passed_on = true;
  });
  PassOn(&overdue, out);
  next_look_ = next;
  return next;
}

void Aggregator::Finish(Instance* instance) {
  const auto it = held_.find(instance);
  const int slot = it->second.pending_slot;
  held_.erase(it);
  pending_.Remove(instance);
  pending_.Release(slot);
}

}  // namespace rueda
