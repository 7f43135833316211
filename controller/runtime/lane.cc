#include "controller/runtime/lane.h"

#include "core/trace/recorder.h"

namespace rueda {

absl::StatusOr<Progress> Lane::Advance() {
  LaneBucket& bucket = queue_.front();
  if (!started_) {
    started_ = true;
    Collective collective;
    collective.kind = bucket.kind;
    collective.dtype = bucket.dtype;
    collective.reduce_op = bucket.reduce_op;
    collective.root = bucket.root;
    collective.prescale = bucket.prescale;
    collective.postscale = bucket.postscale;
    collective.pieces = bucket.pieces;
    collective.elements = bucket.elements;
    collective.counts = bucket.counts;
    collective.digest = bucket.digest;
    collective.timed = bucket.timed;
    bucket.started_at =
        trace::Record(trace::Event::kBucketStart, bucket.first_id, static_cast<uint64_t>(set_),
                      static_cast<uint64_t>(bucket.elements) * DTypeSize(bucket.dtype));
    communicator_->Start(collective);
  }
  return communicator_->Advance();
}

LaneBucket Lane::Pop() {
  LaneBucket bucket = std::move(queue_.front());
  queue_.pop_front();
  started_ = false;
  bucket.done_at =
      trace::Record(trace::Event::kBucketDone, bucket.first_id, static_cast<uint64_t>(set_),
                    static_cast<uint64_t>(bucket.elements) * DTypeSize(bucket.dtype));
  return bucket;
}

namespace {

// Elements that each member contributes to part `part` of an allgather, given the first dimensions
// by member and part.
std::vector<int64_t> GatherCounts(const Shape& row, absl::Span<const int64_t> first_dims,
                                  size_t part, size_t parts) {
  std::vector<int64_t> counts;
  for (size_t i = part; i < first_dims.size(); i += parts) {
    counts.push_back(first_dims[i] * row.elements());
  }
  return counts;
}

}  // namespace

void MakeBuckets(absl::Span<Request* const> requests, absl::Span<const TensorId> ids,
                 const ProcessSet& set, int64_t bucket_bytes,
                 absl::Span<const std::vector<int64_t>> first_dims,
                 std::vector<LaneBucket>* buckets) {
  // One planner input a part; an operation without parts (a barrier) is one of no elements.
  struct Source {
    Request* request;
    size_t operation;
    int part;  // -1: none
  };
  std::vector<FusionInput> inputs;
  std::vector<Source> sources;
  uint64_t kin = 0;
  const auto same_kin = [](const Request& a, const Request& b) {
    return a.spec->signature.kind == b.spec->signature.kind &&
           a.spec->signature.reduce_op == b.spec->signature.reduce_op &&
           a.spec->signature.device == b.spec->signature.device &&
           a.extras.prescale == b.extras.prescale && a.extras.postscale == b.extras.postscale;
  };
  for (size_t i = 0; i < requests.size(); ++i) {
    Request* request = requests[i];
    const Signature& signature = request->spec->signature;
    if (i > 0 && !same_kin(*requests[i - 1], *request)) ++kin;
    const bool fusable = signature.kind == OpKind::kAllreduce;
    for (size_t part = 0; part < request->parts.size(); ++part) {
      inputs.push_back({(static_cast<uint64_t>(ids[i]) << 32) | part, kin, fusable,
                        request->parts[part].dtype, request->parts[part].shape.elements()});
      sources.push_back({request, i, static_cast<int>(part)});
    }
    if (request->parts.empty()) {
      inputs.push_back({static_cast<uint64_t>(ids[i]) << 32, kin, false, DType::kUInt8, 0});
      sources.push_back({request, i, -1});
    }
  }
  std::vector<Bucket> plan;
  PlanFusion(inputs, bucket_bytes, &plan);
  for (const Bucket& planned : plan) {
    const Source& first = sources[planned.placements.front().input];
    const Signature& signature = first.request->spec->signature;
    LaneBucket bucket;
    bucket.kind = signature.kind;
    bucket.reduce_op = signature.reduce_op;
    bucket.dtype = planned.dtype;
    bucket.root = signature.root < 0 ? -1 : set.IndexOf(signature.root);
    bucket.prescale = first.request->extras.prescale;
    bucket.postscale = first.request->extras.postscale;
    bucket.elements = planned.elements;
    bucket.digest = planned.digest;
    bucket.first_id = ids[first.operation];
    for (const Placement& placement : planned.placements) {
      const Source& source = sources[placement.input];
      ++source.request->buckets_left;
      bucket.requests.push_back(source.request);
      if (source.part < 0) continue;
      const PartArgs& part = source.request->parts[source.part];
      bucket.pieces.push_back({part.input, part.output, part.shape.elements()});
    }
    if (signature.kind == OpKind::kAllgather) {
      bucket.counts =
          GatherCounts(first.request->parts[first.part].shape.Row(), first_dims[first.operation],
                       static_cast<size_t>(first.part), first.request->parts.size());
      // Ranks may differ in how much they bring; the layout is what all of them bring together.
      bucket.digest = static_cast<uint32_t>(bucket.first_id) | 1;
    }
    buckets->push_back(std::move(bucket));
  }
  if (!buckets->empty()) buckets->back().ends_batch = true;
}

}  // namespace rueda
