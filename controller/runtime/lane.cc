#include "controller/runtime/lane.h"

#include <algorithm>
#include <utility>

#include "core/trace/recorder.h"

namespace rueda {
namespace {

// How a part is compressed. `measures`: whether `auto` looks for something better than none.
PartCompression HowToCompress(const TensorSpec& spec, size_t part, bool measures,
                              CompressionStates* states) {
  PartCompression how = {.compression = spec.signature.compression};
  if (how.compression.none()) return how;
  const bool is_group = spec.signature.is_group();
  const std::string& name = is_group ? spec.signature.part_names[part] : spec.name;
  if (!name.empty()) how.state = states->Find(spec.set, spec.signature.kind, name);
  if (how.compression.compressor != Compressor::kAuto) return how;
  how.compression.compressor = Compressor::kNone;
  // Nothing can be learned of what has no name.
  if (how.state == nullptr || !measures) return how;
  AutomaticChoice& choice = how.state->automatic;
  const PartSignature& signature = spec.signature.parts[part];
  how.automatic = true;
  how.compression.compressor =
      choice.Next(signature.shape.elements() * static_cast<int64_t>(DTypeSize(signature.dtype)));
  how.agrees = choice.agrees();
  return how;
}

}  // namespace

Way WayOf(const Signature& signature) {
  if (signature.device == DeviceType::kCpu) return Way::kCpu;
  return signature.urgent ? Way::kUrgent : Way::kDevice;
}

void Lane::Prepare(const Request& request) {
  EarlyStart* const early = Of(Way::kCpu).early;
  if (early == nullptr || prepared_ == &request) return;  // announcing it was tried before
  const TensorSpec& spec = *request.spec;
  const Signature& signature = spec.signature;
  if (prepared_ != nullptr) early->TakeBack(/*never=*/false);
  if (live_ != 1 || busy() || signature.device != DeviceType::kCpu || signature.parts.size() > 1 ||
      request.extras.first_dims.size() > 0 || !signature.compression.none() ||
      signature.reduce_op == ReduceOp::kAdasum ||
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
  collective.traits() = signature.traits();
  collective.dtype = input.dtype;
  collective.elements = piece.elements;
  collective.digest = DigestOf(input);
  if (early->Prepare(collective)) prepared_ = &request;
}

void Lane::Ended(const Request& request) {
  --live_;
  if (prepared_ != &request) return;
  Of(Way::kCpu).early->TakeBack(/*never=*/true);
  prepared_ = nullptr;
}

std::vector<LaneBucket> Lane::Plan(const LaneBatch& batch, const ProcessSet& set,
                                   int64_t bucket_bytes) {
  const bool compressed = std::any_of(
      batch.operations.begin(), batch.operations.end(),
      [](const LaneOperation& operation) { return !operation.spec->signature.compression.none(); });
  if (!compressed) return MakeBuckets(batch, set, bucket_bytes, {});
  compression_.Began(set_);
  std::vector<PartCompression> parts;
  for (const LaneOperation& operation : batch.operations) {
    for (size_t part = 0; part < operation.parts.size(); ++part) {
      parts.push_back(HowToCompress(*operation.spec, part, measures(), &compression_));
    }
  }
  std::vector<LaneBucket> buckets = MakeBuckets(batch, set, bucket_bytes, parts);
  for (const LaneBucket& bucket : buckets) {
    if (bucket.collective.compressed()) compression_.Began(set_);
  }
  compression_.Ended(set_);
  return buckets;
}

void Lane::Add(Way way, std::vector<LaneBucket> buckets) {
  WayState& state = Of(way);
  batches_.push_back(static_cast<int>(buckets.size()));
  for (LaneBucket& bucket : buckets) {
    const bool by_all = bucket.collective.peer < 0;
    crosses_ |= by_all && state.backend->connects();
    bucket.batch = batch_ + batches_.size() - 1;
    for (Request* request : bucket.requests) {
      if (request == nullptr) continue;
      ++request->buckets_left;
      ++request->buckets_to_enqueue;
    }
    state.queue.push_back(std::move(bucket));
    // In plan order, also of different process sets, on all ranks: what communicators of a device
    // have to be used in.
    if (state.enqueuing != nullptr) Start(state);
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
  bucket.started_at = trace::Record(trace::Event::kBucketStart, bucket.first_id,
                                    static_cast<uint64_t>(set_), bucket.bytes());
  way.communicator->Start(bucket.Complete());
}

absl::StatusOr<Progress> Lane::Advance(Way way) {
  WayState& state = Of(way);
  if (state.started == 0) {
    const LaneBucket& bucket = state.queue.front();
    if (prepared_ != nullptr && (bucket.requests.size() != 1 || bucket.requests[0] != prepared_)) {
      Of(Way::kCpu).early->TakeBack(/*never=*/true);  // what others began was not that
    }
    prepared_ = nullptr;
    Start(state);
  }
  return state.communicator->Advance();
}

void Lane::TakeEnqueued(Way way, std::vector<Request*>* enqueued) {
  WayState& state = Of(way);
  while (state.enqueuing != nullptr && state.enqueued < state.started) {
    const DeviceEvent event = state.enqueuing->NextEnqueued();
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
      if (bucket.collective.compressed()) compression_.Ended(set_);
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
  if (!aborted_ && bucket.collective.compressed()) compression_.Ended(set_);
  bucket.done_at = trace::Record(trace::Event::kBucketDone, bucket.first_id,
                                 static_cast<uint64_t>(set_), bucket.bytes());
  // One that was enqueued behind another did not begin before that one's end.
  bucket.started_at = std::max(bucket.started_at, state.done_at);
  state.done_at = bucket.done_at;
  return bucket;
}

}  // namespace rueda
