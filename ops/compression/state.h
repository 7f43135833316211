// What compression remembers of tensors, by process set and name, from one operation to the next:
// what was left out, and has to be added the next time (error feedback: arXiv 1901.09847).
//
// Owned by the engine, which uses it on its thread; a caller may save and load it while no
// compressed operation is under way.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "ops/compression/automatic.h"

namespace rueda {

struct CompressionState {
  std::vector<float> residual;  // of what this rank sends, by element of what it sends for
  std::vector<float> owned;     // of the sums that this rank sends on
  std::vector<float> factor;    // powersgd: the right factor of the last time, row by row
  AutomaticChoice automatic;
};

class CompressionStates {
 public:
  // Of a tensor that is compressed; it stays where it is.
  CompressionState* Find(SetId set, absl::string_view name) ABSL_LOCKS_EXCLUDED(mutex_);
  // The set is removed.
  void Forget(SetId set) ABSL_LOCKS_EXCLUDED(mutex_);

  // Compressed buckets that are under way.
  void Began() ABSL_LOCKS_EXCLUDED(mutex_);
  void Ended() ABSL_LOCKS_EXCLUDED(mutex_);

  // All of a set's, as bytes for Load. FAILED_PRECONDITION while something is under way.
  absl::StatusOr<std::string> Save(SetId set) ABSL_LOCKS_EXCLUDED(mutex_);
  // In the place of all there is of a set, what its members have saved, by member: of as many as
  // there are now, this one takes its own; else each takes the mean of what was left out, which
  // adds as much to an average. INVALID_ARGUMENT, with nothing changed: not of Save.
  absl::Status Load(SetId set, absl::Span<const absl::string_view> saved, int members, int self)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Map = absl::node_hash_map<std::string, CompressionState>;

  Mutex mutex_;
  absl::node_hash_map<SetId, Map> states_ ABSL_GUARDED_BY(mutex_);
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rueda
