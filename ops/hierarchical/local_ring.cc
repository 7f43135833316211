#include "ops/hierarchical/local_ring.h"

#include "absl/strings/str_cat.h"

namespace rueda {

LocalRing::~LocalRing() {
  if (own_ != nullptr) (void)args_.arena->Free(own_);
}

absl::Status LocalRing::Open() {
  if (own_ != nullptr) return absl::OkStatus();
  RUEDA_ASSIGN_OR_RETURN(void* const memory, args_.arena->Allocate(bytes()));
  own_ = static_cast<char*>(memory);
  own_area().ring_offset = static_cast<uint64_t>(args_.arena->OffsetOf(own_, bytes()));
  return absl::OkStatus();
}

void LocalRing::WakeOthers() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int i = 0; i < size(); ++i) {
    if (i != args_.self) args_.neighbours->Wake(args_.members[static_cast<size_t>(i)].local);
  }
}

void LocalRing::Fill(uint64_t block, uint32_t digest) {
  Area& area = own_area();
  area.ring_digest[block % kRingBlocks] = digest;
  area.filled.store(block + 1, std::memory_order_release);
  WakeOthers();
}

bool LocalRing::AllFilled(uint64_t block) {
  for (; filled_ < args_.members.size(); ++filled_) {
    if (args_.members[filled_].area->filled.load(std::memory_order_acquire) <= block) return false;
  }
  filled_ = 0;
  return true;
}

absl::Status LocalRing::CheckFilled(uint64_t block, uint32_t digest) const {
  for (int i = 0; i < size(); ++i) {
    const Area& area = *args_.members[static_cast<size_t>(i)].area;
    if (area.ring_digest[block % kRingBlocks] != digest) {
      return absl::InternalError(absl::StrCat("member ", i,
                                              " of this host works on a bucket with another layout "
                                              "than member ",
                                              args_.self));
    }
  }
  return absl::OkStatus();
}

absl::Status LocalRing::Locate() {
  if (located_) return absl::OkStatus();
  for (size_t i = 0; i < args_.members.size(); ++i) {
    const ShmMember& member = args_.members[i];
    const uint64_t offset = member.area->ring_offset;  // copied once
    if (member.arena == nullptr || bytes() > member.arena->bytes() ||
        offset > member.arena->bytes() - bytes()) {
      return absl::InternalError(
          absl::StrCat("member ", i, " of this host describes memory outside its arena"));
    }
    places_[i] = member.arena->data() + offset;
  }
  located_ = true;
  return absl::OkStatus();
}

void LocalRing::Finish(uint64_t block) {
  own_area().finished.store(block + 1, std::memory_order_release);
  WakeOthers();
}

bool LocalRing::AllFinished(uint64_t block, int owners) const {
  for (int i = 0; i < owners; ++i) {
    const Area& area = *args_.members[static_cast<size_t>(i)].area;
    if (area.finished.load(std::memory_order_acquire) <= block) return false;
  }
  return true;
}

}  // namespace rueda
