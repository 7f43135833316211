#include "ops/backend/blocking_communicator.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/base/signals_blocked.h"
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

bool IsHalf(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

// Callbacks of the module. They run on the lane thread.

int32_t Report(const absl::Status& status, char* message) {
  const size_t length = std::min<size_t>(status.message().size(), RUEDA_MODULE_MESSAGE_BYTES - 1);
  std::copy_n(status.message().begin(), length, message);
  message[length] = 0;
  return static_cast<int32_t>(status.code());
}

int32_t StoreSet(void* user, const char* key, const void* value, size_t bytes, char* message) {
  return Report(static_cast<Store*>(user)->Set(
                    key, absl::string_view(static_cast<const char*>(value), bytes)),
                message);
}

int32_t StoreGet(void* user, const char* key, int64_t timeout, void* value, size_t* bytes,
                 char* message) {
  const absl::StatusOr<std::string> found = static_cast<Store*>(user)->Get(key, timeout);
  if (!found.ok()) return Report(found.status(), message);
  if (found->size() > *bytes) {
    return Report(absl::InternalError(absl::StrCat("the value of ", key, " is too long")), message);
  }
  memcpy(value, found->data(), found->size());
  *bytes = found->size();
  return 0;
}

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

BlockingCommunicator::BlockingCommunicator(BlockingArgs args)
    : module_(args.module),
      members_(args.members),
      self_(args.self),
      store_(std::move(args.store)),
      wake_(std::move(args.wake)) {}

absl::StatusOr<std::unique_ptr<BlockingCommunicator>> BlockingCommunicator::Create(
    BlockingArgs args) {
  rueda_module_group group = {};
  group.size = sizeof(group);
  group.members = args.members;
  group.self = args.self;
  const std::string prefix = args.prefix;
  const std::string network_interface = args.network_interface;
  group.prefix = prefix.c_str();
  group.interface = network_interface.c_str();
  group.timeout = args.timeout;
  group.store = {args.store.get(), &StoreSet, &StoreGet};
  std::unique_ptr<BlockingCommunicator> communicator(new BlockingCommunicator(std::move(args)));
  char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
  RUEDA_RETURN_IF_ERROR(communicator->StatusOf(
      communicator->module_->create(&group, &communicator->library_, message), message));
  const SignalsBlocked blocked;
  try {
    communicator->thread_ = std::thread([raw = communicator.get()] { raw->Run(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("starting a lane thread: ", error.what()));
  }
  return communicator;
}

BlockingCommunicator::~BlockingCommunicator() {
  {
    MutexLock lock(mutex_);
    Cancel();
  }
  if (thread_.joinable()) thread_.join();
  if (library_ != nullptr) module_->destroy(library_);  // the thread could not be started
}

// The engine's side ---------------------------------------------------------------------------

void BlockingCommunicator::Start(const Collective& collective) {
  MutexLock lock(mutex_);
  RUEDA_CHECK(state_ == State::kIdle) << "an operation was started before the last one's end";
  collective_ = collective;
  state_ = State::kQueued;
  changed_.NotifyAll();
}

absl::StatusOr<Progress> BlockingCommunicator::Advance() {
  MutexLock lock(mutex_);
  if (state_ != State::kDone) return Progress::kBlocked;
  state_ = State::kIdle;
  if (!result_.ok()) return result_;
  return Progress::kDone;
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
  if (library_ != nullptr) module_->abort(library_);
  changed_.NotifyAll();
}

// The lane thread -----------------------------------------------------------------------------

void BlockingCommunicator::Run() {
  pthread_setname_np(pthread_self(), "rueda-lane");
  while (NextOperation()) {
    absl::Status result = RunOperation();
    {
      MutexLock lock(mutex_);
      result_ = std::move(result);
      state_ = State::kDone;
      changed_.NotifyAll();
    }
    wake_();
  }
  rueda_module_communicator* library;
  {
    MutexLock lock(mutex_);
    library = std::exchange(library_, nullptr);
  }
  module_->destroy(library);
}

// False when there will be none: the communicator has been cancelled.
bool BlockingCommunicator::NextOperation() {
  MutexLock lock(mutex_);
  while (state_ != State::kQueued && Cancelled().ok()) changed_.Wait(mutex_);
  if (!Cancelled().ok()) return false;
  state_ = State::kConnecting;
  return true;
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
  char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
  RUEDA_RETURN_IF_ERROR(StatusOf(module_->connect(library_, message), message));
  connected_ = true;
  return absl::OkStatus();
}

absl::Status BlockingCommunicator::Move() {
  times_ = {};
  wire_ = collective_.kind == OpKind::kAllreduce && IsHalf(collective_.dtype) ? DType::kFloat32
                                                                              : collective_.dtype;
  pieces_.Reset(collective_.pieces, DTypeSize(collective_.dtype));
  switch (collective_.kind) {
    case OpKind::kAllreduce:
      return Allreduce();
    case OpKind::kAllgather:
      return Allgather();
    case OpKind::kBroadcast:
      return Broadcast();
    case OpKind::kBarrier:
      return Barrier();
    case OpKind::kAddProcessSet:
      break;
  }
  return absl::InternalError("no operation that moves data");
}

absl::Status BlockingCommunicator::Allreduce() {
  const size_t wire_bytes = DTypeSize(wire_);
  const int64_t chunk = kChunkBytes / static_cast<int64_t>(wire_bytes);
  in_place_ =
      pieces_.single() && wire_ == collective_.dtype && collective_.pieces[0].output != nullptr;
  char* wire = nullptr;
  if (!in_place_ && collective_.elements > 0) {
    wire = Scratch(static_cast<size_t>(std::min(chunk, collective_.elements)) * wire_bytes);
    if (wire == nullptr) return absl::ResourceExhaustedError("no memory for a fusion buffer");
  }
  Reduction how = {wire_, collective_.reduce_op};
  const rueda_module_reduction reduction = {&how, &ReduceTwo, wire_bytes};
  for (int64_t begin = 0; begin < collective_.elements; begin += chunk) {
    const int64_t end = std::min(begin + chunk, collective_.elements);
    if (in_place_) {
      wire = static_cast<char*>(collective_.pieces[0].output) +
             static_cast<size_t>(begin) * wire_bytes;
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
    if (!in_place_ && collective_.elements <= chunk) {
      times_.packed_at = filled_at;
      times_.unpacking_at = drain_at;
    }
  }
  return absl::OkStatus();
}

// Packs, converts and prescales elements [begin, end) into `wire`.
void BlockingCommunicator::Fill(int64_t begin, int64_t end, char* wire) {
  const DType dtype = collective_.dtype;
  const size_t element_bytes = DTypeSize(dtype);
  const size_t wire_bytes = DTypeSize(wire_);
  const kernels::Scaling before = {collective_.prescale, 1, 1};
  for (int64_t at = begin; at < end; at += kBlockElements) {
    if (cancelled_.load(std::memory_order_relaxed)) return;
    const int64_t stop = std::min(at + kBlockElements, end);
    char* const to = wire + static_cast<size_t>(at - begin) * wire_bytes;
    const void* from;
    if (pieces_.single()) {
      from = static_cast<const char*>(collective_.pieces[0].input) +
             static_cast<size_t>(at) * element_bytes;
    } else if (IsHalf(dtype)) {
      if (halves_ == nullptr) halves_.reset(new char[kBlockElements * element_bytes]);
      pieces_.Pack(at, stop, halves_.get());
      from = halves_.get();
    } else {
      pieces_.Pack(at, stop, to);
      from = to;
    }
    if (IsHalf(dtype)) {
      kernels::ToFloat32(dtype, from, reinterpret_cast<float*>(to), stop - at);
      from = to;
    }
    if (from != to || !before.none()) {
      kernels::Reduce(wire_, collective_.reduce_op, {&from, 1}, to, stop - at, before);
    }
  }
}

// Averages, postscales, converts and unpacks elements [begin, end) from `wire`.
void BlockingCommunicator::Drain(int64_t begin, int64_t end, char* wire) {
  const DType dtype = collective_.dtype;
  const size_t element_bytes = DTypeSize(dtype);
  const size_t wire_bytes = DTypeSize(wire_);
  const kernels::Scaling after = {
      1, collective_.postscale,
      collective_.reduce_op == ReduceOp::kAverage ? static_cast<int64_t>(members_) : 1};
  for (int64_t at = begin; at < end; at += kBlockElements) {
    if (cancelled_.load(std::memory_order_relaxed)) return;
    const int64_t stop = std::min(at + kBlockElements, end);
    const void* from = wire + static_cast<size_t>(at - begin) * wire_bytes;
    if (!after.none()) {
      kernels::Reduce(wire_, collective_.reduce_op, {&from, 1}, const_cast<void*>(from), stop - at,
                      after);
    }
    if (IsHalf(dtype)) {
      if (halves_ == nullptr) halves_.reset(new char[kBlockElements * element_bytes]);
      kernels::FromFloat32(dtype, static_cast<const float*>(from), halves_.get(), stop - at);
      from = halves_.get();
    }
    if (!in_place_) pieces_.Unpack(at, stop, from);
  }
}

absl::Status BlockingCommunicator::Allgather() {
  const auto element_bytes = static_cast<int64_t>(DTypeSize(collective_.dtype));
  std::vector<int64_t> bytes;
  for (const int64_t count : collective_.counts) bytes.push_back(count * element_bytes);
  const int64_t total = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  if (total == 0) return absl::OkStatus();
  // The parts are passed on from member to member: even one that does not want them needs them.
  char* data = static_cast<char*>(collective_.pieces[0].output);
  if (data == nullptr) data = Scratch(static_cast<size_t>(total));
  if (data == nullptr) return absl::ResourceExhaustedError("no memory for a gathered tensor");
  char* const own = data + std::accumulate(bytes.begin(), bytes.begin() + self_, int64_t{0});
  if (bytes[self_] > 0 && own != collective_.pieces[0].input) {
    memcpy(own, collective_.pieces[0].input, static_cast<size_t>(bytes[self_]));
  }
  char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
  return StatusOf(module_->allgatherv(library_, data, bytes.data(), NextTag(), message), message);
}

absl::Status BlockingCommunicator::Broadcast() {
  const Piece& piece = collective_.pieces[0];
  const bool root = collective_.root == self_;
  const int64_t bytes = collective_.elements * static_cast<int64_t>(DTypeSize(collective_.dtype));
  char* data = static_cast<char*>(root ? const_cast<void*>(piece.input) : piece.output);
  const bool unwanted = data == nullptr;
  for (int64_t begin = 0; begin < bytes; begin += kChunkBytes) {
    RUEDA_RETURN_IF_ERROR(Cancelled());
    const auto size = static_cast<size_t>(std::min(kChunkBytes, bytes - begin));
    char* const chunk = unwanted ? Scratch(size) : data + begin;
    if (chunk == nullptr) return absl::ResourceExhaustedError("no memory for a broadcast");
    char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
    RUEDA_RETURN_IF_ERROR(StatusOf(
        module_->broadcast(library_, chunk, size, collective_.root, NextTag(), message), message));
    if (root && piece.output != nullptr && piece.output != piece.input) {
      memcpy(static_cast<char*>(piece.output) + begin, chunk, size);
    }
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
  return (++operations_ * 0x9e3779b1u) ^ collective_.digest;
}

absl::Status BlockingCommunicator::Cancelled() const {
  return cancelled_.load(std::memory_order_relaxed)
             ? absl::AbortedError("the operation was aborted")
             : absl::OkStatus();
}

absl::Status BlockingCommunicator::StatusOf(int32_t code, const char* message) const {
  if (code == 0) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(code),
                      absl::StrCat(module_->name, ": ", message));
}

}  // namespace rueda
