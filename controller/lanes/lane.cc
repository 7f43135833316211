#include "controller/lanes/lane.h"

#include <algorithm>
#include <utility>

#include "core/trace/recorder.h"
#include "ops/hierarchical/inline_operation.h"

namespace rueda {
namespace {

// How long after an operation what it has sent may be on its way.
constexpr Nanos kSendsOnFor = 60 * kSecond;

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

Queue QueueOf(const Signature& signature) {
  switch (signature.priority) {
    case Priority::kUrgent:
      return Queue::kUrgent;
    case Priority::kLow:
      return Queue::kLow;
    case Priority::kNormal:
      break;
  }
  return signature.device == DeviceType::kCpu ? Queue::kCpu : Queue::kDevice;
}

bool Lane::IsOfLowPriority(const Request& request) {
  return QueueOf(request.spec->signature) == Queue::kLow;
}

void Lane::Prepare(const Request& request) {
  EarlyStart* const early = Of(Queue::kCpu).early;
  if (IsOfLowPriority(request)) return;                   // others begin early all the same
  if (early == nullptr || prepared_ == &request) return;  // announcing it was tried before
  const TensorSpec& spec = *request.spec;
  const Signature& signature = spec.signature;
  if (prepared_ != nullptr) early->TakeBack();
  if (in_flight_ != 1 || QueueOf(signature) != Queue::kCpu || busy(Queue::kCpu) ||
      signature.parts.size() > 1 || request.extras.first_dims.size() > 0 ||
      !signature.compression.none() || signature.reduce_op == ReduceOp::kAdasum ||
      !(TraitsOf(signature.kind).reduces || signature.kind == OpKind::kBarrier)) {
    return;
  }
  BucketOperation operation;
  Piece piece;
  const int part = signature.parts.empty() ? -1 : 0;
  if (part == 0) {
    piece.input = request.parts[0].input;
    piece.output = request.parts[0].output;
    piece.elements = request.parts[0].shape.elements();
    operation.pieces = {&piece, 1};
  }
  const FusionInput input = InputOf(spec, part, 0, piece.elements);
  operation.traits() = signature.traits();
  operation.dtype = input.dtype;
  operation.elements = piece.elements;
  operation.digest = DigestOf(input);
  if (early->Prepare(operation)) prepared_ = &request;
}

void Lane::Ended(const Request& request) {
  in_flight_ -= IsOfLowPriority(request) ? 0 : 1;
  if (prepared_ != &request) return;
  Of(Queue::kCpu).early->Drop();
  prepared_ = nullptr;
}

LaneBuckets Lane::Plan(const LaneBatch& batch, const ProcessSet& set, int64_t bucket_bytes) {
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
  LaneBuckets buckets = MakeBuckets(batch, set, bucket_bytes, parts);
  for (const LaneBucket& bucket : buckets) {
    if (bucket.operation.compressed()) compression_.Began(set_);
  }
  compression_.Ended(set_);
  return buckets;
}

void Lane::Add(Queue queue, LaneBuckets buckets) {
  QueueState& state = Of(queue);
  const bool is_low = queue == Queue::kLow;
  QueueState& farewell = Of(is_low ? Queue::kLow : Queue::kCpu);
  batches_.push_back(is_low ? 0 : static_cast<int>(buckets.size()));
  while (!buckets.empty()) {
    LaneBucket& bucket = buckets.front();
    state.buckets.splice(state.buckets.end(), buckets, buckets.begin());
    const bool by_all = bucket.operation.peer < 0;
    farewell.used_connections |= by_all && bucket.data == nullptr && state.backend->connects();
    bucket.batch = batch_ + batches_.size() - 1;
    for (Request* request : bucket.requests) {
      if (request == nullptr) continue;
      ++request->buckets_left;
      if (state.enqueuing != nullptr) ++request->buckets_to_enqueue;
    }
    // In plan order, also of different process sets, on all ranks: what communicators of a device
    // have to be used in.
    if (state.enqueuing != nullptr) Start(state, &bucket);
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
  BucketOperation barrier;
  barrier.kind = OpKind::kBarrier;
  barrier.sequence = UINT64_MAX;  // behind all others
  for (QueueState& queue : queues_) {
    queue.says_farewell = queue.used_connections;
    if (queue.says_farewell) queue.communicator->Start(barrier);
  }
  return AdvanceFarewell();
}

bool Lane::AdvanceFarewell() {
  bool over = true;
  for (QueueState& queue : queues_) {
    while (queue.says_farewell) {
      const absl::StatusOr<Progress> progress = queue.communicator->Advance();
      if (!progress.ok() || *progress == Progress::kDone) queue.says_farewell = false;
      if (progress.ok() && *progress == Progress::kBlocked) break;
    }
    over &= !queue.says_farewell;
  }
  return over;
}

Nanos Lane::RecordStart(const LaneBucket& bucket) const {
  return trace::Record(trace::Event::kBucketStart, bucket.first_id, static_cast<uint64_t>(set_),
                       bucket.bytes());
}

void Lane::Start(QueueState& queue, LaneBucket* bucket) {
  if (queue.enqueuing != nullptr) queue.to_enqueue.push_back(bucket);
  bucket->started_at = RecordStart(*bucket);
  queue.communicator->Start(bucket->Complete());
}

absl::StatusOr<Progress> Lane::Advance(Queue queue) {
  QueueState& state = Of(queue);
  LaneBucket& bucket = state.buckets.front();
  if (bucket.started_at == 0) {
    if (queue == Queue::kCpu) {
      const bool is_prepared = bucket.requests.size() == 1 && bucket.requests[0] == prepared_;
      // What others began was not that.
      if (prepared_ != nullptr && !is_prepared) state.early->Drop();
      prepared_ = nullptr;
    }
    if (bucket.data != nullptr) {
      bucket.started_at = RecordStart(bucket);
      RUEDA_RETURN_IF_ERROR(
          ExecuteInline(bucket.Complete(), split_.members, self_, narrow_wire_, *bucket.data));
      return Progress::kDone;
    }
    Start(state, &bucket);
  }
  return state.communicator->Advance();
}

std::optional<Silence> Lane::SilentMember(Nanos now) const {
  std::optional<Silence> silence = SilentMember(Queue::kCpu, now);
  return silence.has_value() ? silence : SilentMember(Queue::kLow, now);
}

std::optional<Silence> Lane::SilentMember(Queue queue, Nanos now) const {
  const QueueState& state = Of(queue);
  const bool is_busy = busy(queue);
  const bool may_have_to_send = state.done_at > 0 && now - state.done_at < kSendsOnFor;
  if (aborted_ || state.probe == nullptr || (!is_busy && !may_have_to_send)) return std::nullopt;
  std::optional<Silence> silence = state.probe->SilentMember();
  if (silence.has_value() && !is_busy && !silence->is_of_large) return std::nullopt;
  return silence;
}

void Lane::TakeEnqueued(Queue queue, std::vector<Request*>* enqueued) {
  QueueState& state = Of(queue);
  for (; !state.to_enqueue.empty(); state.to_enqueue.pop_front()) {
    const DeviceEvent event = state.enqueuing->NextEnqueued();
    if (event == nullptr) return;
    for (Request* request : state.to_enqueue.front()->requests) {
      if (request == nullptr) continue;
      request->event = event;
      if (--request->buckets_to_enqueue == 0) enqueued->push_back(request);
    }
  }
}

void Lane::Abort() {
  for (QueueState& queue : queues_) {
    if (queue.communicator != nullptr) queue.communicator->Abort();
  }
  if (std::exchange(aborted_, true)) return;
  for (const QueueState& queue : queues_) {
    for (const LaneBucket& bucket : queue.buckets) {
      if (bucket.operation.compressed()) compression_.Ended(set_);
    }
  }
}

LaneBuckets Lane::Pop(Queue queue) {
  QueueState& state = Of(queue);
  LaneBuckets popped;
  popped.splice(popped.end(), state.buckets, state.buckets.begin());
  LaneBucket& bucket = popped.front();
  if (!state.to_enqueue.empty() && state.to_enqueue.front() == &bucket) {
    state.to_enqueue.pop_front();  // it ended before it was asked for
    for (Request* request : bucket.requests) {
      if (request != nullptr) --request->buckets_to_enqueue;
    }
  }
  if (queue != Queue::kLow) --batches_[bucket.batch - batch_];
  if (!aborted_ && bucket.operation.compressed()) compression_.Ended(set_);
  bucket.done_at = trace::Record(trace::Event::kBucketDone, bucket.first_id,
                                 static_cast<uint64_t>(set_), bucket.bytes());
  // One that was enqueued behind another did not begin before that one's end.
  bucket.started_at = std::max(bucket.started_at, state.done_at);
  state.done_at = bucket.done_at;
  return popped;
}

}  // namespace rueda
