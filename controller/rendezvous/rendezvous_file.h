// Where the ranks of a job that is on several hosts learn the secret and where rank 0 waits: a file
// in a directory that all of them see (RUEDA_SHARED_DIR), which nobody but this user may read.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "core/base/secret.h"
#include "core/base/status.h"

namespace rueda {

struct RendezvousPoint {
  std::string address;  // of rank 0's socket, "10.0.0.1:34567"
  Secret secret;        // empty: the ranks have it by another way
};

// Its name is worked out from the job and the membership, and no secret.
std::string RendezvousPath(const std::string& directory, absl::string_view job,
                           uint64_t membership);

// Rank 0's; gone when this is. It appears whole, and in the place of one that an earlier job of the
// same name left. PERMISSION_DENIED, NOT_FOUND and so on name the path.
class RendezvousFile {
 public:
  static absl::StatusOr<RendezvousFile> Publish(const std::string& path,
                                                const RendezvousPoint& point);
  RendezvousFile(RendezvousFile&& other) noexcept;
  RendezvousFile(const RendezvousFile&) = delete;
  ~RendezvousFile();

 private:
  RendezvousFile(std::string path, uint64_t device, uint64_t inode)
      : path_(std::move(path)), device_(device), inode_(inode) {}

  std::string path_;
  uint64_t device_, inode_;  // another rank 0 of a job of the same name may have replaced it
};

// UNAVAILABLE: it is not there (yet). NOT_FOUND: its directory is not. PERMISSION_DENIED: it is
// another user's, or others may read it. DATA_LOSS: no rank 0 has written that.
absl::StatusOr<RendezvousPoint> ReadRendezvous(const std::string& path);

}  // namespace rueda
