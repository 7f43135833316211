// Buckets out of batches: which tensors of a batch move together, in plan order, and what the ranks
// do with each bucket. All ranks come to the same from the same plan. Values. PURE
#pragma once

#include <list>
#include <string>
#include <vector>

#include "controller/lanes/request.h"
#include "controller/membership/process_sets.h"
#include "core/fusion/planner.h"
#include "ops/backend/communicator.h"

namespace rueda {

// One operation of a batch.
struct LaneOperation {
  Request* request;  // null: this rank has joined, and takes part for the others
  TensorId id;
  const TensorSpec* spec;
  absl::Span<const PartArgs> parts;
  absl::Span<const int64_t> first_dims;  // as planned
  DeviceEvent ready;                     // its tensors may be touched behind it; null on the CPU
};

struct LaneBatch {
  std::vector<LaneOperation> operations;  // in plan order; at least one
  Scaling scaling;
  std::vector<int> absent;  // member indices
  uint64_t sequence = 0;    // of the batch on its lane
  PlannedData data;         // see Order
};

// How one part is compressed: the same on all ranks, also on those that have joined.
struct PartCompression {
  Compression compression;            // as chosen, if it is automatic
  CompressionState* state = nullptr;  // what is remembered of the tensor; null: nothing
  bool automatic = false;             // it was chosen by measuring
  bool agrees = false;                // the ranks agree in this one on what `auto` takes
};

// A bucket on its way through a lane.
struct LaneBucket {
  BucketOperation operation;      // but for its lists, until it is started
  TensorId first_id = kNoTensor;  // for people: what the bucket begins with
  uint64_t batch = 0;             // which of the lane's it belongs to
  Nanos started_at = 0;           // 0: not yet
  Nanos done_at = 0;
  std::vector<Piece> pieces;
  std::vector<Request*> requests;  // by piece; a barrier's has no piece. Null: others' alone
  std::vector<int64_t> counts;     // see BucketOperation
  std::vector<int> absent;         // see BucketOperation
  std::vector<DeviceEvent> ready;  // see BucketOperation
  PlannedData data;                // not null: nothing is to be moved

  // The lists lie here.
  const BucketOperation& Complete() {
    operation.pieces = pieces;
    operation.counts = counts;
    operation.absent = absent;
    operation.ready = ready;
    return operation;
  }
  uint64_t bytes() const {
    return static_cast<uint64_t>(operation.elements) * DTypeSize(operation.dtype);
  }
};

// They stay where they are, from when they are made until they are done: communicators look at
// them.
using LaneBuckets = std::list<LaneBucket>;

// One part of an operation for the planner; -1: an operation without parts (a barrier).
FusionInput InputOf(const TensorSpec& spec, int part, uint64_t fusion_key, int64_t elements);

// The buckets of one batch. Outputs that this rank wants have their memory already. `compression`:
// by part, through the whole batch; empty: nothing is compressed. Requests are not looked into.
LaneBuckets MakeBuckets(const LaneBatch& batch, const ProcessSet& set, int64_t bucket_bytes,
                        absl::Span<const PartCompression> compression);

}  // namespace rueda
