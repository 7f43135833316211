#include "ops/shm/shm_group.h"

#include "absl/strings/str_cat.h"

namespace rueda {

absl::Status ShmGroup::CheckDigests(uint32_t digest) const {
  const int parity = static_cast<int>((arrivals_ - 1) & 1);
  for (int i = 0; i < size(); ++i) {
    if (members_[i].area->digest[parity] != digest) {
      return absl::InternalError(absl::StrCat("member ", i,
                                              " of the process set works on a bucket "
                                              "with another layout than member ",
                                              self_));
    }
  }
  return absl::OkStatus();
}

}  // namespace rueda
