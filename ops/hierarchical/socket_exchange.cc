#include "ops/hierarchical/socket_exchange.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/threads.h"

namespace rueda {
namespace {

// Then the engine looks after everything else.
constexpr Nanos kMoveAtATime = 100 * kMicrosecond;

}  // namespace

absl::StatusOr<std::unique_ptr<SocketExchange>> SocketExchange::Create(SocketExchangeArgs args) {
  std::unique_ptr<SocketExchange> exchange(new SocketExchange(std::move(args)));
  RUEDA_RETURN_IF_ERROR(exchange->thread_.Start());
  return exchange;
}

SocketExchange::SocketExchange(SocketExchangeArgs args)
    : args_(std::move(args)),
      store_(args_.lane.store),
      paths_(std::chrono::nanoseconds(args_.lane.silence_limit)),
      released_(args_.first),
      thread_({}) {}

SocketExchange::~SocketExchange() {
  Abort();
  thread_.End();
}

// Connecting ----------------------------------------------------------------------------------

void SocketExchange::Start(BlockOperation* operation) {
  now_ = operation;
  sent_ = made_ = finished_ = 0;
  released_ = std::max(released_, now_->Number(0));  // operations without this stripe count, too
  moved_at_ = MonotonicNow();
  if (connecting_) return;
  connecting_ = true;
  thread_.Add([this] { Connect(); });
  thread_.BeginEnd();
}

void SocketExchange::Connect() {
  absl::StatusOr<std::vector<Connection>> connections = std::vector<Connection>();
  const absl::Status thrown = WithoutExceptions([&] {
    connections = args_.connector->Connect(
        {args_.lane.prefix, args_.ranks, args_.self, args_.lane.timeout, &store_});
    return absl::OkStatus();
  });
  const bool met = thrown.ok() && connections.ok();
  {
    MutexLock lock(mutex_);
    if (met) {
      if (!store_.aborted()) connections_ = *std::move(connections);
    } else {
      failure_ = thrown.ok() ? std::move(connections).status() : thrown;
    }
  }
  (met ? met_ : failed_).store(true, std::memory_order_release);
  args_.lane.wake();
}

size_t SocketExchange::OutgoingBytes() const {
  return args_.limits.stripe_bytes + static_cast<size_t>(hosts()) * sizeof(CrossHeader);
}

// Takes over what the thread has connected.
absl::Status SocketExchange::Open() {
  std::vector<Connection> connections;
  {
    MutexLock lock(mutex_);
    connections = std::move(connections_);
  }
  outgoing_.reset(new (std::nothrow) char[kRingBlocks * OutgoingBytes()]);
  incoming_.reset(
      new (std::nothrow) char[kRingBlocks * static_cast<size_t>(others()) * IncomingBytes()]);
  if (outgoing_ == nullptr || incoming_ == nullptr) {
    return absl::ResourceExhaustedError("no memory for what goes between hosts");
  }
  events_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!events_.valid()) return ErrnoStatus(errno, "creating an epoll instance");
  timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer_.valid()) return ErrnoStatus(errno, "creating a timer");
  closed_in_child_[0] = ClosedInChild(events_.get());
  closed_in_child_[1] = ClosedInChild(timer_.get());
  RUEDA_RETURN_IF_ERROR(AddEvents(timer_.get(), args_.self));
  for (Slot& slot : slots_) slot.part_at.resize(static_cast<size_t>(hosts()));
  expected_.assign(static_cast<size_t>(hosts()), args_.first);
  expected_results_ = expected_;
  moved_at_ = 0;
  for (int host = 0; host < hosts(); ++host) {
    streams_.emplace_back();
    if (host == args_.self) continue;
    Connection& connection = connections[static_cast<size_t>(host)];
    RUEDA_RETURN_IF_ERROR(AddEvents(connection.fd.get(), host));
    paths_.Watch(host, connection.fd.get());
    PeerStream::User* const user = this;
    streams_.back() = std::make_unique<PeerStream>(host, std::move(connection), user);
  }
  return absl::OkStatus();
}

absl::Status SocketExchange::AddEvents(int fd, int host) const {
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u32 = static_cast<uint32_t>(host);
  if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "watching a descriptor (epoll_ctl)");
}

// Sending -------------------------------------------------------------------------------------

char* SocketExchange::PartAt(int64_t block, int host) const {
  const BlockOperation::Place place = now_->PlaceOf(block, host);
  return outgoing_.get() + now_->Number(block) % kRingBlocks * OutgoingBytes() +
         static_cast<size_t>(place.index) * sizeof(CrossHeader) + place.before;
}

absl::Status SocketExchange::Send(int64_t block, absl::Span<const char* const> parts) {
  const uint64_t number = now_->Number(block);
  Slot& slot = SlotOf(number);
  slot.part_at[static_cast<size_t>(args_.self)] = parts[static_cast<size_t>(args_.self)];
  for (int host = 0; host < hosts(); ++host) {
    if (host == args_.self) continue;
    CrossHeader header = {};
    header.block = number;
    header.bytes = now_->SentBytes(block, args_.self, host);
    header.digest = now_->operation().digest;
    StreamOf(host).Send(header, parts[static_cast<size_t>(host)]);
    ++slot.unsent;
  }
  sent_ = block + 1;
  return absl::OkStatus();
}

// What comes ----------------------------------------------------------------------------------

char* SocketExchange::Incoming(uint64_t number, int from) const {
  const auto index = static_cast<size_t>(from < args_.self ? from : from - 1);
  const size_t slot_bytes = static_cast<size_t>(others()) * IncomingBytes();
  return incoming_.get() + number % kRingBlocks * slot_bytes + index * IncomingBytes();
}

absl::StatusOr<char*> SocketExchange::PlaceFor(int peer, const CrossHeader& header) {
  if (header.is_result != 0) return PlaceForResult(peer, header);
  if (header.block < std::max(expected_[static_cast<size_t>(peer)], released_) ||
      header.bytes > args_.limits.part_bytes) {
    return absl::InternalError(absl::StrCat("host ", peer, " sent what nobody awaits"));
  }
  if (header.block >= released_ + kRingBlocks) return nullptr;
  char* const incoming = Incoming(header.block, peer);
  memcpy(incoming, &header, sizeof header);
  char* at = Destination(peer, header);
  if (at == nullptr) at = incoming + sizeof header;
  SlotOf(header.block).part_at[static_cast<size_t>(peer)] = at;
  return at;
}

// Where it belongs in the end, if that may be written already.
char* SocketExchange::Destination(int peer, const CrossHeader& header) {
  const uint64_t first = now_->Number(finished_);
  if (header.block - first >= static_cast<uint64_t>(sent_ - finished_)) return nullptr;
  const int64_t block = finished_ + static_cast<int64_t>(header.block - first);
  if (!CheckPart(*now_, block, header, peer, args_.self).ok()) return nullptr;
  return now_->Destination(block, peer, args_.ring->own_output(header.block));
}

// It may come as soon as this host's part has left.
absl::StatusOr<char*> SocketExchange::PlaceForResult(int peer, const CrossHeader& header) {
  const uint64_t first = now_->Number(finished_);
  const auto awaited = static_cast<uint64_t>(sent_ - finished_);
  uint64_t& expected = expected_results_[static_cast<size_t>(peer)];
  if (header.block - first < awaited && header.block >= expected && now_->TakesMade(args_.self)) {
    const int64_t block = finished_ + static_cast<int64_t>(header.block - first);
    const BlockOperation::Extent made = now_->MadeBy(block, peer);
    if (header.digest == now_->operation().digest && header.bytes == made.bytes && made.bytes > 0) {
      expected = header.block + 1;
      return args_.ring->own_output(header.block) + made.offset;
    }
  }
  return absl::InternalError(absl::StrCat("host ", peer, " sent results that nobody awaits"));
}

void SocketExchange::OnReceived(int peer, const CrossHeader& header) {
  Slot& slot = SlotOf(header.block);
  if (header.is_result != 0) {
    ++slot.results;
  } else {
    ++slot.parts;
    expected_[static_cast<size_t>(peer)] = header.block + 1;
  }
}

// How many the block has to get.
int SocketExchange::ResultsOf(int64_t block) const {
  if (!now_->TakesMade(args_.self)) return 0;
  int results = 0;
  for (int host = 0; host < hosts(); ++host) {
    if (host != args_.self && now_->MadeBy(block, host).bytes > 0) ++results;
  }
  return results;
}

absl::Span<const char* const> SocketExchange::Parts(int64_t block) {
  return SlotOf(now_->Number(block)).part_at;
}

absl::Status SocketExchange::Release(int64_t block) {
  SlotOf(now_->Number(block)).parts = 0;
  released_ = now_->Number(block) + 1;
  return absl::OkStatus();
}

// Moving on -----------------------------------------------------------------------------------

absl::StatusOr<bool> SocketExchange::Advance() {
  absl::StatusOr<bool> moved = Step();
  if (!moved.ok()) Unwatch();  // nobody looks any more
  return moved;
}

absl::StatusOr<bool> SocketExchange::Step() {
  if (failed_.load(std::memory_order_acquire)) {
    MutexLock lock(mutex_);
    return std::exchange(failure_, DeepCopy(failure_));  // itself says whose doing it is
  }
  if (!met_.load(std::memory_order_acquire)) return false;
  if (!connected()) RUEDA_RETURN_IF_ERROR(Open());
  RUEDA_ASSIGN_OR_RETURN(bool moved, MoveStreams());
  RUEDA_ASSIGN_OR_RETURN(const bool made, MakeBlock());
  moved |= made;
  moved |= FinishBlock();
  if (finished_ == now_->layout().blocks) {
    Unwatch();
    return moved;
  }
  if (moved) {
    moved_at_ = 0;
    return true;
  }
  if (Look()) return true;
  RUEDA_RETURN_IF_ERROR(Watch());
  RUEDA_RETURN_IF_ERROR(CheckTime());
  return false;
}

absl::StatusOr<bool> SocketExchange::MoveStreams() {
  bool moved = false;
  const Nanos until = MonotonicNow() + kMoveAtATime;
  for (size_t i = 0; i < streams_.size(); ++i) {
    const std::unique_ptr<PeerStream>& stream = streams_[next_stream_];
    next_stream_ = (next_stream_ + 1) % streams_.size();
    if (stream == nullptr) continue;
    RUEDA_ASSIGN_OR_RETURN(const bool wrote, stream->Write());
    RUEDA_ASSIGN_OR_RETURN(const bool read, stream->Read());
    if (!wrote && !read) continue;
    moved = true;
    if (MonotonicNow() > until) break;
  }
  return moved;
}

bool SocketExchange::Look() {
  epoll_event events[64];
  const int count = epoll_wait(events_.get(), events, 64, 0);
  for (int i = 0; i < count; ++i) {
    const int host = static_cast<int>(events[i].data.u32);
    if (host == args_.self) {
      timer_is_set_ = false;
      continue;
    }
    PeerStream& stream = StreamOf(host);
    if ((events[i].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) stream.MayRead();
    if ((events[i].events & ~static_cast<uint32_t>(EPOLLIN | EPOLLRDHUP)) != 0) stream.MayWrite();
  }
  return count > 0;
}

// Wakes the engine for the sockets, from when it finds nothing to do until the operation ends:
// between operations nobody would read what comes.
absl::Status SocketExchange::Watch() {
  if (watched_) return absl::OkStatus();
  RUEDA_RETURN_IF_ERROR(args_.wait_set->Watch(events_.get()));
  watched_ = true;
  return absl::OkStatus();
}

void SocketExchange::Unwatch() {
  if (!watched_) return;
  args_.wait_set->Unwatch(events_.get());
  watched_ = false;
}

absl::Status SocketExchange::CheckTime() {
  const Nanos now = MonotonicNow();
  if (moved_at_ == 0) moved_at_ = now;
  const Nanos until = moved_at_ + args_.lane.timeout;
  if (now < until) {
    if (!timer_is_set_) SetTimer(until);  // one that is set fires too early, if at all
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat("nothing came from the other hosts for ",
                                             args_.lane.timeout / kMillisecond, " ms"));
}

void SocketExchange::SetTimer(Nanos until) {
  itimerspec when = {};
  when.it_value = {until / kSecond, until % kSecond};
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
  timer_is_set_ = true;
}

absl::Status SocketExchange::CheckParts(int64_t block) const {
  for (int host = 0; host < hosts(); ++host) {
    if (host == args_.self) continue;
    CrossHeader header;
    memcpy(&header, Incoming(now_->Number(block), host), sizeof header);
    RUEDA_RETURN_IF_ERROR(CheckPart(*now_, block, header, host, args_.self));
  }
  return absl::OkStatus();
}

// Makes the next block's stripe, once all parts of it are there.
absl::StatusOr<bool> SocketExchange::MakeBlock() {
  const int64_t block = made_;
  if (block == sent_ || SlotOf(now_->Number(block)).parts < others()) return false;
  RUEDA_RETURN_IF_ERROR(CheckParts(block));  // the others have this host's, and see the same
  ++made_;
  if (now_->layout().taken_from_parts) return true;
  const uint64_t number = now_->Number(block);
  char* const finished = args_.ring->own_output(number);
  now_->Finish(block, Parts(block), finished);
  RUEDA_RETURN_IF_ERROR(Release(block));
  const BlockOperation::Extent made = now_->MadeBy(block, args_.self);
  for (int host = 0; host < hosts(); ++host) {
    if (host == args_.self || made.bytes == 0 || !now_->TakesMade(host)) continue;
    CrossHeader header = {};
    header.block = number;
    header.bytes = made.bytes;
    header.digest = now_->operation().digest;
    header.is_result = 1;
    StreamOf(host).Send(header, finished + made.offset);
    ++SlotOf(number).unsent;
  }
  return true;
}

// Publishes the next block's stripe, once all of it has come and gone.
bool SocketExchange::FinishBlock() {
  if (finished_ == made_) return false;
  const uint64_t number = now_->Number(finished_);
  Slot& slot = SlotOf(number);
  if (slot.unsent > 0 || slot.results < ResultsOf(finished_)) return false;
  slot.results = 0;
  args_.ring->Finish(number);
  ++finished_;
  return true;
}

std::optional<Silence> SocketExchange::SilentHost() {
  const PeerPaths::Silence found = paths_.Silent();
  if (found.peer < 0) return std::nullopt;
  return Silence{found.peer,
                 std::chrono::duration_cast<std::chrono::nanoseconds>(found.time).count(),
                 found.is_of_large};
}

// Closes the connections, which tells the other hosts.
void SocketExchange::Abort() {
  store_.Abort();
  thread_.BeginEnd();
  if (events_.valid()) Unwatch();
  streams_.clear();
  MutexLock lock(mutex_);
  connections_.clear();
}

}  // namespace rueda
