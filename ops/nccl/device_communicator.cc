#include "ops/nccl/device_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/log.h"
#include "core/base/threads.h"
#include "ops/nccl/cuda_library.h"

namespace rueda {
namespace {

// How often it is looked whether something went wrong behind NCCL's calls, while work is under way.
constexpr Nanos kLookInterval = 100 * kMillisecond;
// How long an aborted communicator's work may take to leave the device. What waits for a stream of
// the caller's leaves when that gets there.
constexpr Nanos kAbortPatience = 800 * kMillisecond;

}  // namespace

// What they share ---------------------------------------------------------------------------------

DeviceContext::DeviceContext(Args args) : args_(std::move(args)), store_(args_.store) {
  LaneThread::Args thread;
  thread.what = "the device's thread";
  thread.name = "rueda-device";
  thread.interval = kLookInterval;
  thread.busy = [this] {
    MutexLock lock(mutex_);
    return std::any_of(
        communicators_.begin(), communicators_.end(),
        [](const DeviceCommunicator* communicator) { return communicator->InFlight(); });
  };
  thread.look = [this] { CheckLibraries(); };
  thread_ = std::make_unique<LaneThread>(std::move(thread));
}

DeviceContext::~DeviceContext() {
  thread_.reset();
}

void DeviceContext::Add(DeviceCommunicator* communicator) {
  MutexLock lock(mutex_);
  communicators_.push_back(communicator);
}

void DeviceContext::Remove(DeviceCommunicator* communicator) {
  MutexLock lock(mutex_);
  std::erase(communicators_, communicator);
}

void DeviceContext::CheckLibraries() {
  // Without memory for it, the next time will do.
  (void)WithoutExceptions([this] {
    std::vector<DeviceCommunicator*> all;
    {
      MutexLock lock(mutex_);
      all = communicators_;
    }
    // They are removed by tasks of this very thread.
    for (DeviceCommunicator* communicator : all) communicator->CheckLibraries();
    return absl::OkStatus();
  });
}

void DeviceContext::Cancel() {
  if (cancelled_.exchange(true)) return;
  store_.Abort();
  MutexLock lock(mutex_);
  patient_until_ = MonotonicNow() + kAbortPatience;
  for (DeviceCommunicator* communicator : communicators_) communicator->AbortLibrary();
}

Nanos DeviceContext::patient_until() const {
  MutexLock lock(mutex_);
  return patient_until_;
}

void DeviceContext::WarnOfRest() {
  if (warned_.exchange(true)) return;
  RUEDA_LOG(Warning) << "an aborted operation is still on the device: it waits for the stream that "
                        "it was submitted on. Its tensors are in use, and what it has of this "
                        "library is kept, until that stream gets there";
}

void DeviceContext::WatcherBegins() {
  MutexLock lock(mutex_);
  ++watchers_;
}

void DeviceContext::WatcherEnds() {
  MutexLock lock(mutex_);
  --watchers_;
  watcher_ended_.NotifyAll();
}

bool DeviceContext::AwaitWatchers(Nanos deadline) {
  MutexLock lock(mutex_);
  while (watchers_ > 0) {
    const Nanos left = deadline - MonotonicNow();
    if (left <= 0) return false;
    watcher_ended_.WaitFor(mutex_, std::chrono::nanoseconds(left));
  }
  return true;
}

// The engine's side -------------------------------------------------------------------------------

DeviceCommunicator::DeviceCommunicator(std::shared_ptr<DeviceContext> context, Args args)
    : context_(std::move(context)), args_(std::move(args)), device_(*context_->args().device) {}

absl::StatusOr<std::unique_ptr<DeviceCommunicator>> DeviceCommunicator::Create(
    std::shared_ptr<DeviceContext> context, Args args) {
  RUEDA_RETURN_IF_ERROR(context->thread().Start());
  std::unique_ptr<DeviceCommunicator> communicator(
      new DeviceCommunicator(std::move(context), std::move(args)));
  const auto watch = [raw = communicator.get()] {
    raw->Watch();
    raw->context_->WatcherEnds();
  };
  RUEDA_RETURN_IF_ERROR(
      StartThread("a lane's watcher", "rueda-watch", watch, &communicator->watcher_));
  communicator->context_->WatcherBegins();
  communicator->context_->Add(communicator.get());
  return communicator;
}

DeviceCommunicator::~DeviceCommunicator() {
  if (!watcher_.joinable()) return;
  Post(&DeviceCommunicator::End);
  watcher_.join();
  MutexLock lock(mutex_);
  while (posted_ > 0) changed_.Wait(mutex_);
}

void DeviceCommunicator::Post(void (DeviceCommunicator::*function)()) {
  context_->thread().Add([this, function] {
    absl::Status status = WithoutExceptions([this, function] {
      (this->*function)();
      return absl::OkStatus();
    });
    if (!status.ok()) Fail(std::move(status));
    MutexLock lock(mutex_);
    --posted_;
    changed_.NotifyAll();
  });
  // Behind what may throw: it is below zero for a moment where the task was faster.
  MutexLock lock(mutex_);
  ++posted_;
}

void DeviceCommunicator::Start(const BucketOperation& operation) {
  {
    MutexLock lock(mutex_);
    operations_.push_back({operation});
  }
  Post(&DeviceCommunicator::Enqueue);
}

DeviceEvent DeviceCommunicator::NextEnqueued() {
  MutexLock lock(mutex_);
  for (size_t i = 0; i < enqueued_; ++i) {
    if (!std::exchange(operations_[i].told, true)) return operations_[i].event;
  }
  return nullptr;
}

absl::StatusOr<Progress> DeviceCommunicator::Advance() {
  MutexLock lock(mutex_);
  if (operations_.empty() || operations_.front().state != State::kDone) {
    if (!status_.ok()) return status_;
    return Progress::kBlocked;
  }
  operations_.pop_front();
  --enqueued_;
  --done_;
  return Progress::kDone;
}

void DeviceCommunicator::Abort() {
  context_->Cancel();
  // The device's thread ends what its communicators do there, and enqueues nothing more.
  Post(&DeviceCommunicator::End);
  const Nanos deadline = context_->patient_until();
  MutexLock lock(mutex_);
  while (posted_ > 0 || done_ < enqueued_) {
    const Nanos left = deadline - MonotonicNow();
    if (left <= 0) return context_->WarnOfRest();
    changed_.WaitFor(mutex_, std::chrono::nanoseconds(left));
  }
}

bool DeviceCommunicator::InFlight() const {
  MutexLock lock(mutex_);
  return enqueued_ > done_;
}

bool DeviceCommunicator::ended() const {
  MutexLock lock(mutex_);
  return ended_ && posted_ == 0;
}

void DeviceCommunicator::AbortLibrary() {
  MutexLock lock(mutex_);
  for (rueda_cuda_communicator* library : libraries_) device_.cuda().abort(library);
  changed_.NotifyAll();
}

// The device's thread -----------------------------------------------------------------------------

void DeviceCommunicator::Fail(absl::Status status) {
  // What only time told is as much as a connection that broke.
  if (absl::IsDeadlineExceeded(status)) status = absl::UnavailableError(status.message());
  {
    MutexLock lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }
  context_->args().wake();
}

void DeviceCommunicator::Enqueue() {
  const BucketOperation* operation;
  {
    MutexLock lock(mutex_);
    if (ended_ || !status_.ok() || context_->cancelled()) return;
    operation = &operations_[enqueued_].operation;
  }
  absl::StatusOr<DeviceEvent> event = WithoutExceptions([&] { return EnqueueOne(*operation); });
  const absl::Status status = event.status();
  // What of it is on the stream uses its tensors all the same, and is waited for.
  if (!status.ok() && stream_ != nullptr) {
    event = WithoutExceptions([this] { return device_.RecordOwn(stream_); });
  }
  if (event.ok()) {
    MutexLock lock(mutex_);
    Operation& enqueued = operations_[enqueued_];
    enqueued.event = *std::move(event);
    enqueued.state = State::kEnqueued;
    enqueued.failed = enqueued.told = !status.ok();
    ++enqueued_;
    changed_.NotifyAll();
  }
  if (!status.ok()) return Fail(status);
  context_->args().wake();
}

absl::StatusOr<DeviceEvent> DeviceCommunicator::EnqueueOne(const BucketOperation& operation) {
  RUEDA_RETURN_IF_ERROR(Open());
  std::optional<Pair> pair;
  if (operation.kind == OpKind::kSendRecv) {
    const int other = operation.root == args_.self ? operation.peer : operation.root;
    RUEDA_ASSIGN_OR_RETURN(pair, PairWith(other));
  } else {
    RUEDA_RETURN_IF_ERROR(Connect());
  }
  for (const DeviceEvent& ready : operation.ready) {
    RUEDA_RETURN_IF_ERROR(CallCuda(device_.cuda().wait, index_, stream_, ready.get()));
  }
  if (pair.has_value()) {
    RUEDA_RETURN_IF_ERROR(program_->EnqueuePair(operation, pair->communicator, pair->other));
  } else {
    RUEDA_RETURN_IF_ERROR(program_->Enqueue(operation));
  }
  return device_.RecordOwn(stream_);
}

absl::Status DeviceCommunicator::Open() {
  if (stream_ != nullptr) return absl::OkStatus();
  RUEDA_ASSIGN_OR_RETURN(index_, device_.Index());
  DeviceProgram::Args args;
  args.cuda = &device_.cuda();
  args.device = index_;
  args.members = args_.members;
  args.self = args_.self;
  args.in_rank_order = context_->args().in_rank_order;
  program_ = std::make_unique<DeviceProgram>(args);
  RUEDA_RETURN_IF_ERROR(
      CallCuda(device_.cuda().open_stream, index_, args_.urgent ? 1 : 0, &stream_));
  program_->SetStream(stream_);
  return absl::OkStatus();
}

absl::Status DeviceCommunicator::Connect() {
  if (library_ != nullptr || args_.members == 1) return absl::OkStatus();
  RUEDA_ASSIGN_OR_RETURN(library_, Meet("all", args_.members, args_.self));
  program_->SetCommunicator(library_);
  return absl::OkStatus();
}

// A send and its receive concern nobody but these two, and the others may never have come to the
// process set's communicator.
absl::StatusOr<DeviceCommunicator::Pair> DeviceCommunicator::PairWith(int other) {
  if (const auto it = pairs_.find(other); it != pairs_.end()) return it->second;
  const int low = std::min(args_.self, other), high = std::max(args_.self, other);
  const int own = args_.self == low ? 0 : 1;
  Pair pair = {nullptr, 1 - own};
  RUEDA_ASSIGN_OR_RETURN(pair.communicator, Meet(absl::StrCat(low, "-", high), 2, own));
  pairs_.emplace(other, pair);
  return pair;
}

absl::StatusOr<rueda_cuda_communicator*> DeviceCommunicator::Meet(const std::string& key,
                                                                  int members, int self) {
  const rueda_cuda& cuda = device_.cuda();
  const std::string where = absl::StrCat(args_.prefix, "/", key);
  rueda_cuda_id id = {};
  if (self == 0) {
    RUEDA_RETURN_IF_ERROR(CallCuda(cuda.make_id, &id));
    RUEDA_RETURN_IF_ERROR(
        context_->store().Set(where, absl::string_view(id.bytes, sizeof id.bytes)));
  } else {
    RUEDA_ASSIGN_OR_RETURN(const std::string found,
                           context_->store().Get(where, context_->args().timeout));
    if (found.size() != sizeof id.bytes) {
      return absl::InternalError("what names an NCCL communicator has a wrong size");
    }
    memcpy(id.bytes, found.data(), sizeof id.bytes);
  }
  ReserveLibrary();
  rueda_cuda_communicator* library = nullptr;
  RUEDA_RETURN_IF_ERROR(CallCuda(cuda.connect, static_cast<const rueda_cuda_id*>(&id), members,
                                 self, index_, &library));
  RUEDA_RETURN_IF_ERROR(Await(library));
  return library;
}

// What may throw comes before there is one that nobody else would end.
void DeviceCommunicator::ReserveLibrary() {
  MutexLock lock(mutex_);
  libraries_.reserve(libraries_.size() + 1);
}

absl::Status DeviceCommunicator::Await(rueda_cuda_communicator* library) {
  {
    MutexLock lock(mutex_);
    libraries_.push_back(library);
    if (context_->cancelled()) device_.cuda().abort(library);
  }
  return CallCuda(device_.cuda().await, library, context_->args().timeout);
}

void DeviceCommunicator::SplitFrom(DeviceCommunicator* parent, int color) {
  parent_ = parent;
  color_ = color;
  Post(&DeviceCommunicator::Split);
}

// False: it has failed, or was aborted.
bool DeviceCommunicator::WaitUntilIdle() {
  MutexLock lock(mutex_);
  while (done_ < enqueued_ && status_.ok() && !context_->cancelled()) changed_.Wait(mutex_);
  return status_.ok() && !context_->cancelled();
}

void DeviceCommunicator::Split() {
  if (parent_->library_ == nullptr || !parent_->WaitUntilIdle()) return;
  const auto split = [&]() -> absl::Status {
    RUEDA_RETURN_IF_ERROR(Open());
    ReserveLibrary();
    rueda_cuda_communicator* library = nullptr;
    const absl::Status status =
        CallCuda(device_.cuda().split, parent_->library_, color_, args_.self, &library);
    if (absl::IsUnimplemented(status)) return absl::OkStatus();
    RUEDA_RETURN_IF_ERROR(status);
    RUEDA_RETURN_IF_ERROR(Await(library));
    library_ = library;
    program_->SetCommunicator(library);
    return absl::OkStatus();
  };
  if (absl::Status status = split(); !status.ok()) Fail(std::move(status));
}

void DeviceCommunicator::SplitOff() {
  if (library_ == nullptr || !WaitUntilIdle()) return;
  rueda_cuda_communicator* none = nullptr;
  absl::Status status = CallCuda(device_.cuda().split, library_, -1, 0, &none);
  if (!status.ok() && !absl::IsUnimplemented(status)) Fail(std::move(status));
}

// What NCCL's own threads have noticed.
void DeviceCommunicator::CheckLibraries() {
  std::vector<rueda_cuda_communicator*> libraries;
  {
    MutexLock lock(mutex_);
    if (ended_ || !status_.ok()) return;
    libraries = libraries_;
  }
  for (rueda_cuda_communicator* library : libraries) {
    absl::Status status = CallCuda(device_.cuda().check, library);
    if (!status.ok()) return Fail(std::move(status));
  }
}

void DeviceCommunicator::End() {
  std::vector<rueda_cuda_communicator*> libraries;
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    // In a membership that goes on everything is done; else NCCL's kernels must be told to stop
    // first.
    libraries.swap(libraries_);
  }
  if (program_ != nullptr && !context_->cancelled()) program_->ReleaseBuffers();
  for (rueda_cuda_communicator* library : libraries) device_.cuda().destroy(library);
  if (program_ != nullptr) program_->ForgetCommunicator();
  context_->Remove(this);
  MutexLock lock(mutex_);
  ended_ = true;
  changed_.NotifyAll();
}

// The watcher's thread ----------------------------------------------------------------------------

void DeviceCommunicator::Watch() {
  while (true) {
    DeviceEvent event;
    {
      MutexLock lock(mutex_);
      while (done_ == enqueued_ && !ended_) changed_.Wait(mutex_);
      if (done_ == enqueued_) break;
      event = operations_[done_].event;
    }
    absl::Status status = CallCuda(device_.cuda().synchronize, index_, event.get());
    {
      MutexLock lock(mutex_);
      if (status.ok()) {
        if (!operations_[done_].failed) operations_[done_].state = State::kDone;
      } else if (status_.ok()) {
        status_ = std::move(status);
      }
      ++done_;
      changed_.NotifyAll();
    }
    context_->args().wake();
  }
  // Nothing is left on the stream, and the device's thread has ended everything else.
  if (stream_ != nullptr) {
    program_->ReleaseBuffers();
    device_.cuda().close_stream(index_, stream_);
  }
}

}  // namespace rueda
