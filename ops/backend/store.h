// The job's key/value store, through which backends of one process set find each other. Served by
// rank 0 over authenticated connections.
#pragma once

#include <string>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace rueda {

class Store {
 public:
  virtual ~Store() = default;
  // Keys have at most kStoreKeyBytesMax bytes, values kStoreValueBytesMax. Any thread but the
  // engine's.
  virtual absl::Status Set(absl::string_view key, absl::string_view value) = 0;
  // Blocks until the key is set. DEADLINE_EXCEEDED after `timeout`; ABORTED when the job fails.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, Nanos timeout) = 0;
  // Makes every Get, now and later, return ABORTED. Any thread.
  virtual void Abort() = 0;
};

}  // namespace rueda
