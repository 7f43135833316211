#include "ops/hierarchical/stripe_exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
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
// Of sums that become narrower results at a time.
constexpr int64_t kSumsAtATime = 2 << 10;

}  // namespace

StripeExchange::StripeExchange(StripeExchangeArgs args, std::unique_ptr<LaneStore> store,
                               rueda_module_communicator* library)
    : args_(std::move(args)),
      store_(std::move(store)),
      buffers_(args_.module.module, library, args_.limits, args_.module.self, args_.ring),
      library_(library),
      thread_({.at_end = [this] { CloseLibrary(); }}) {}

absl::StatusOr<std::unique_ptr<StripeExchange>> StripeExchange::Create(StripeExchangeArgs args) {
  auto store = std::make_unique<LaneStore>(args.module.store);
  RUEDA_ASSIGN_OR_RETURN(rueda_module_communicator * library,
                         CreateInModule(args.module, store.get()));
  std::unique_ptr<StripeExchange> exchange(
      new StripeExchange(std::move(args), std::move(store), library));
  RUEDA_RETURN_IF_ERROR(exchange->thread_.Start());
  return exchange;
}

StripeExchange::~StripeExchange() {
  Abort();
  thread_.End();
  CloseLibrary();  // unless the thread has
}

// The engine's side ---------------------------------------------------------------------------

void StripeExchange::Start(const CrossOperation& operation) {
  MutexLock lock(mutex_);
  RUEDA_CHECK(!queued_) << "an operation was started before the last one's end";
  now_ = operation;
  sent_ = 0;
  queued_ = true;
  thread_.Add([this] { Work(); });
}

char* StripeExchange::PartAt(int64_t block, int host) const {
  const Range stripe = Stripe(block);
  return buffers_.Outgoing(Number(block), PartIndex(host),
                           Before(stripe, now_.cut.Part(stripe, host)));
}

// What goes first from one host to another: nothing from one that brings nothing; of two hosts,
// nothing directly to one that wants nothing.
size_t StripeExchange::SentBytes(int64_t block, int from, int to) const {
  if (!now_.contributing[static_cast<size_t>(from)]) return 0;
  if (now_.cut.direct && now_.cut.hosts == 2 && !now_.contributing[static_cast<size_t>(to)]) {
    return 0;
  }
  return static_cast<size_t>(now_.cut.Part(Stripe(block), to).size()) * now_.cut.wire_bytes;
}

absl::Status StripeExchange::Send(int64_t block) {
  const NoWriteSignals held;  // this may be any thread of the program's
  const uint64_t number = Number(block);
  const Range stripe = Stripe(block);
  const int self = args_.module.self;
  for (int host = 0; host < now_.cut.hosts; ++host) {
    if (host == self) continue;
    const Range part = now_.cut.Part(stripe, host);
    if (!now_.cut.direct && part.size() > 0) {
      const size_t offset = static_cast<size_t>(part.begin - stripe.begin) * now_.cut.result_bytes;
      const size_t bytes = static_cast<size_t>(part.size()) * now_.cut.result_bytes;
      RUEDA_RETURN_IF_ERROR(buffers_.PostResult(number, host, offset, bytes));
    }
    CrossHeader header = {};
    header.block = number;
    header.bytes = SentBytes(block, self, host);
    header.digest = now_.digest;
    RUEDA_RETURN_IF_ERROR(
        buffers_.SendPart(number, host, PartIndex(host), Before(stripe, part), header));
  }
  MutexLock lock(mutex_);
  sent_ = block + 1;
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status StripeExchange::failure() {
  if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
  MutexLock lock(mutex_);
  return DeepCopy(failure_);
}

void StripeExchange::Abort() {
  MutexLock lock(mutex_);
  cancelled_.store(true, std::memory_order_relaxed);
  store_->Abort();
  if (library_ != nullptr) args_.module.module->abort(library_);
  changed_.NotifyAll();
  thread_.BeginEnd();
}

// The lane thread -----------------------------------------------------------------------------

void StripeExchange::Work() {
  {
    MutexLock lock(mutex_);
    queued_ = false;
    if (!Cancelled().ok() || !failure_.ok()) return;
  }
  absl::Status status = WithoutExceptions([this] { return RunOperation(); });
  if (!status.ok()) Fail(std::move(status));
}

std::optional<Silence> StripeExchange::SilentHost() {
  MutexLock lock(mutex_);
  return SilentMember(*args_.module.module, library_);
}

// Tells the engine, which may be sending.
void StripeExchange::Fail(absl::Status status) {
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
void StripeExchange::CloseLibrary() {
  buffers_.Close();
  rueda_module_communicator* library;
  {
    MutexLock lock(mutex_);
    library = std::exchange(library_, nullptr);
  }
  if (library != nullptr) args_.module.module->destroy(library);
}

absl::Status StripeExchange::RunOperation() {
  RUEDA_RETURN_IF_ERROR(Connect());
  // Whoever reads what `now_` is after the last block is finished may read the next operation.
  const int64_t blocks = now_.cut.blocks;
  const int64_t lag = now_.cut.direct ? 0 : kResultsUnderWay;
  for (int64_t block = 0; block < blocks + lag; ++block) {
    if (block < blocks) RUEDA_RETURN_IF_ERROR(ReducePart(block));
    if (block >= lag) RUEDA_RETURN_IF_ERROR(Finish(block - lag));
  }
  return absl::OkStatus();
}

absl::Status StripeExchange::Connect() {
  if (connected()) return absl::OkStatus();
  RUEDA_RETURN_IF_ERROR(buffers_.Open());
  connected_.store(true, std::memory_order_release);
  args_.module.wake();
  return absl::OkStatus();
}

absl::Status StripeExchange::ReducePart(int64_t block) {
  const uint64_t number = Number(block);
  RUEDA_RETURN_IF_ERROR(buffers_.AwaitParts(number));
  RUEDA_RETURN_IF_ERROR(AwaitOwn(block));
  RUEDA_RETURN_IF_ERROR(CheckParts(block));  // the others have this host's by now, and see the same
  Reduce(block);
  RUEDA_RETURN_IF_ERROR(buffers_.PostParts(number));
  return now_.cut.direct ? absl::OkStatus() : SendResults(block);
}

absl::Status StripeExchange::CheckParts(int64_t block) const {
  const int self = args_.module.self;
  for (int host = 0; host < now_.cut.hosts; ++host) {
    if (host == self) continue;
    const CrossHeader& header = *buffers_.Incoming(Number(block), host);
    if (header.block != Number(block) || header.digest != now_.digest ||
        header.bytes != SentBytes(block, host, self)) {
      return absl::InternalError(absl::StrCat("host ", host,
                                              " of the process set works on a bucket with another "
                                              "layout than host ",
                                              self));
    }
  }
  return absl::OkStatus();
}

// Waits until the engine has sent the block: then what this host brings is there.
absl::Status StripeExchange::AwaitOwn(int64_t block) {
  MutexLock lock(mutex_);
  while (sent_ <= block && Cancelled().ok()) changed_.Wait(mutex_);
  return Cancelled();
}

// Reduces this host's part over all hosts, in their order, into the finished slice.
void StripeExchange::Reduce(int64_t block) {
  const int self = args_.module.self;
  const Cut& cut = now_.cut;
  const Range stripe = Stripe(block);
  const Range part = cut.Part(stripe, self);
  if (cut.direct && !now_.contributing[static_cast<size_t>(self)]) return;  // nobody here wants it
  char* const to = args_.ring->own_output(Number(block)) +
                   static_cast<size_t>(part.begin - stripe.begin) * cut.result_bytes;
  const bool narrows = now_.wire.widens();
  const int64_t step = narrows ? kSumsAtATime : std::max<int64_t>(part.size(), 1);
  if (narrows && sums_ == nullptr) sums_.reset(new char[kSumsAtATime * kernels::kWireBytesMax]);
  for (int64_t begin = 0; begin < part.size(); begin += step) {
    const int64_t count = std::min(step, part.size() - begin);
    sources_.clear();
    for (int host = 0; host < cut.hosts; ++host) {
      if (!now_.contributing[static_cast<size_t>(host)]) continue;
      const char* const from =
          host == self ? PartAt(block, self)
                       : reinterpret_cast<const char*>(buffers_.Incoming(Number(block), host) + 1);
      sources_.push_back(from + static_cast<size_t>(begin) * cut.wire_bytes);
    }
    char* const place = to + static_cast<size_t>(begin) * cut.result_bytes;
    kernels::Reduce(now_.wire.type, now_.reduce_op, sources_, narrows ? sums_.get() : place, count,
                    now_.wire.after);
    if (narrows) kernels::Narrow(now_.wire, sums_.get(), place, count);
  }
}

absl::Status StripeExchange::SendResults(int64_t block) {
  const int self = args_.module.self;
  const Range stripe = Stripe(block);
  const Range part = now_.cut.Part(stripe, self);
  if (part.size() == 0) return absl::OkStatus();
  for (int host = 0; host < now_.cut.hosts; ++host) {
    if (host == self) continue;
    RUEDA_RETURN_IF_ERROR(buffers_.SendResult(
        Number(block), host, static_cast<size_t>(part.begin - stripe.begin) * now_.cut.result_bytes,
        static_cast<size_t>(part.size()) * now_.cut.result_bytes));
  }
  return absl::OkStatus();
}

// Awaits what is still under way of the block, and publishes the finished slice.
absl::Status StripeExchange::Finish(int64_t block) {
  const uint64_t number = Number(block);
  const int self = args_.module.self;
  RUEDA_RETURN_IF_ERROR(buffers_.AwaitPartsSent(number));
  if (!now_.cut.direct) {
    size_t receives = 0;
    const Range stripe = Stripe(block);
    for (int host = 0; host < now_.cut.hosts; ++host) {
      if (host != self && now_.cut.Part(stripe, host).size() > 0) ++receives;
    }
    const bool sends = now_.cut.Part(stripe, self).size() > 0;
    RUEDA_RETURN_IF_ERROR(buffers_.AwaitResults(
        number, receives, sends ? static_cast<size_t>(now_.cut.hosts - 1) : 0));
  }
  args_.ring->Finish(number);
  args_.module.wake();
  return absl::OkStatus();
}

absl::Status StripeExchange::Cancelled() const {
  return cancelled_.load(std::memory_order_relaxed)
             ? absl::AbortedError("the operation was aborted")
             : absl::OkStatus();
}

}  // namespace rueda
