// PURE
#include "controller/negotiation/host_tally.h"

#include <algorithm>
#include <utility>

#include "controller/negotiation/participants.h"
#include "controller/negotiation/tensor_table.h"

namespace rueda {
namespace {

constexpr uint32_t kNoPart = UINT32_MAX;  // for a count: is never behind the others

}  // namespace

HostTally::Key HostTally::KeyOf(const TensorSpec& spec) {
  return {spec.set, spec.name, spec.pair().first, spec.pair().second,
          spec.unnamed() ? spec.signature.kind : OpKind::kAllreduce};
}

int HostTally::SlotFor(const TensorSpec& spec) {
  const auto [it, is_new] = slot_of_.try_emplace(KeyOf(spec), -1);
  if (!is_new) return it->second;
  if (free_.empty()) {
    free_.push_back(static_cast<int>(slots_.size()));
    slots_.emplace_back();
  }
  it->second = free_.back();
  free_.pop_back();
  Slot& slot = slots_[it->second];
  slot.key = &it->first;
  slot.set = spec.set;
  slot.participants = slot.references = 0;
  slot.joins = spec.signature.kind == OpKind::kJoin;
  slot.told = slot.always = false;
  slot.who = RankSet(spec.unnamed() ? 0 : static_cast<int>(ranks_.size()));
  slot.counts.assign(spec.unnamed() ? ranks_.size() : 0, 0);
  const ProcessSet* set = sets_.Find(spec.set);
  if (set == nullptr) return it->second;
  const Participants participants(spec, *set);
  for (size_t writer = 0; writer < ranks_.size(); ++writer) {
    const bool takes_part = participants.IndexOf(ranks_[writer]) >= 0;
    slot.participants += takes_part ? 1 : 0;
    if (spec.unnamed() && !takes_part) slot.counts[writer] = kNoPart;
  }
  return it->second;
}

HostTally::Slot* HostTally::Find(TensorId id) {
  const uint32_t index = TensorTable::SlotOf(id);
  if (index < defined_.size() && defined_[index].id == id) return &slots_[defined_[index].slot];
  const auto it = std::find_if(forgotten_.begin(), forgotten_.end(),
                               [&](const Defined& defined) { return defined.id == id; });
  return it == forgotten_.end() ? nullptr : &slots_[it->slot];
}

// Unless somebody has announced it, who will be waited for.
void HostTally::Release(int index) {
  Slot& slot = slots_[index];
  if (--slot.references > 0 || !slot.counts.empty() || slot.who.count() > 0) return;
  slot_of_.erase(*slot.key);
  free_.push_back(index);
}

bool HostTally::Announces(int writer, TensorId id, bool waited) {
  Slot* const slot = Find(id);
  return slot == nullptr || Announces(writer, slot, waited);
}

bool HostTally::Announces(int writer, Slot* slot, bool waited) {
  if (slot->joins) {
    if (static_cast<size_t>(slot->set) >= joined_.size()) joined_.resize(slot->set + 1);
    joined_[slot->set] = true;
  }
  if (left_ || slot->always || HasJoined(slot->set)) return true;
  if (!slot->counts.empty()) {
    const uint32_t count = ++slot->counts[writer];
    return std::all_of(slot->counts.begin(), slot->counts.end(),
                       [&](uint32_t other) { return other >= count; });
  }
  slot->told = waited || (slot->told && slot->who.count() > 0);
  slot->who.Insert(writer);
  if (slot->who.count() < slot->participants) return false;
  slot->who = RankSet(static_cast<int>(ranks_.size()));
  return true;
}

bool HostTally::Step(int writer, const ControlEvent& event) {
  if (const auto* announced = std::get_if<Announced>(&event.what)) {
    const Announcement& announcement = announced->announcement;
    if (announcement.id != kNoTensor) {
      return Announces(writer, announcement.id, announcement.waited);
    }
    return Announces(writer, &slots_[SlotFor(*announcement.spec)], announcement.waited);
  }
  if (const auto* waited = std::get_if<Waited>(&event.what)) {
    // That it is held still, or that others wait too, is no news.
    Slot* const slot = Find(waited->id);
    if (slot == nullptr || !slot->counts.empty() || left_ || HasJoined(slot->set)) return true;
    const bool is_held = slot->who.Contains(writer);
    const bool is_news = !is_held && !slot->told;
    slot->told = true;
    return is_news;
  }
  left_ |= std::holds_alternative<Leave>(event.what);
  return true;
}

void HostTally::Apply(const PlanItem& item) {
  if (const auto* define = std::get_if<Define>(&item)) {
    const uint32_t index = TensorTable::SlotOf(define->id);
    if (index >= defined_.size()) defined_.resize(index + 1);
    defined_[index] = {define->id, SlotFor(*define->spec)};
    ++slots_[defined_[index].slot].references;
  } else if (const auto* forget = std::get_if<Forget>(&item)) {
    const uint32_t index = TensorTable::SlotOf(forget->id);
    if (index >= defined_.size() || defined_[index].id != forget->id) return;
    forgotten_.push_back(std::exchange(defined_[index], Defined()));
    if (forgotten_.size() > kForgottenMax) {
      Release(forgotten_.front().slot);
      forgotten_.pop_front();
    }
  } else if (const auto* reject = std::get_if<Reject>(&item)) {
    const auto it = slot_of_.find(KeyOf(*reject->spec));
    if (it == slot_of_.end()) return;
    Slot& slot = slots_[it->second];
    // Of the unnamed, ranks are no longer at the same count.
    if (!slot.counts.empty()) slot.always = true;
    for (size_t writer = 0; slot.counts.empty() && writer < ranks_.size(); ++writer) {
      if (std::binary_search(reject->ranks.begin(), reject->ranks.end(), ranks_[writer])) {
        slot.who.Erase(static_cast<int>(writer));
      }
    }
  } else if (const auto* joined = std::get_if<Joined>(&item)) {
    if (HasJoined(joined->set)) joined_[joined->set] = false;
    // None is under way, and they are counted from 0 again.
    for (Slot& slot : slots_) {
      if (slot.set != joined->set) continue;
      for (uint32_t& count : slot.counts) count = count == kNoPart ? kNoPart : 0;
    }
  } else if (const auto* removed = std::get_if<SetRemoved>(&item)) {
    // Nothing of it is under way, and another set may get its number.
    std::erase_if(forgotten_,
                  [&](const Defined& defined) { return slots_[defined.slot].set == removed->set; });
    std::erase_if(slot_of_, [&](const auto& entry) {
      if (std::get<0>(entry.first) != removed->set) return false;
      free_.push_back(entry.second);
      return true;
    });
    if (HasJoined(removed->set)) joined_[removed->set] = false;
  }
}

}  // namespace rueda
