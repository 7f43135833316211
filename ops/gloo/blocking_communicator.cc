#include "ops/gloo/blocking_communicator.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/base/threads.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/reduce.h"

namespace rueda {
namespace {

// What goes through the library in one call. It bounds the memory for packing; all members must use
// the same.
constexpr int64_t kChunkBytes = 16 << 20;
// What is packed, converted and scaled at a time: it stays in a core's cache meanwhile.
constexpr int64_t kBlockElements = 64 << 10;
// How long a library may take to let go of an aborted operation. It needs milliseconds.
constexpr Nanos kAbortPatience = 30 * kSecond;

struct Reduction {
  DType dtype;
  ReduceOp op;
};

void ReduceTwo(void* user, void* destination, const void* a, const void* b, size_t count) {
  const auto* reduction = static_cast<const Reduction*>(user);
  const void* const sources[] = {a, b};
  kernels::Reduce(reduction->dtype, reduction->op, sources, destination,
                  static_cast<int64_t>(count), {});
}

}  // namespace

BlockingCommunicator::BlockingCommunicator(ModuleArgs args, std::unique_ptr<LaneStore> store,
                                           rueda_module_communicator* library)
    : module_(args.module),
      members_(args.members),
      self_(args.self),
      store_(std::move(store)),
      wake_(std::move(args.wake)),
      library_(library),
      thread_({.at_end = [this] { CloseLibrary(); }}) {}

absl::StatusOr<std::unique_ptr<BlockingCommunicator>> BlockingCommunicator::Create(
    ModuleArgs args) {
  auto store = std::make_unique<LaneStore>(args.store);
  RUEDA_ASSIGN_OR_RETURN(rueda_module_communicator * library, CreateInModule(args, store.get()));
  std::unique_ptr<BlockingCommunicator> communicator(
      new BlockingCommunicator(std::move(args), std::move(store), library));
  RUEDA_RETURN_IF_ERROR(communicator->thread_.Start());
  return communicator;
}

BlockingCommunicator::~BlockingCommunicator() {
  {
    MutexLock lock(mutex_);
    Cancel();
  }
  thread_.End();
  CloseLibrary();  // unless the thread has
}

// The engine's side ---------------------------------------------------------------------------

void BlockingCommunicator::Start(const BucketOperation& operation) {
  MutexLock lock(mutex_);
  RUEDA_CHECK(state_ == State::kIdle) << "an operation was started before the last one's end";
  operation_ = operation;
  state_ = State::kQueued;
  thread_.Add([this] { Work(); });
}

absl::StatusOr<Progress> BlockingCommunicator::Advance() {
  MutexLock lock(mutex_);
  if (state_ != State::kDone) return Progress::kBlocked;
  state_ = State::kIdle;
  if (!result_.ok()) return result_;
  return Progress::kDone;
}

std::optional<Silence> BlockingCommunicator::SilentMember() {
  MutexLock lock(mutex_);
  return rueda::SilentMember(*module_, library_);
}

void BlockingCommunicator::Abort() {
  const Nanos deadline = MonotonicNow() + kAbortPatience;
  MutexLock lock(mutex_);
  Cancel();
  // While it connects the thread touches no tensor, and later it finds that it need not begin.
  while (state_ == State::kMoving) {
    const Nanos left = deadline - MonotonicNow();
    RUEDA_CHECK(left > 0) << module_->name << " does not let go of an aborted operation";
    changed_.WaitFor(mutex_, std::chrono::nanoseconds(left));
  }
}

void BlockingCommunicator::Cancel() {
  cancelled_.store(true, std::memory_order_relaxed);
  store_->Abort();
  if (library_ != nullptr) module_->abort(library_);
  thread_.BeginEnd();
}

// The lane thread -----------------------------------------------------------------------------

void BlockingCommunicator::Work() {
  {
    MutexLock lock(mutex_);
    if (!Cancelled().ok()) return;
    state_ = State::kConnecting;
  }
  absl::Status result = WithoutExceptions([this] { return RunOperation(); });
  {
    MutexLock lock(mutex_);
    result_ = std::move(result);
    state_ = State::kDone;
    changed_.NotifyAll();
  }
  wake_();
}

// Closes the connections, which tells the peers.
void BlockingCommunicator::CloseLibrary() {
  rueda_module_communicator* library;
  {
    MutexLock lock(mutex_);
    library = std::exchange(library_, nullptr);
  }
  if (library != nullptr) module_->destroy(library);
}

absl::Status BlockingCommunicator::RunOperation() {
  absl::Status status = Connect();
  if (status.ok()) {
    {
      MutexLock lock(mutex_);
      RUEDA_RETURN_IF_ERROR(Cancelled());
      state_ = State::kMoving;
    }
    status = Move();
  }
  if (absl::IsDeadlineExceeded(status)) return absl::UnavailableError(status.message());
  return status;
}

absl::Status BlockingCommunicator::Connect() {
  if (connected_) return absl::OkStatus();
  // A send/recv concerns nobody but the other one.
  const bool pair = operation_.kind == OpKind::kSendRecv;
  const int peer = !pair ? -1 : operation_.root == self_ ? operation_.peer : operation_.root;
  char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
  RUEDA_RETURN_IF_ERROR(StatusOf(module_->connect(library_, peer, message), message));
  connected_ = !pair;
  return absl::OkStatus();
}

absl::Status BlockingCommunicator::Move() {
  times_ = {};
  pieces_.Reset(operation_.pieces, DTypeSize(operation_.dtype));
  switch (operation_.kind) {
    case OpKind::kAllreduce:
    case OpKind::kReduce:
      return Allreduce();
    case OpKind::kAllgather:
      return Allgather();
    case OpKind::kBroadcast:
      return Broadcast();
    case OpKind::kBarrier:
      return Barrier();
    case OpKind::kGather:
    case OpKind::kScatter:
    case OpKind::kAlltoall:
    case OpKind::kReducescatter:
      return Exchange();
    case OpKind::kSendRecv:
      return SendOrReceive();
    default:
      return absl::InternalError("no operation that moves data");
  }
}

absl::Status BlockingCommunicator::Allreduce() {
  wire_ = kernels::WireOf(operation_.dtype, operation_.reduce_op, operation_.scaling, members_);
  const size_t wire_bytes = DTypeSize(wire_.type);
  const int64_t chunk = kChunkBytes / static_cast<int64_t>(wire_bytes);
  in_place_ = pieces_.single() && !wire_.widens() && operation_.pieces[0].output != nullptr &&
              operation_.pieces[0].input != nullptr;
  char* wire = nullptr;
  if (!in_place_ && operation_.elements > 0) {
    wire = Scratch(static_cast<size_t>(std::min(chunk, operation_.elements)) * wire_bytes);
    if (wire == nullptr) return absl::ResourceExhaustedError("no memory for a fusion buffer");
  }
  Reduction how = {wire_.type, operation_.reduce_op};
  const rueda_module_reduction reduction = {&how, &ReduceTwo, wire_bytes};
  for (int64_t begin = 0; begin < operation_.elements; begin += chunk) {
    const int64_t end = std::min(begin + chunk, operation_.elements);
    if (in_place_) {
      wire =
          static_cast<char*>(operation_.pieces[0].output) + static_cast<size_t>(begin) * wire_bytes;
    }
    const Nanos fill_at = MonotonicNow();
    Fill(begin, end, wire);
    const Nanos filled_at = MonotonicNow();
    RUEDA_RETURN_IF_ERROR(Cancelled());
    char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
    RUEDA_RETURN_IF_ERROR(
        StatusOf(module_->allreduce(library_, wire, static_cast<size_t>(end - begin), &reduction,
                                    NextTag(), message),
                 message));
    const Nanos drain_at = MonotonicNow();
    Drain(begin, end, wire);
    times_.pack += filled_at - fill_at;
    times_.unpack += MonotonicNow() - drain_at;
    if (!in_place_ && operation_.elements <= chunk) {
      times_.packed_at = filled_at;
      times_.unpacking_at = drain_at;
    }
  }
  return absl::OkStatus();
}

// Packs, converts and prescales elements [begin, end) into `wire`.
void BlockingCommunicator::Fill(int64_t begin, int64_t end, char* wire) {
  const size_t element_bytes = DTypeSize(operation_.dtype);
  const size_t wire_bytes = DTypeSize(wire_.type);
  if (operation_.IsAbsent(self_)) {
    kernels::FillNeutral(wire_.type, operation_.reduce_op, wire, end - begin);
    return;
  }
  for (int64_t at = begin; at < end; at += kBlockElements) {
    if (cancelled_.load(std::memory_order_relaxed)) return;
    const int64_t stop = std::min(at + kBlockElements, end);
    char* const to = wire + static_cast<size_t>(at - begin) * wire_bytes;
    const void* from;
    if (pieces_.single()) {
      from = static_cast<const char*>(operation_.pieces[0].input) +
             static_cast<size_t>(at) * element_bytes;
    } else if (wire_.widens()) {
      if (narrow_ == nullptr) narrow_.reset(new char[kBlockElements * kernels::kNarrowBytesMax]);
      pieces_.Pack(at, stop, narrow_.get());
      from = narrow_.get();
    } else {
      pieces_.Pack(at, stop, to);
      from = to;
    }
    if (wire_.widens()) {
      kernels::Widen(wire_, from, to, stop - at);
      from = to;
    }
    if (from != to || !wire_.before.none()) {
      kernels::Reduce(wire_.type, operation_.reduce_op, {&from, 1}, to, stop - at, wire_.before);
    }
  }
}

// Averages, postscales, converts and unpacks elements [begin, end) from `wire`.
void BlockingCommunicator::Drain(int64_t begin, int64_t end, char* wire) {
  const size_t wire_bytes = DTypeSize(wire_.type);
  for (int64_t at = begin; at < end; at += kBlockElements) {
    if (cancelled_.load(std::memory_order_relaxed)) return;
    const int64_t stop = std::min(at + kBlockElements, end);
    const void* from = wire + static_cast<size_t>(at - begin) * wire_bytes;
    if (wire_.widens()) {
      if (narrow_ == nullptr) narrow_.reset(new char[kBlockElements * kernels::kNarrowBytesMax]);
      kernels::Combine(wire_, operation_.reduce_op, {&from, 1}, narrow_.get(), stop - at);
      from = narrow_.get();
    } else if (!wire_.after.none()) {
      kernels::Combine(wire_, operation_.reduce_op, {&from, 1}, const_cast<void*>(from), stop - at);
    }
    if (!in_place_) pieces_.Unpack(at, stop, from);
  }
}

absl::Status BlockingCommunicator::Allgather() {
  channels_.Reset(operation_, self_, members_);
  std::vector<int64_t> bytes(static_cast<size_t>(members_));
  for (int member = 0; member < members_; ++member) {
    bytes[member] = static_cast<int64_t>(channels_.taken(member).left());
  }
  const size_t total = static_cast<size_t>(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
  if (total == 0) return absl::OkStatus();
  // The parts are passed on from member to member: even one that does not want them needs them.
  char* data = pieces_.single() ? static_cast<char*>(operation_.pieces[0].output) : nullptr;
  const bool unpack = data == nullptr;
  if (unpack) data = Scratch(total);
  if (data == nullptr) return absl::ResourceExhaustedError("no memory for a gathered tensor");
  char* const own = data + std::accumulate(bytes.begin(), bytes.begin() + self_, int64_t{0});
  if (own != operation_.pieces[0].input) channels_.own().CopyTo(own, total);
  char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
  RUEDA_RETURN_IF_ERROR(
      StatusOf(module_->allgatherv(library_, data, bytes.data(), NextTag(), message), message));
  for (int member = 0; unpack && member < members_; ++member) {
    data += channels_.taken(member).CopyFrom(data, total);
  }
  return absl::OkStatus();
}

absl::Status BlockingCommunicator::Broadcast() {
  const size_t element_bytes = DTypeSize(operation_.dtype);
  const bool root = operation_.root == self_;
  const int64_t chunk = kChunkBytes / static_cast<int64_t>(element_bytes);
  const Piece& first = operation_.pieces[0];
  char* const whole = static_cast<char*>(root ? const_cast<void*>(first.input) : first.output);
  const bool direct = pieces_.single() && whole != nullptr;
  for (int64_t begin = 0; begin < operation_.elements; begin += chunk) {
    RUEDA_RETURN_IF_ERROR(Cancelled());
    const int64_t end = std::min(begin + chunk, operation_.elements);
    const size_t size = static_cast<size_t>(end - begin) * element_bytes;
    char* const data = direct ? whole + static_cast<size_t>(begin) * element_bytes : Scratch(size);
    if (data == nullptr) return absl::ResourceExhaustedError("no memory for a broadcast");
    if (root && !direct) pieces_.Pack(begin, end, data);
    char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
    RUEDA_RETURN_IF_ERROR(StatusOf(
        module_->broadcast(library_, data, size, operation_.root, NextTag(), message), message));
    if (!direct || (root && first.output != first.input)) pieces_.Unpack(begin, end, data);
  }
  return absl::OkStatus();
}

absl::Status BlockingCommunicator::Exchange() {
  channels_.Reset(operation_, self_, members_);
  // Whole elements of any dtype; the same on all members.
  const size_t channel_bytes = std::max<size_t>(
      static_cast<size_t>(kChunkBytes) / static_cast<size_t>(members_) / 64 * 64, 4 << 10);
  for (size_t done = 0; done < channels_.longest(); done += channel_bytes) {
    RUEDA_RETURN_IF_ERROR(Cancelled());
    RUEDA_RETURN_IF_ERROR(ExchangeRound(channel_bytes));
  }
  return absl::OkStatus();
}

// Adds what goes to `taker` in this round: from where it is, or packed into `*scratch`.
size_t BlockingCommunicator::Collect(int taker, size_t channel_bytes,
                                     std::vector<rueda_module_transfer>* sends, char** scratch) {
  Stream& given = channels_.given(channels_.by_taker() ? taker : 0);
  const size_t bytes = std::min(channel_bytes, given.left());
  if (bytes == 0) return 0;
  char* data = given.Contiguous(bytes);
  if (data == nullptr) {
    data = *scratch;
    *scratch += bytes;
    given.CopyTo(data, bytes);
  } else {
    given.Take(bytes, [](const char*, size_t, size_t) {});
  }
  sends->push_back({taker, data, bytes});
  return bytes;
}

absl::Status BlockingCommunicator::ExchangeRound(size_t channel_bytes) {
  const bool reduces = operation_.kind == OpKind::kReducescatter;
  const size_t members = static_cast<size_t>(members_);
  char* scratch = Scratch(2 * members * channel_bytes);
  if (scratch == nullptr) return absl::ResourceExhaustedError("no memory for an exchange");
  std::vector<rueda_module_transfer> sends, receives;
  std::vector<char*> received(members, nullptr);
  for (int peer = 0; peer < members_; ++peer) {
    if (peer == self_) continue;
    if (operation_.Gets(peer)) Collect(peer, channel_bytes, &sends, &scratch);
    const Stream& taken = reduces ? channels_.own() : channels_.taken(peer);
    const size_t bytes = std::min(channel_bytes, taken.left());
    if (bytes == 0) continue;
    char* const place = reduces ? nullptr : taken.Contiguous(bytes);
    received[peer] = place == nullptr ? scratch : place;
    if (place == nullptr) scratch += bytes;
    receives.push_back({peer, received[peer], bytes});
  }
  char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
  const uint32_t tag = NextTag();
  if (!sends.empty() || !receives.empty()) {
    RUEDA_RETURN_IF_ERROR(
        StatusOf(module_->exchange(library_, sends.data(), sends.size(), receives.data(),
                                   receives.size(), tag, message),
                 message));
  }
  if (reduces) {
    ReduceRound(received, std::min(channel_bytes, channels_.own().left()));
    return absl::OkStatus();
  }
  for (const rueda_module_transfer& receive : receives) {
    channels_.taken(receive.peer).CopyFrom(static_cast<const char*>(receive.data), receive.bytes);
  }
  channels_.own().PassTo(&channels_.taken(self_), channel_bytes);
  return absl::OkStatus();
}

// Reduces what those who give have sent, and this member's own, in member order: as the
// shared-memory backend does.
void BlockingCommunicator::ReduceRound(absl::Span<char* const> received, size_t bytes) {
  const size_t element_bytes = DTypeSize(operation_.dtype);
  std::vector<const void*> sources;
  channels_.taken(0).Take(bytes, [&](char* to, size_t offset, size_t extent) {
    channels_.own().Take(extent, [&](const char* own, size_t at, size_t size) {
      if (to == nullptr) return;
      sources.clear();
      for (int i = 0; i < members_; ++i) {
        if (operation_.IsAbsent(i)) continue;
        sources.push_back(i == self_ ? own : received[static_cast<size_t>(i)] + offset + at);
      }
      kernels::Reduce(operation_.dtype, operation_.reduce_op, sources, to + at,
                      static_cast<int64_t>(size / element_bytes), operation_.scaling);
    });
  });
}

absl::Status BlockingCommunicator::SendOrReceive() {
  const Piece& piece = operation_.pieces[0];
  const bool sends = operation_.root == self_;
  const int peer = sends ? operation_.peer : operation_.root;
  const auto bytes =
      static_cast<int64_t>(static_cast<size_t>(piece.elements) * DTypeSize(operation_.dtype));
  char* const data = static_cast<char*>(sends ? const_cast<void*>(piece.input) : piece.output);
  // The others don't count this operation.
  const auto tag = static_cast<uint32_t>(operation_.sequence * 0x9e3779b1u) ^ operation_.digest;
  for (int64_t begin = 0; begin < bytes; begin += kChunkBytes) {
    RUEDA_RETURN_IF_ERROR(Cancelled());
    const rueda_module_transfer transfer = {
        peer, data + begin, static_cast<size_t>(std::min(kChunkBytes, bytes - begin))};
    char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
    RUEDA_RETURN_IF_ERROR(StatusOf(module_->exchange(library_, &transfer, sends ? 1 : 0, &transfer,
                                                     sends ? 0 : 1, tag, message),
                                   message));
  }
  return absl::OkStatus();
}

absl::Status BlockingCommunicator::Barrier() {
  char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
  return StatusOf(module_->barrier(library_, NextTag(), message), message);
}

char* BlockingCommunicator::Scratch(size_t bytes) {
  if (scratch_bytes_ < bytes) {
    scratch_.reset();
    scratch_.reset(new (std::nothrow) char[bytes]);
    scratch_bytes_ = scratch_ == nullptr ? 0 : bytes;
  }
  return scratch_.get();
}

// Differs from call to call, and from member to member if their buckets differ: those then don't
// meet and time out, rather than add up what does not belong together.
uint32_t BlockingCommunicator::NextTag() {
  return (++operations_ * 0x9e3779b1u) ^ operation_.digest;
}

absl::Status BlockingCommunicator::Cancelled() const {
  return cancelled_.load(std::memory_order_relaxed)
             ? absl::AbortedError("the operation was aborted")
             : absl::OkStatus();
}

absl::Status BlockingCommunicator::StatusOf(int32_t code, const char* message) const {
  return ModuleStatus(*module_, code, message);
}

}  // namespace rueda
