#include "core/base/seconds.h"

#include "absl/strings/str_format.h"

namespace rueda {

std::string Seconds(Nanos duration) {
  return absl::StrFormat("%.1f s", static_cast<double>(duration) / kSecond);
}

}  // namespace rueda
