#include "core/base/status.h"

#include "absl/strings/str_cat.h"

namespace rueda {

absl::Status ErrnoStatus(int error, absl::string_view doing) {
  return absl::ErrnoToStatus(error, doing);
}

absl::Status StatusAt(absl::string_view where, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

}  // namespace rueda
