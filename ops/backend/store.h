// The job's key/value store, through which backends of one process set find each other. Served by
// rank 0 over authenticated connections.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace rueda {

// What the keys of one membership of a job have in common: of the job's name the beginning, as keys
// have a limited length, and the store is this job's own.
inline std::string JobKey(absl::string_view job, uint64_t membership) {
  return absl::StrCat(job.substr(0, 128), "/", membership);
}

class Store {
 public:
  virtual ~Store() = default;
  // Keys have at most kStoreKeyBytesMax bytes, values kStoreValueBytesMax. Any thread but the
  // engine's.
  virtual absl::Status Set(absl::string_view key, absl::string_view value) = 0;
  // Blocks until the key is set. DEADLINE_EXCEEDED after `timeout`; ABORTED when the job fails, or
  // `cancelled` is true, which every Get looks at when one calls Wake.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, Nanos timeout,
                                          const std::atomic<bool>& cancelled) = 0;
  virtual void Wake() = 0;  // any thread
  // Makes every Get, now and later, return ABORTED. Any thread.
  virtual void Abort() = 0;
};

// The job's store for one lane, which may have to end while it waits there.
class LaneStore {
 public:
  explicit LaneStore(std::shared_ptr<Store> job) : job_(std::move(job)) {}

  absl::Status Set(absl::string_view key, absl::string_view value) { return job_->Set(key, value); }
  absl::StatusOr<std::string> Get(absl::string_view key, Nanos timeout) {
    return job_->Get(key, timeout, aborted_);
  }
  bool aborted() const { return aborted_.load(); }
  // Makes every Get of this lane, now and later, return ABORTED. Any thread.
  void Abort() {
    aborted_.store(true);
    job_->Wake();
  }

 private:
  const std::shared_ptr<Store> job_;
  std::atomic<bool> aborted_{false};
};

}  // namespace rueda
