#include "ops/hierarchical/stripe_exchange.h"

#include "absl/strings/str_cat.h"

namespace rueda {

absl::Status CheckPart(const BlockOperation& operation, int64_t block, const CrossHeader& header,
                       int from, int self) {
  if (header.block == operation.Number(block) && header.is_result == 0 &&
      header.digest == operation.operation().digest &&
      header.bytes == operation.SentBytes(block, from, self)) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(
      "host ", from, " of the process set works on a bucket with another layout than host ", self));
}

}  // namespace rueda
