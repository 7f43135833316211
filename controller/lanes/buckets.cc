#include "controller/lanes/buckets.h"

#include <algorithm>
#include <tuple>

#include "absl/container/inlined_vector.h"

namespace rueda {
namespace {

// What the ranks give or get of one part, in elements: see BucketOperation::counts.
void AppendCounts(const LaneOperation& operation, size_t part, const ProcessSet& set,
                  std::vector<int64_t>* counts) {
  const Signature& signature = operation.spec->signature;
  const Shape& shape = signature.parts[part].shape;
  const size_t members = static_cast<size_t>(set.size());
  const absl::Span<const int64_t> dims = operation.first_dims;
  if (signature.kind == OpKind::kReducescatter) {
    const int64_t row = shape.Row().elements();
    for (int member = 0; member < set.size(); ++member) {
      counts->push_back(ReducescatterRows(shape.dim(0), set.size(), member) * row);
    }
  } else if (signature.kind == OpKind::kAlltoall && dims.size() == members) {
    // Everybody gives equal parts.
    for (const int64_t rows : dims) {
      counts->insert(counts->end(), members,
                     rows / static_cast<int64_t>(members) * shape.elements());
    }
  } else {
    const size_t parts = signature.parts.size();
    for (size_t i = part; i < dims.size(); i += parts) {
      counts->push_back(dims[i] * shape.elements());
    }
  }
}

// What the planner goes by, equal on all ranks: the elements of all that is moved.
int64_t PlannedElements(const LaneOperation& operation, size_t part) {
  const Signature& signature = operation.spec->signature;
  const int64_t elements = signature.parts[part].shape.elements();
  if (!TraitsOf(signature.kind).ragged) return elements;
  int64_t rows = 0;
  for (size_t i = part; i < operation.first_dims.size(); i += signature.parts.size()) {
    rows += operation.first_dims[i];
  }
  return rows * elements;
}

int64_t DivisorOf(ReduceOp op, const ProcessSet& set, size_t absent) {
  if (op == ReduceOp::kAverage) return set.size();
  return op == ReduceOp::kAverageLive ? set.size() - static_cast<int64_t>(absent) : 1;
}

// One planner input a part; an operation without parts (a barrier) is one of no elements.
struct Source {
  const LaneOperation* operation;
  int part;  // -1: none
  PartCompression compression = {};
};

using Sources = absl::InlinedVector<Source, 1>;
using Inputs = absl::InlinedVector<FusionInput, 1>;

// Whether two parts of a batch may share a bucket.
bool SameFusionKey(const Source& one, const Source& other) {
  const Signature& a = one.operation->spec->signature;
  const Signature& b = other.operation->spec->signature;
  return a.traits() == b.traits() && one.compression.compression == other.compression.compression &&
         one.compression.agrees == other.compression.agrees &&
         (one.compression.state == nullptr) == (other.compression.state == nullptr);
}

// What `auto` takes for each part alone would cut a batch into buckets of one or two: those of one
// kind come together.
void SortAutomatic(Sources* sources) {
  const auto is_auto = [](const Source& source) {
    return source.operation->spec->signature.compression.compressor == Compressor::kAuto;
  };
  const auto kind = [](const Source& source) {
    const PartCompression& how = source.compression;
    return std::tuple(how.compression.compressor, how.agrees, how.state == nullptr);
  };
  for (auto begin = sources->begin(); begin != sources->end();) {
    begin = std::find_if(begin, sources->end(), is_auto);
    const auto end = std::find_if_not(begin, sources->end(), is_auto);
    std::stable_sort(begin, end,
                     [&](const Source& a, const Source& b) { return kind(a) < kind(b); });
    begin = end;
  }
}

void PlanInputs(const LaneBatch& batch, absl::Span<const PartCompression> compression,
                Inputs* inputs, Sources* sources) {
  size_t next = 0;
  for (const LaneOperation& operation : batch.operations) {
    const int parts = static_cast<int>(operation.parts.size());
    for (int part = parts == 0 ? -1 : 0; part < parts; ++part) {
      sources->push_back({&operation, part});
      if (part < 0 || compression.empty()) continue;
      sources->back().compression = compression[next++];
    }
  }
  if (!compression.empty()) SortAutomatic(sources);
  uint64_t fusion_key = 0;
  for (size_t i = 0; i < sources->size(); ++i) {
    const Source& source = (*sources)[i];
    if (i > 0 && !SameFusionKey((*sources)[i - 1], source)) ++fusion_key;
    const int64_t elements =
        source.part < 0 ? 0 : PlannedElements(*source.operation, static_cast<size_t>(source.part));
    inputs->push_back(InputOf(*source.operation->spec, source.part, fusion_key, elements));
  }
}

// A tensor's, by its own name: in whatever group it is, the same member has the same range of it.
uint64_t TensorIdentity(const Source& source) {
  const TensorSpec& spec = *source.operation->spec;
  const auto part = static_cast<size_t>(source.part);
  if (!spec.signature.is_group() || spec.unnamed()) return spec.identity + part;
  return IdentityOf(spec.set, spec.signature.part_names[part], spec.signature.kind);
}

// Ranks that had chosen otherwise would each wait for something else: it is an error on all.
uint32_t DigestWith(uint32_t planned, const PartCompression& how) {
  const auto number = static_cast<uint32_t>(how.compression.compressor) * 2 + how.agrees;
  return planned ^ (number << 1);  // which leaves it odd
}

// What all of a bucket has in common, as its first part has it.
LaneBucket BucketLike(const Source& first, const LaneBatch& batch, const ProcessSet& set) {
  const Signature& signature = first.operation->spec->signature;
  LaneBucket bucket;
  BucketOperation& operation = bucket.operation;
  operation.traits() = signature.traits();
  if (signature.root >= 0) operation.root = set.IndexOf(signature.root);
  if (signature.peer >= 0) operation.peer = set.IndexOf(signature.peer);
  operation.compression = first.compression.compression;
  operation.automatic = first.compression.automatic;
  operation.scaling = batch.scaling;
  operation.scaling.divisor = DivisorOf(signature.reduce_op, set, batch.absent.size());
  operation.sequence = batch.sequence;
  bucket.first_id = first.operation->id;
  bucket.data = batch.data;
  if (TraitsOf(signature.kind).reduces) bucket.absent = batch.absent;
  return bucket;
}

void AddPart(const Source& source, const ProcessSet& set, LaneBucket* bucket) {
  const LaneOperation& operation = *source.operation;
  if (operation.ready != nullptr &&
      (bucket->ready.empty() || bucket->ready.back() != operation.ready)) {
    bucket->ready.push_back(operation.ready);
  }
  bucket->requests.push_back(operation.request);
  if (source.part < 0) return;
  const PartArgs& part = operation.parts[static_cast<size_t>(source.part)];
  // Nothing of it, and it must not keep the rest from being reduced where it lies.
  if (bucket->operation.kind == OpKind::kAllreduce && part.shape.elements() == 0) return;
  bucket->pieces.push_back({part.input, part.output, part.shape.elements(),
                            part.shape.rank() > 0 ? part.shape.dim(0) : 1, TensorIdentity(source),
                            source.compression.state});
  AppendCounts(operation, static_cast<size_t>(source.part), set, &bucket->counts);
}

}  // namespace

FusionInput InputOf(const TensorSpec& spec, int part, uint64_t fusion_key, int64_t elements) {
  const bool fuses = TraitsOf(spec.signature.kind).fuses && part >= 0;
  const DType dtype =
      part < 0 ? DType::kUInt8 : spec.signature.parts[static_cast<size_t>(part)].dtype;
  return {spec.identity + static_cast<uint64_t>(std::max(part, 0)), fusion_key, fuses, dtype,
          elements};
}

LaneBuckets MakeBuckets(const LaneBatch& batch, const ProcessSet& set, int64_t bucket_bytes,
                        absl::Span<const PartCompression> compression) {
  Inputs inputs;
  Sources sources;
  PlanInputs(batch, compression, &inputs, &sources);
  LaneBuckets buckets;
  for (const Bucket& planned : PlanFusion(inputs, bucket_bytes)) {
    const Source& first = sources[planned.begin];
    LaneBucket& bucket = buckets.emplace_back(BucketLike(first, batch, set));
    bucket.operation.dtype = planned.dtype;
    bucket.operation.elements = planned.elements;
    bucket.operation.digest = DigestWith(planned.digest, first.compression);
    for (size_t i = planned.begin; i < planned.end; ++i) AddPart(sources[i], set, &bucket);
  }
  return buckets;
}

}  // namespace rueda
