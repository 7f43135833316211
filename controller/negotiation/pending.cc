// PURE
#include "controller/negotiation/pending.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "controller/negotiation/participants.h"

namespace rueda {
namespace {

// Room for one entry more than `count`, so that what gives one back needs no memory.
template <typename T>
void MakeRoom(size_t count, std::vector<T>* entries) {
  if (entries->capacity() <= count) entries->reserve(2 * count + 1);
}

}  // namespace

int PendingTable::SlotFor(const TensorSpec& spec) {
  if (spec.unnamed()) {
    const TensorSpec::UnnamedKey key = spec.unnamed_key();
    if (const auto it = unnamed_.find(key); it != unnamed_.end()) return it->second;
    unnamed_.emplace(key, static_cast<int>(slots_.size()));
    slots_.emplace_back();
    slots_.back().set = spec.set;
    slots_.back().unnamed = true;
    return static_cast<int>(slots_.size()) - 1;
  }
  const NamedKey key(spec.set, spec.name, spec.pair().first, spec.pair().second);
  if (const auto it = named_.find(key); it != named_.end()) {
    ++slots_[it->second].references;
    return it->second;
  }
  int slot = static_cast<int>(slots_.size());
  if (free_slots_.empty()) {
    MakeRoom(slots_.size(), &free_slots_);
    slots_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  slots_[slot].set = spec.set;
  slots_[slot].name = spec.name;
  slots_[slot].from = std::get<2>(key);
  slots_[slot].to = std::get<3>(key);
  slots_[slot].references = 1;
  named_.emplace(key, slot);
  return slot;
}

void PendingTable::Release(int slot) noexcept {
  Slot& entry = slots_[slot];
  if (entry.unnamed || --entry.references > 0) return;
  named_.erase(NamedKey(entry.set, std::move(entry.name), entry.from, entry.to));
  entry.name.clear();
  free_slots_.push_back(slot);
}

int PendingTable::UnnamedSlot(SetId set, OpKind kind) const {
  const auto it = unnamed_.find(TensorSpec::UnnamedKey(set, kind, -1, -1));
  return it == unnamed_.end() ? -1 : it->second;
}

Instance* PendingTable::New(int slot, uint32_t sequence, int members, const SpecPtr& spec,
                            Nanos now) {
  if (free_.empty()) {
    MakeRoom(instances_.size(), &free_);
    instances_.emplace_back();
    instances_.back().record = static_cast<int>(instances_.size()) - 1;
    free_.push_back(&instances_.back());
  }
  Instance* instance = free_.back();
  free_.pop_back();
  instance->slot = slot;
  instance->sequence = sequence;
  instance->spec = spec;
  instance->waited = false;
  instance->mixed = false;
  instance->who = RankSet(members);
  instance->waiters = RankSet(members);
  instance->since = now;
  instance->reports = 0;
  slots_[slot].live.push_back(instance);
  return instance;
}

absl::StatusOr<Instance*> PendingTable::Announce(int slot, int member, int members,
                                                 const SpecPtr& spec, const CallExtras& extras,
                                                 bool waited, Nanos now) {
  Slot& entry = slots_[slot];
  Instance* instance;
  if (entry.unnamed) {
    if (entry.next.empty()) entry.next.resize(members, 0);
    const uint32_t sequence = entry.next[member]++;
    const int32_t position = static_cast<int32_t>(sequence - entry.base);
    if (position == static_cast<int32_t>(entry.live.size())) {
      New(slot, sequence, members, spec, now);
    }
    instance = position < 0 ? nullptr : entry.live[position];
    if (instance == nullptr) return nullptr;
  } else {
    if (entry.live.empty()) New(slot, 0, members, spec, now);
    instance = entry.live.front();
  }
  if (!instance->who.Insert(member)) {
    return absl::InvalidArgumentError(
        absl::StrCat(SpecLabel(*spec, instance->sequence), " was announced twice by one rank"));
  }
  if (waited) {
    instance->waited = true;
    instance->waiters.Insert(member);
  }
  if (!instance->mixed && spec != instance->spec && !(*spec == *instance->spec)) {
    instance->mixed = true;
    instance->specs.assign(members, instance->spec);
  }
  if (instance->mixed) instance->specs[member] = spec;
  if (!extras.empty() || !instance->extras.empty()) {
    if (instance->extras.empty()) instance->extras.resize(members);
    instance->extras[member] = extras;
  }
  return instance;
}

Instance* PendingTable::Find(int slot, uint16_t sequence) {
  Slot& entry = slots_[slot];
  if (entry.live.empty()) return nullptr;
  if (!entry.unnamed) return entry.live.front();
  const uint16_t position = static_cast<uint16_t>(sequence - static_cast<uint16_t>(entry.base));
  return position < entry.live.size() ? entry.live[position] : nullptr;
}

void PendingTable::Remove(Instance* instance) noexcept {
  Slot& entry = slots_[instance->slot];
  // Members announce an unnamed kind in sequence, so instances complete in sequence too; a rejected
  // one in the middle leaves a gap that is closed when those before it are gone.
  for (Instance*& live : entry.live) {
    if (live == instance) live = nullptr;
  }
  while (!entry.live.empty() && entry.live.front() == nullptr) {
    entry.live.erase(entry.live.begin());
    ++entry.base;
  }
  entry.ended = LaterSequence(entry.ended, instance->sequence + 1);
  instance->slot = -1;
  instance->spec.reset();
  instance->specs.clear();
  instance->extras.clear();
  free_.push_back(instance);
}

void PendingTable::ResetUnnamed(SetId set) {
  for (Slot& slot : slots_) {
    if (!slot.unnamed || slot.set != set) continue;
    slot.base = slot.ended = 0;
    slot.next.clear();
  }
}

void PendingTable::CatchUp(const ProcessSet& set, Rank rank) {
  for (const auto& [key, index] : unnamed_) {
    const auto& [slot_set, kind, from, to] = key;
    Slot& slot = slots_[index];
    if (slot_set != set.id || slot.next.empty()) continue;
    const int member = Participants(set, from, to).IndexOf(rank);
    if (member >= 0) slot.next[member] = LaterSequence(slot.next[member], slot.ended);
  }
}

}  // namespace rueda
