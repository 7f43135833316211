// What compression remembers of tensors, by process set, operation and name, from one to the next:
// what was left out, and has to be added the next time (error feedback: arXiv 1901.09847).
//
// Owned by the engine, which uses it on its thread; a caller may save and load it while no
// compressed operation is under way.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/base/hash_map.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "ops/compression/automatic.h"

namespace rueda {

// Values that are kept on a device.
class ValuesElsewhere {
 public:
  virtual ~ValuesElsewhere() = default;
  // Copies them; nothing that changes them is under way.
  virtual absl::StatusOr<std::vector<float>> Fetch() const = 0;
};

// What was left out of a range of a tensor.
struct Residual {
  int64_t begin = 0;  // of the range
  std::vector<float> values;
  std::shared_ptr<ValuesElsewhere> elsewhere;  // instead of `values`

  // Of this range: zeros, if it was another one the last time, or a device's.
  float* Of(int64_t range_begin, int64_t elements) {
    elsewhere = nullptr;
    if (begin != range_begin || values.size() != static_cast<size_t>(elements)) {
      begin = range_begin;
      values.assign(static_cast<size_t>(elements), 0);
    }
    return values.data();
  }
};

struct CompressionState {
  Residual sent;              // of what this rank sends
  Residual sums;              // of the sums that this rank sends on
  std::vector<float> factor;  // powersgd: the right factor of the last time, row by row
  AutomaticChoice automatic;
};

class CompressionStates {
 public:
  // Of a tensor that is compressed; it stays where it is while something is under way.
  CompressionState* Find(SetId set, OpKind kind, absl::string_view name)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The set is removed.
  void Forget(SetId set) ABSL_LOCKS_EXCLUDED(mutex_);

  // What is compressed is under way: batches while they are planned, then their buckets.
  void Began(SetId set) ABSL_LOCKS_EXCLUDED(mutex_);
  void Ended(SetId set) ABSL_LOCKS_EXCLUDED(mutex_);

  // All of a set's, as bytes for Load. FAILED_PRECONDITION while something of it is under way.
  absl::StatusOr<std::string> Save(SetId set) ABSL_LOCKS_EXCLUDED(mutex_);
  // In the place of all there is of a set, what its members have saved, by member: of as many as
  // there are now, this one takes its own; else each takes the mean of what was left out of whole
  // tensors, which adds as much to an average (not of stripes: those of other hosts are others).
  // What `auto` has learned stays: the ranks choose alike, whichever of them this fails on.
  // INVALID_ARGUMENT, with nothing changed: not of Save.
  absl::Status Load(SetId set, absl::Span<const absl::string_view> saved, int members, int self)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using ByName = HashMap<std::string, CompressionState>;
  using ByKind = HashMap<OpKind, ByName>;

  absl::Status CheckIdle(SetId set) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  HashMap<SetId, ByKind> states_ ABSL_GUARDED_BY(mutex_);
  HashMap<SetId, int> under_way_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rueda
