#include "controller/runtime/lane.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/trace/recorder.h"

namespace rueda {
namespace {

// One part of an operation for the planner; -1: an operation without parts (a barrier).
FusionInput InputOf(const TensorSpec& spec, int part, uint64_t kin, int64_t elements) {
  const bool fuses = TraitsOf(spec.signature.kind).fuses && part >= 0;
  const DType dtype =
      part < 0 ? DType::kUInt8 : spec.signature.parts[static_cast<size_t>(part)].dtype;
  return {spec.identity + static_cast<uint64_t>(std::max(part, 0)), kin, fuses, dtype, elements};
}

bool IsCompressed(const LaneBucket& bucket) {
  return bucket.automatic || !bucket.compression.none();
}

}  // namespace

Way WayOf(const Signature& signature) {
  if (signature.device == DeviceType::kCpu) return Way::kCpu;
  return signature.urgent ? Way::kUrgent : Way::kDevice;
}

void Lane::Prepare(const Request& request) {
  if (prepared_ == &request) return;  // announcing it was tried before
  const TensorSpec& spec = *request.spec;
  const Signature& signature = spec.signature;
  if (prepared_ != nullptr) cpu().TakeBack(/*never=*/false);
  if (live_ != 1 || busy() || signature.device != DeviceType::kCpu || signature.parts.size() > 1 ||
      request.extras.first_dims.size() > 0 || !signature.compression.none() ||
      !(TraitsOf(signature.kind).reduces || signature.kind == OpKind::kBarrier)) {
    return;
  }
  Collective collective;
  Piece piece;
  const int part = signature.parts.empty() ? -1 : 0;
  if (part == 0) {
    piece.input = request.parts[0].input;
    piece.output = request.parts[0].output;
    piece.elements = request.parts[0].shape.elements();
    collective.pieces = {&piece, 1};
  }
  const FusionInput input = InputOf(spec, part, 0, piece.elements);
  collective.kind = signature.kind;
  collective.dtype = input.dtype;
  collective.reduce_op = signature.reduce_op;
  collective.root = signature.root;
  collective.elements = piece.elements;
  collective.digest = DigestOf(input);
  if (cpu().Prepare(collective)) prepared_ = &request;
}

void Lane::Ended(const Request& request) {
  --live_;
  if (prepared_ != &request) return;
  cpu().TakeBack(/*never=*/true);
  prepared_ = nullptr;
}

void Lane::Add(Way way, std::vector<LaneBucket> buckets) {
  WayState& state = Of(way);
  batches_.push_back(static_cast<int>(buckets.size()));
  for (LaneBucket& bucket : buckets) {
    const bool by_all = bucket.peer < 0;
    crosses_ |= by_all && state.backend->connects();
    bucket.batch = batch_ + batches_.size() - 1;
    state.queue.push_back(std::move(bucket));
    // In plan order, also of different process sets, on all ranks: what communicators of a device
    // have to be used in.
    if (state.communicator->takes_several()) Start(state);
  }
}

int Lane::TakeFinishedBatches() {
  int finished = 0;
  for (; !batches_.empty() && batches_.front() == 0; batches_.pop_front()) {
    ++batch_;
    ++finished;
  }
  return finished;
}

bool Lane::BeginFarewell() {
  farewell_ = crosses_ ? Farewell::kUnderWay : Farewell::kOver;
  if (!crosses_) return true;
  Collective barrier;
  barrier.kind = OpKind::kBarrier;
  barrier.sequence = UINT64_MAX;  // behind all others
  cpu().Start(barrier);
  return AdvanceFarewell();
}

bool Lane::AdvanceFarewell() {
  while (farewell_ == Farewell::kUnderWay) {
    const absl::StatusOr<Progress> progress = cpu().Advance();
    if (!progress.ok() || *progress == Progress::kDone) farewell_ = Farewell::kOver;
    if (progress.ok() && *progress == Progress::kBlocked) break;
  }
  return farewell_ == Farewell::kOver;
}

void Lane::Start(WayState& way) {
  LaneBucket& bucket = way.queue[way.started++];
  Collective collective;
  collective.kind = bucket.kind;
  collective.dtype = bucket.dtype;
  collective.reduce_op = bucket.reduce_op;
  collective.root = bucket.root;
  collective.peer = bucket.peer;
  collective.prescale = bucket.prescale;
  collective.postscale = bucket.postscale;
  collective.divisor = bucket.divisor;
  collective.compression = bucket.compression;
  collective.automatic = bucket.automatic;
  collective.absent = bucket.absent;
  collective.sequence = bucket.sequence;
  collective.pieces = bucket.pieces;
  collective.elements = bucket.elements;
  collective.counts = bucket.counts;
  collective.digest = bucket.digest;
  collective.timed = bucket.timed;
  collective.ready = bucket.ready;
  bucket.started_at =
      trace::Record(trace::Event::kBucketStart, bucket.first_id, static_cast<uint64_t>(set_),
                    static_cast<uint64_t>(bucket.elements) * DTypeSize(bucket.dtype));
  way.communicator->Start(collective);
}

absl::StatusOr<Progress> Lane::Advance(Way way) {
  WayState& state = Of(way);
  if (state.started == 0) {
    const LaneBucket& bucket = state.queue.front();
    if (prepared_ != nullptr && (bucket.requests.size() != 1 || bucket.requests[0] != prepared_)) {
      cpu().TakeBack(/*never=*/true);  // what others began was not that
    }
    prepared_ = nullptr;
    Start(state);
  }
  return state.communicator->Advance();
}

void Lane::TakeEnqueued(Way way, std::vector<Request*>* enqueued) {
  WayState& state = Of(way);
  while (state.enqueued < state.started) {
    const DeviceEvent event = state.communicator->NextEnqueued();
    if (event == nullptr) return;
    for (Request* request : state.queue[state.enqueued++].requests) {
      if (request == nullptr) continue;
      request->event = event;
      if (--request->buckets_to_enqueue == 0) enqueued->push_back(request);
    }
  }
}

void Lane::Abort() {
  for (WayState& way : ways_) {
    if (way.communicator != nullptr) way.communicator->Abort();
  }
  if (std::exchange(aborted_, true)) return;
  for (const WayState& way : ways_) {
    for (const LaneBucket& bucket : way.queue) {
      if (IsCompressed(bucket)) compression_.Ended(set_);
    }
  }
}

LaneBucket Lane::Pop(Way way) {
  WayState& state = Of(way);
  LaneBucket bucket = std::move(state.queue.front());
  state.queue.pop_front();
  --state.started;
  if (state.enqueued > 0) {
    --state.enqueued;
  } else {  // it ended before it was asked for
    for (Request* request : bucket.requests) {
      if (request != nullptr) --request->buckets_to_enqueue;
    }
  }
  --batches_[bucket.batch - batch_];
  if (!aborted_ && IsCompressed(bucket)) compression_.Ended(set_);
  bucket.done_at =
      trace::Record(trace::Event::kBucketDone, bucket.first_id, static_cast<uint64_t>(set_),
                    static_cast<uint64_t>(bucket.elements) * DTypeSize(bucket.dtype));
  // One that was enqueued behind another did not begin before that one's end.
  bucket.started_at = std::max(bucket.started_at, state.done_at);
  state.done_at = bucket.done_at;
  return bucket;
}

namespace {

// What the ranks give or get of one part, in elements: see Collective::counts.
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
  CompressionState* state = nullptr;
  Compression compression;
  bool agrees = false;  // the ranks do, on what `auto` takes from now on
};

// How a part is compressed: the same on all ranks, also on those that have joined. `measures`:
// whether `auto` looks for something better than none.
void Compress(bool measures, CompressionStates* states, Source* source) {
  const TensorSpec& spec = *source->operation->spec;
  source->compression = spec.signature.compression;
  if (source->compression.none()) return;
  const auto part = static_cast<size_t>(source->part);
  const bool is_group = spec.signature.is_group();
  const std::string& name = is_group ? spec.signature.part_names[part] : spec.name;
  if (!name.empty()) source->state = states->Find(spec.set, spec.signature.kind, name);
  if (source->compression.compressor != Compressor::kAuto) return;
  source->compression.compressor = Compressor::kNone;
  // Nothing can be learned of what has no name.
  if (source->state == nullptr || !measures) return;
  AutomaticChoice& automatic = source->state->automatic;
  const PartSignature& signature = spec.signature.parts[part];
  source->compression.compressor =
      automatic.Next(signature.shape.elements() * static_cast<int64_t>(DTypeSize(signature.dtype)));
  source->agrees = automatic.agrees();
}

// Whether two parts of a batch may share a bucket.
bool SameKin(const Source& one, const Source& other) {
  const Signature& a = one.operation->spec->signature;
  const Signature& b = other.operation->spec->signature;
  return a.kind == b.kind && a.reduce_op == b.reduce_op && a.root == b.root &&
         a.device == b.device && a.urgent == b.urgent && a.compression == b.compression &&
         one.compression == other.compression && one.agrees == other.agrees &&
         (one.state == nullptr) == (other.state == nullptr);
}

// What `auto` takes for each part alone would cut a batch into buckets of one or two: those of one
// kind come together.
void SortAutomatic(std::vector<Source>* sources) {
  const auto is_auto = [](const Source& source) {
    return source.operation->spec->signature.compression.compressor == Compressor::kAuto;
  };
  const auto kind = [](const Source& source) {
    return std::tuple(source.compression.compressor, source.agrees, source.state == nullptr);
  };
  for (auto begin = sources->begin(); begin != sources->end();) {
    begin = std::find_if(begin, sources->end(), is_auto);
    const auto end = std::find_if_not(begin, sources->end(), is_auto);
    std::stable_sort(begin, end,
                     [&](const Source& a, const Source& b) { return kind(a) < kind(b); });
    begin = end;
  }
}

// `compressed`: some of the batch is to be.
void PlanInputs(const LaneBatch& batch, bool compressed, bool measures, CompressionStates* states,
                std::vector<FusionInput>* inputs, std::vector<Source>* sources) {
  for (const LaneOperation& operation : batch.operations) {
    const int parts = static_cast<int>(operation.parts.size());
    for (int part = parts == 0 ? -1 : 0; part < parts; ++part) {
      sources->push_back({&operation, part});
      if (part >= 0) Compress(measures, states, &sources->back());
    }
  }
  if (compressed) SortAutomatic(sources);
  uint64_t kin = 0;
  for (size_t i = 0; i < sources->size(); ++i) {
    const Source& source = (*sources)[i];
    if (i > 0 && !SameKin((*sources)[i - 1], source)) ++kin;
    const int64_t elements =
        source.part < 0 ? 0 : PlannedElements(*source.operation, static_cast<size_t>(source.part));
    inputs->push_back(InputOf(*source.operation->spec, source.part, kin, elements));
  }
}

// A tensor's, by its own name: in whatever group it is, the same member has the same range of it.
uint64_t IdentityOf(const Source& source) {
  const TensorSpec& spec = *source.operation->spec;
  const auto part = static_cast<size_t>(source.part);
  if (!spec.signature.is_group() || spec.unnamed()) return spec.identity + part;
  return rueda::IdentityOf(spec.set, spec.signature.part_names[part], spec.signature.kind);
}

// Ranks that had chosen otherwise would each wait for something else: it is an error on all.
uint32_t DigestOf(uint32_t planned, const LaneBucket& bucket, bool agrees) {
  const auto how = static_cast<uint32_t>(bucket.compression.compressor) * 2 + agrees;
  return planned ^ (how << 1);  // which leaves it odd
}

}  // namespace

void MakeBuckets(const LaneBatch& batch, const ProcessSet& set, int64_t bucket_bytes, bool measures,
                 CompressionStates* states, std::vector<LaneBucket>* buckets) {
  std::vector<FusionInput> inputs;
  std::vector<Source> sources;
  const bool compressed = std::any_of(
      batch.operations.begin(), batch.operations.end(),
      [](const LaneOperation& operation) { return !operation.spec->signature.compression.none(); });
  const SetId set_id = batch.operations.front().spec->set;
  if (compressed) states->Began(set_id);
  PlanInputs(batch, compressed, measures, states, &inputs, &sources);
  std::vector<Bucket> plan;
  PlanFusion(inputs, bucket_bytes, &plan);
  for (const Bucket& planned : plan) {
    const Source& first_source = sources[planned.placements.front().input];
    const LaneOperation& first = *first_source.operation;
    const Signature& signature = first.spec->signature;
    LaneBucket bucket;
    bucket.kind = signature.kind;
    bucket.reduce_op = signature.reduce_op;
    bucket.dtype = planned.dtype;
    bucket.root = signature.root < 0 ? -1 : set.IndexOf(signature.root);
    bucket.peer = signature.peer < 0 ? -1 : set.IndexOf(signature.peer);
    bucket.prescale = batch.prescale;
    bucket.postscale = batch.postscale;
    bucket.divisor = DivisorOf(signature.reduce_op, set, batch.absent.size());
    bucket.compression = first_source.compression;
    bucket.automatic = measures && signature.compression.compressor == Compressor::kAuto &&
                       first_source.state != nullptr;
    bucket.absent = batch.absent;
    bucket.sequence = batch.sequence;
    bucket.elements = planned.elements;
    bucket.digest = DigestOf(planned.digest, bucket, first_source.agrees);
    bucket.first_id = first.id;
    for (const Placement& placement : planned.placements) {
      const Source& source = sources[placement.input];
      if (Request* const request = source.operation->request; request != nullptr) {
        ++request->buckets_left;
        ++request->buckets_to_enqueue;
        if (request->ready != nullptr &&
            (bucket.ready.empty() || bucket.ready.back() != request->ready)) {
          bucket.ready.push_back(request->ready);
        }
      }
      bucket.requests.push_back(source.operation->request);
      if (source.part < 0) continue;
      const PartArgs& part = source.operation->parts[source.part];
      // Nothing of it, and it must not keep the rest from being reduced where it lies.
      if (signature.kind == OpKind::kAllreduce && part.shape.elements() == 0) continue;
      bucket.pieces.push_back({part.input, part.output, part.shape.elements(),
                               part.shape.rank() > 0 ? part.shape.dim(0) : 1, IdentityOf(source),
                               source.state});
      AppendCounts(*source.operation, static_cast<size_t>(source.part), set, &bucket.counts);
    }
    if (IsCompressed(bucket)) states->Began(set_id);
    buckets->push_back(std::move(bucket));
  }
  if (compressed) states->Ended(set_id);
}

}  // namespace rueda
