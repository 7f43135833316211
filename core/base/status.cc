#include "core/base/status.h"

namespace rueda {

absl::Status ErrnoStatus(int error, absl::string_view doing) {
  return absl::ErrnoToStatus(error, doing);
}

}  // namespace rueda
