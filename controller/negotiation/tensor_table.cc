// PURE
#include "controller/negotiation/tensor_table.h"

#include "absl/strings/str_cat.h"

namespace rueda {

TensorId TensorTable::Find(const TensorSpec& spec) const {
  const TensorId recent = recent_[spec.hash % kRecent];
  if (const SpecPtr* found = Get(recent); found != nullptr && found->get() == &spec) return recent;
  const auto it = ids_.find(&spec);
  return it == ids_.end() ? kNoTensor : it->second;
}

SpecPtr TensorTable::GetOrRecall(TensorId id) const {
  if (const SpecPtr* spec = Get(id)) return *spec;
  const auto it = forgotten_.find(id);
  return it == forgotten_.end() ? nullptr : it->second;
}

TensorId TensorTable::NextId() const {
  uint32_t slot = static_cast<uint32_t>(slots_.size());
  uint32_t generation = 1;
  if (!free_.empty()) {
    slot = free_.back();
    generation = slots_[slot].generation % kGenerationMax + 1;
  } else if (slot == static_cast<uint32_t>(kTensorIdsMax)) {
    return kNoTensor;
  }
  return (generation << kSlotBits) | slot;
}

absl::Status TensorTable::Define(TensorId id, SpecPtr spec) {
  if (id == kNoTensor || id != NextId() || ids_.contains(spec.get())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan defines tensor id ", id, " for ", SpecLabel(*spec), " out of turn"));
  }
  const uint32_t slot = SlotOf(id);
  if (slot == slots_.size()) {
    slots_.emplace_back();
  } else {
    free_.pop_back();
  }
  slots_[slot].id = id;
  slots_[slot].generation = id >> kSlotBits;
  slots_[slot].spec = std::move(spec);
  ids_.emplace(slots_[slot].spec.get(), id);
  recent_[slots_[slot].spec->hash % kRecent] = id;
  return absl::OkStatus();
}

void TensorTable::Forget(TensorId id) {
  if (Get(id) == nullptr) return;
  Slot& slot = slots_[SlotOf(id)];
  ids_.erase(slot.spec.get());
  if (forgotten_order_.size() == kRecalledMax) {
    forgotten_.erase(forgotten_order_.front());
    forgotten_order_.pop_front();
  }
  forgotten_.emplace(id, std::move(slot.spec));
  forgotten_order_.push_back(id);
  slot.id = kNoTensor;
  slot.spec.reset();
  free_.push_back(SlotOf(id));
}

}  // namespace rueda
