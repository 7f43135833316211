#include "ops/hierarchical/gloo_exchange.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/no_write_signals.h"
#include "core/base/threads.h"

namespace rueda {
namespace {

// How many blocks' reduced parts may be on their way while the next parts are reduced. Less than a
// ring: a block's first message waits for the results of the one that was there before.
constexpr int64_t kResultsUnderWay = kRingBlocks / 2;
static_assert(kResultsUnderWay < static_cast<int64_t>(kRingBlocks),
              "the results of a block are awaited before its place is taken again");

}  // namespace

GlooExchange::GlooExchange(GlooExchangeArgs args, std::unique_ptr<LaneStore> store,
                           rueda_module_communicator* library)
    : args_(std::move(args)),
      store_(std::move(store)),
      buffers_(args_.module.module, library, args_.limits, args_.module.self, args_.ring),
      library_(library),
      thread_({.at_end = [this] { CloseLibrary(); }}) {}

absl::StatusOr<std::unique_ptr<GlooExchange>> GlooExchange::Create(GlooExchangeArgs args) {
  auto store = std::make_unique<LaneStore>(args.module.store);
  RUEDA_ASSIGN_OR_RETURN(rueda_module_communicator * library,
                         CreateInModule(args.module, store.get()));
  std::unique_ptr<GlooExchange> exchange(
      new GlooExchange(std::move(args), std::move(store), library));
  RUEDA_RETURN_IF_ERROR(exchange->thread_.Start());
  return exchange;
}

GlooExchange::~GlooExchange() {
  Abort();
  thread_.End();
  CloseLibrary();  // unless the thread has
}

// The engine's side ---------------------------------------------------------------------------

void GlooExchange::Start(BlockOperation* operation) {
  MutexLock lock(mutex_);
  RUEDA_CHECK(!queued_) << "an operation was started before the last one's end";
  now_ = operation;
  sent_ = 0;
  queued_ = true;
  thread_.Add([this] { Work(); });
}

char* GlooExchange::PartAt(int64_t block, int host) const {
  const BlockOperation::Place place = now_->PlaceOf(block, host);
  return buffers_.Outgoing(now_->Number(block), place.index, place.before);
}

absl::Status GlooExchange::Send(int64_t block, absl::Span<const char* const> /*parts*/) {
  const NoWriteSignals held;  // this may be any thread of the program's
  const uint64_t number = now_->Number(block);
  const int self = args_.module.self;
  for (int host = 0; host < args_.limits.hosts; ++host) {
    if (host == self) continue;
    const BlockOperation::Extent made = now_->MadeBy(block, host);
    if (now_->TakesMade(self) && made.bytes > 0) {
      RUEDA_RETURN_IF_ERROR(buffers_.PostResult(number, host, made.offset, made.bytes));
    }
    CrossHeader header = {};
    header.block = number;
    header.bytes = now_->SentBytes(block, self, host);
    header.digest = now_->operation().digest;
    const BlockOperation::Place place = now_->PlaceOf(block, host);
    RUEDA_RETURN_IF_ERROR(buffers_.SendPart(number, host, place.index, place.before, header));
  }
  MutexLock lock(mutex_);
  sent_ = block + 1;
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Span<const char* const> GlooExchange::Parts(int64_t block) {
  parts_.clear();
  for (int host = 0; host < args_.limits.hosts; ++host) {
    parts_.push_back(
        host == args_.module.self
            ? PartAt(block, host)
            : reinterpret_cast<const char*>(buffers_.Incoming(now_->Number(block), host) + 1));
  }
  return parts_;
}

absl::Status GlooExchange::Release(int64_t block) {
  const NoWriteSignals held;
  return buffers_.PostParts(now_->Number(block));
}

absl::StatusOr<bool> GlooExchange::Advance() {
  if (!failed_.load(std::memory_order_acquire)) return false;
  MutexLock lock(mutex_);
  return DeepCopy(failure_);
}

void GlooExchange::Abort() {
  MutexLock lock(mutex_);
  cancelled_.store(true, std::memory_order_relaxed);
  store_->Abort();
  if (library_ != nullptr) args_.module.module->abort(library_);
  changed_.NotifyAll();
  thread_.BeginEnd();
}

// The lane thread -----------------------------------------------------------------------------

void GlooExchange::Work() {
  {
    MutexLock lock(mutex_);
    queued_ = false;
    if (!Cancelled().ok() || !failure_.ok()) return;
  }
  absl::Status status = WithoutExceptions([this] { return RunOperation(); });
  if (!status.ok()) Fail(std::move(status));
}

std::optional<Silence> GlooExchange::SilentHost() {
  MutexLock lock(mutex_);
  return SilentMember(*args_.module.module, library_);
}

// Tells the engine, which may be sending.
void GlooExchange::Fail(absl::Status status) {
  // What only time told (nobody came, nothing moved) is like a lost connection.
  if (absl::IsDeadlineExceeded(status)) status = absl::UnavailableError(status.message());
  {
    MutexLock lock(mutex_);
    failure_ = std::move(status);
  }
  failed_.store(true, std::memory_order_release);
  args_.module.wake();
}

// Closes the connections, which tells the other hosts. The exchange has been aborted.
void GlooExchange::CloseLibrary() {
  buffers_.Close();
  rueda_module_communicator* library;
  {
    MutexLock lock(mutex_);
    library = std::exchange(library_, nullptr);
  }
  if (library != nullptr) args_.module.module->destroy(library);
}

absl::Status GlooExchange::RunOperation() {
  RUEDA_RETURN_IF_ERROR(Connect());
  // Whoever reads what `now_` is after the last block is finished may read the next operation.
  const BlockLayout layout = now_->layout();
  const int64_t lag = layout.two_trips ? kResultsUnderWay : 0;
  for (int64_t block = 0; block < layout.blocks + lag; ++block) {
    if (block < layout.blocks) RUEDA_RETURN_IF_ERROR(Make(block));
    if (block >= lag) RUEDA_RETURN_IF_ERROR(Finish(block - lag));
  }
  return absl::OkStatus();
}

absl::Status GlooExchange::Connect() {
  if (connected()) return absl::OkStatus();
  RUEDA_RETURN_IF_ERROR(buffers_.Open());
  connected_.store(true, std::memory_order_release);
  args_.module.wake();
  return absl::OkStatus();
}

absl::Status GlooExchange::Make(int64_t block) {
  const uint64_t number = now_->Number(block);
  RUEDA_RETURN_IF_ERROR(buffers_.AwaitParts(number));
  RUEDA_RETURN_IF_ERROR(AwaitOwn(block));
  RUEDA_RETURN_IF_ERROR(CheckParts(block));  // the others have this host's by now, and see the same
  if (now_->layout().taken_from_parts) return absl::OkStatus();
  now_->Finish(block, Parts(block), args_.ring->own_output(number));
  RUEDA_RETURN_IF_ERROR(buffers_.PostParts(number));
  return now_->layout().two_trips ? SendResults(block) : absl::OkStatus();
}

absl::Status GlooExchange::CheckParts(int64_t block) const {
  const int self = args_.module.self;
  for (int host = 0; host < args_.limits.hosts; ++host) {
    if (host == self) continue;
    const CrossHeader& header = *buffers_.Incoming(now_->Number(block), host);
    RUEDA_RETURN_IF_ERROR(CheckPart(*now_, block, header, host, self));
  }
  return absl::OkStatus();
}

// Waits until the engine has sent the block: then what this host brings is there.
absl::Status GlooExchange::AwaitOwn(int64_t block) {
  MutexLock lock(mutex_);
  while (sent_ <= block && Cancelled().ok()) changed_.Wait(mutex_);
  return Cancelled();
}

absl::Status GlooExchange::SendResults(int64_t block) {
  const int self = args_.module.self;
  const BlockOperation::Extent made = now_->MadeBy(block, self);
  for (int host = 0; host < args_.limits.hosts; ++host) {
    if (host == self || made.bytes == 0 || !now_->TakesMade(host)) continue;
    RUEDA_RETURN_IF_ERROR(buffers_.SendResult(now_->Number(block), host, made.offset, made.bytes));
  }
  return absl::OkStatus();
}

// Awaits what is still under way of the block, and publishes the finished slice.
absl::Status GlooExchange::Finish(int64_t block) {
  const uint64_t number = now_->Number(block);
  const int self = args_.module.self;
  RUEDA_RETURN_IF_ERROR(buffers_.AwaitPartsSent(number));
  if (now_->layout().two_trips) {
    size_t receives = 0, sends = 0;
    for (int host = 0; host < args_.limits.hosts; ++host) {
      if (host == self) continue;
      if (now_->TakesMade(self) && now_->MadeBy(block, host).bytes > 0) ++receives;
      if (now_->TakesMade(host) && now_->MadeBy(block, self).bytes > 0) ++sends;
    }
    RUEDA_RETURN_IF_ERROR(buffers_.AwaitResults(number, receives, sends));
  }
  args_.ring->Finish(number);
  args_.module.wake();
  return absl::OkStatus();
}

absl::Status GlooExchange::Cancelled() const {
  return cancelled_.load(std::memory_order_relaxed)
             ? absl::AbortedError("the operation was aborted")
             : absl::OkStatus();
}

}  // namespace rueda
