// The tensor table: ids of (name, signature) pairs. Every rank has a replica, kept equal by the
// plan stream's Define and Forget, so that an announcement needs four bytes after the first use.
// PURE
#pragma once

#include <array>
#include <deque>
#include <vector>

#include "controller/negotiation/messages.h"
#include "core/base/hash_map.h"
#include "core/base/limits.h"

namespace rueda {

// An id is a slot and the slot's generation: 16 bits each but for the top two, which a log word
// needs.
class TensorTable {
 public:
  // The id of `spec`, or kNoTensor.
  TensorId Find(const TensorSpec& spec) const;
  // Null for an id that is not defined (any more).
  const SpecPtr* Get(TensorId id) const {
    const uint32_t slot = SlotOf(id);
    if (id == kNoTensor || slot >= slots_.size() || slots_[slot].id != id) return nullptr;
    return &slots_[slot].spec;
  }
  // Also finds ids forgotten lately: an announcement may have been under way with one. Null
  // otherwise.
  SpecPtr GetOrRecall(TensorId id) const;
  // The slot of a defined id: a small index for the caller's own columns.
  static uint32_t SlotOf(TensorId id) { return id & kSlotMask; }

  // INVALID_ARGUMENT when the slot is taken or the id malformed: a peer that speaks nonsense.
  absl::Status Define(TensorId id, SpecPtr spec);
  void Forget(TensorId id);

  // The id that the next Define should take: a free slot under a new generation. kNoTensor when
  // full. The same on every replica with the same history.
  TensorId NextId() const;
  int size() const { return static_cast<int>(ids_.size()); }

 private:
  static constexpr int kSlotBits = 16;
  static constexpr uint32_t kSlotMask = (1u << kSlotBits) - 1;
  static constexpr uint32_t kGenerationMax = (1u << 14) - 1;
  static_assert(kTensorIdsMax <= (1 << kSlotBits));

  struct Slot {
    TensorId id = kNoTensor;  // kNoTensor: free
    uint32_t generation = 0;  // of the last id in this slot
    SpecPtr spec;
  };
  struct SpecHash {
    size_t operator()(const TensorSpec* spec) const { return spec->hash; }
  };
  struct SpecEqual {
    bool operator()(const TensorSpec* a, const TensorSpec* b) const { return a == b || *a == *b; }
  };

  // More than can be announced and not yet read by everybody.
  static constexpr size_t kRecalledMax = 8'192;

  // A training step uses the same tensors again: those defined last, by hash, come before `ids_`.
  static constexpr size_t kRecent = 1'024;

  std::array<TensorId, kRecent> recent_{};  // any may be forgotten by now
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;  // slots, the one to take next at the back
  HashMap<const TensorSpec*, TensorId, SpecHash, SpecEqual> ids_;
  HashMap<TensorId, SpecPtr> forgotten_;
  std::deque<TensorId> forgotten_order_;  // oldest first
};

}  // namespace rueda
