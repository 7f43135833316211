// The job's secret.
#pragma once

#include <sys/stat.h>

#include <string>

#include "absl/strings/string_view.h"
#include "core/base/secret.h"
#include "core/base/status.h"
#include "core/config/config.h"

namespace rueda {

inline constexpr size_t kSecretBytesMin = 16;
inline constexpr size_t kSecretBytesMax = 4'096;

// 32 random bytes.
Secret NewSecret();

// From the inherited descriptor (read with pread, so that each init of the process finds it again,
// and made close-on-exec by the first) or the file (a regular file of this user, mode 0600). Empty
// when neither is set: on one host the kernel then vouches for who is at the other end of a unix
// socket.
absl::StatusOr<Secret> ReadSecret(const Config& config);

// OK for a regular file of this user that nobody else may read. PERMISSION_DENIED names `where`.
absl::Status CheckPrivate(const struct stat& file, absl::string_view where);

}  // namespace rueda
