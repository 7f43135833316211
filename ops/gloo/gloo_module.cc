// The Gloo module, librueda_gloo.so: Gloo behind the table of ops/backend/module_abi.h. The only
// file of the project that includes Gloo, and it includes nothing of librueda.so's but that header.
//
// Gloo's own rendezvous is not used: what it puts into the store grows beyond a value's limit, it
// waits for every peer anew, and nothing could interrupt it. What it leaves out of its interface,
// the interruption of an operation, is done by handing its algorithms a transport of our own:
// buffers that pass everything on to Gloo's, and that can be told to give up (AbortableBuffer).
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <complex>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/backend/module_abi.h"
#include "ops/paths/peer_paths.h"

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Values of absl::StatusCode.
constexpr int32_t kOk = 0;
constexpr int32_t kDeadlineExceeded = 4;
constexpr int32_t kResourceExhausted = 8;
constexpr int32_t kAborted = 10;
constexpr int32_t kInternal = 13;
constexpr int32_t kUnavailable = 14;

// Of the slots of our own exchange; Gloo uses the first eight.
constexpr uint8_t kExchangeSlotPrefix = 0x40;
constexpr uint8_t kTransferSlotPrefix = 0x41;
constexpr uint8_t kBufferSlotPrefix = 0x42;
// Which allreduce for which size. Each gives all members the same bits: either one member reduces
// an element and the others copy it (Gloo's BCUBE and RING), or all reduce it in the same order
// (ours). Gloo's older algorithms (halving-doubling and others) can't be aborted.
//
// Medians in us on loopback under real-time scheduling, 2 cores, float32 sum:
//
//               4 B  16 KiB  64 KiB  128 KiB  256 KiB  512 KiB  1 MiB  2 MiB  16 MiB  64 MiB
//   2  ours      26      28      36       46       61      101    360
//      BCUBE     60      55      77       74       90      120    189    720   6,700  46,000
//      RING      79      82      85               120      155    220    364   4,700  20,000
//   3  ours      64      73     105      136      189      304    900
//      BCUBE    126     145     156      158      220      278    415    700  12,200  84,000
//      RING     142     251     312               340      420    555    860   8,700  34,600
//   4  ours     130     139     188      243      355      570  1,880
//      BCUBE    208     222     230      256      315      415    620  1,600  19,200 112,000
//      RING     171     509     509               560      700    885  1,310  12,600  51,800
//   6  ours     303     320     450      580      850    1,770  5,800
//      BCUBE    420     448     460      505      585      770  1,110
constexpr size_t kExchangeBytesMax = 384 << 10;  // of what a member receives
constexpr int kExchangeMembersMax = 16;
constexpr size_t kBcubeBytesMax = 1 << 20;
// Of a message of RING; Gloo's 1 MiB is 10 to 20% slower at 16 MiB.
constexpr size_t kRingSegmentBytes = 512 << 10;

// How many peers' addresses go into one value of the store: 17 KiB.
constexpr int kAddressesPerValue = 128;
// Gloo waits five times a pair's time-out for its connection.
constexpr int kGlooConnectFactor = 5;

// An error of ours, with its code.
struct Error : std::runtime_error {
  Error(int32_t error_code, const std::string& words)
      : std::runtime_error(words), code(error_code) {}
  int32_t code;
};

// Abortable buffers ---------------------------------------------------------------------------

class AbortableBuffer;

// Gloo's transport context, but for its buffers.
class AbortableContext : public gloo::transport::Context {
 public:
  explicit AbortableContext(std::shared_ptr<gloo::transport::Context> gloo)
      : gloo::transport::Context(gloo->rank, gloo->size), gloo_(std::move(gloo)) {}

  std::unique_ptr<gloo::transport::Pair>& getPair(int peer) override {
    return gloo_->getPair(peer);
  }
  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override {
    return gloo_->createPair(peer);
  }
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* data,
                                                                      size_t bytes) override;

  // Any thread. Waits under way and later ones throw.
  void Abort();
  void ThrowIfAborted() const {
    if (aborted_.load(std::memory_order_acquire))
      throw Error(kAborted, "the operation was aborted");
  }

 private:
  friend class AbortableBuffer;
  const std::shared_ptr<gloo::transport::Context> gloo_;
  std::atomic<bool> aborted_{false};
  std::mutex buffers_mutex_;
  std::set<gloo::transport::UnboundBuffer*> buffers_;  // Gloo's, of those that exist
};

class AbortableBuffer : public gloo::transport::UnboundBuffer {
 public:
  AbortableBuffer(AbortableContext* context, void* data, size_t bytes)
      : gloo::transport::UnboundBuffer(data, bytes),
        context_(context),
        gloo_(context->gloo_->createUnboundBuffer(data, bytes)) {
    const std::lock_guard<std::mutex> lock(context_->buffers_mutex_);
    context_->buffers_.insert(gloo_.get());
  }
  // Afterwards Gloo's own thread touches the memory no more.
  ~AbortableBuffer() override {
    const std::lock_guard<std::mutex> lock(context_->buffers_mutex_);
    context_->buffers_.erase(gloo_.get());
  }

  bool waitRecv(int* rank, milliseconds timeout) override {
    context_->ThrowIfAborted();
    if (!gloo_->waitRecv(rank, timeout)) context_->ThrowIfAborted();
    return true;
  }
  bool waitSend(int* rank, milliseconds timeout) override {
    context_->ThrowIfAborted();
    if (!gloo_->waitSend(rank, timeout)) context_->ThrowIfAborted();
    return true;
  }
  void abortWaitRecv() override { gloo_->abortWaitRecv(); }
  void abortWaitSend() override { gloo_->abortWaitSend(); }
  void send(int peer, uint64_t slot, size_t offset, size_t bytes) override {
    gloo_->send(peer, slot, offset, bytes);
  }
  void recv(int peer, uint64_t slot, size_t offset, size_t bytes) override {
    gloo_->recv(peer, slot, offset, bytes);
  }
  void recv(std::vector<int> peers, uint64_t slot, size_t offset, size_t bytes) override {
    gloo_->recv(std::move(peers), slot, offset, bytes);
  }

 private:
  AbortableContext* const context_;
  const std::unique_ptr<gloo::transport::UnboundBuffer> gloo_;
};

std::unique_ptr<gloo::transport::UnboundBuffer> AbortableContext::createUnboundBuffer(
    void* data, size_t bytes) {
  return std::make_unique<AbortableBuffer>(this, data, bytes);
}

void AbortableContext::Abort() {
  aborted_.store(true, std::memory_order_release);
  // A buffer that is not there yet will look before it waits.
  const std::lock_guard<std::mutex> lock(buffers_mutex_);
  for (gloo::transport::UnboundBuffer* buffer : buffers_) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
}

// What Gloo's algorithms work on.
class Mesh : public gloo::Context {
 public:
  Mesh(std::shared_ptr<gloo::transport::Device> device, std::shared_ptr<AbortableContext> transport,
       milliseconds timeout)
      : gloo::Context(transport->rank, transport->size) {
    device_ = std::move(device);
    transportContext_ = std::move(transport);
    setTimeout(timeout);
  }
};

}  // namespace

// The communicator ----------------------------------------------------------------------------

struct rueda_module_communicator {
 public:
  explicit rueda_module_communicator(const rueda_module_group& group)
      : members_(group.members),
        self_(group.self),
        prefix_(group.prefix),
        interface_(group.interface),
        timeout_(std::max<int64_t>(1, group.timeout / 1'000'000)),
        store_(group.store),
        paths_(std::chrono::nanoseconds(group.silence_limit)) {}

  void Connect(int peer);
  void Allreduce(void* data, size_t count, const rueda_module_reduction& reduction, uint32_t tag);
  void Allgatherv(void* data, const int64_t* bytes, uint32_t tag);
  void Broadcast(void* data, size_t bytes, int root, uint32_t tag);
  void Barrier(uint32_t tag);
  void Transfer(const rueda_module_transfer* sends, size_t send_count,
                const rueda_module_transfer* receives, size_t receive_count, uint32_t tag);
  std::unique_ptr<gloo::transport::UnboundBuffer> OpenBuffer(void* data, size_t bytes) {
    return Connected()->createUnboundBuffer(data, bytes);
  }
  milliseconds timeout() const { return timeout_; }
  int SilentPeer(int64_t* silence, int32_t* is_of_large);
  void Abort();
  bool aborted() const;

 private:
  // The mesh, if there are connections to all members; or to one.
  const std::shared_ptr<gloo::Context>& Connected() const {
    if (connections_ + 1 < members_) throw Error(kInternal, "an operation without connections");
    return mesh_;
  }
  const std::shared_ptr<gloo::Context>& ConnectedTo(int peer) const {
    if (mesh_ == nullptr || !connected_[peer]) {
      throw Error(kInternal, "an operation without a connection");
    }
    return mesh_;
  }
  // Everybody sends to everybody, and reduces by itself, in member order.
  void Exchange(void* data, size_t count, const rueda_module_reduction& reduction, uint32_t tag);
  void Open();
  std::string KeyOf(int member, int value) const;
  void Publish(const std::vector<char>& addresses, size_t address_bytes);
  std::vector<char> AddressFrom(int peer, size_t address_bytes, Clock::time_point deadline);
  void ConnectTo(int peer, const std::vector<char>& address);

  const int members_;
  const int self_;
  const std::string prefix_;
  const std::string interface_;
  const milliseconds timeout_;
  const rueda_module_store store_;
  rueda::PeerPaths paths_;

  // What Exchange received. Gloo's thread writes here: it has ended when this is freed.
  std::vector<char> received_;

  // What Abort needs while the other thread connects.
  mutable std::mutex mutex_;
  bool aborted_ = false;
  std::shared_ptr<AbortableContext> transport_;
  int connecting_to_ = -1;

  std::shared_ptr<gloo::Context> mesh_;  // null until Open
  size_t address_bytes_ = 0;
  std::vector<bool> connected_;  // by member
  int connections_ = 0;
};

std::string rueda_module_communicator::KeyOf(int member, int value) const {
  return prefix_ + "/" + std::to_string(member) + "/" + std::to_string(value);
}

void rueda_module_communicator::Connect(int peer) {
  const auto deadline = Clock::now() + timeout_;
  if (mesh_ == nullptr) Open();
  bool is_new = false;
  for (int member = 0; member < members_; ++member) {
    if (member == self_ || connected_[member] || (peer >= 0 && member != peer)) continue;
    ConnectTo(member, AddressFrom(member, address_bytes_, deadline));
    connected_[member] = true;
    ++connections_;
    is_new = true;
  }
  if (is_new) paths_.FindSockets();
}

// Says where this member awaits the others.
void rueda_module_communicator::Open() {
  gloo::transport::tcp::attr attributes;
  attributes.iface = interface_;
  const auto device = gloo::transport::tcp::CreateDevice(attributes);
  const auto gloo = device->createContext(self_, members_);
  gloo->setTimeout(std::max(timeout_ / kGlooConnectFactor, milliseconds(1)));
  const auto transport = std::make_shared<AbortableContext>(gloo);
  std::vector<char> addresses;
  for (int peer = 0; peer < members_; ++peer) {
    if (peer == self_) continue;
    const std::vector<char> address = transport->createPair(peer)->address().bytes();
    address_bytes_ = address.size();
    addresses.insert(addresses.end(), address.begin(), address.end());
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) transport->Abort();
    transport_ = transport;
  }
  Publish(addresses, address_bytes_);
  connected_.assign(static_cast<size_t>(members_), false);
  mesh_ = std::make_shared<Mesh>(device, transport, timeout_);
}

void rueda_module_communicator::Publish(const std::vector<char>& addresses, size_t address_bytes) {
  const size_t value_bytes = kAddressesPerValue * address_bytes;
  char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
  for (size_t at = 0; at < addresses.size(); at += value_bytes) {
    const std::string key = KeyOf(self_, static_cast<int>(at / value_bytes));
    const int32_t code = store_.set(store_.user, key.c_str(), addresses.data() + at,
                                    std::min(value_bytes, addresses.size() - at), message);
    if (code != kOk) throw Error(code, message);
  }
}

// Where `peer` awaits this member.
std::vector<char> rueda_module_communicator::AddressFrom(int peer, size_t address_bytes,
                                                         Clock::time_point deadline) {
  transport_->ThrowIfAborted();
  const int index = peer < self_ ? self_ - 1 : self_;  // a member is not among its own peers
  std::vector<char> value(kAddressesPerValue * address_bytes);
  size_t bytes = value.size();
  const int64_t left =
      std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
  char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
  const int32_t code = store_.get(store_.user, KeyOf(peer, index / kAddressesPerValue).c_str(),
                                  std::max<int64_t>(left, 0), value.data(), &bytes, message);
  if (code == kDeadlineExceeded) {
    throw Error(code, "member " + std::to_string(peer) + " of " + std::to_string(members_) +
                          " did not come within " + std::to_string(timeout_.count()) + " ms");
  }
  if (code != kOk) throw Error(code, message);
  const size_t offset = static_cast<size_t>(index % kAddressesPerValue) * address_bytes;
  if (offset + address_bytes > bytes) {
    throw Error(kInternal, "member " + std::to_string(peer) + " knows of fewer members");
  }
  return {value.begin() + static_cast<ptrdiff_t>(offset),
          value.begin() + static_cast<ptrdiff_t>(offset + address_bytes)};
}

void rueda_module_communicator::ConnectTo(int peer, const std::vector<char>& address) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    transport_->ThrowIfAborted();
    connecting_to_ = peer;
  }
  const auto start = Clock::now();
  try {
    const auto& pair = transport_->getPair(peer);
    paths_.Expect(peer, gloo::transport::tcp::Address(pair->address().bytes()).getSockaddr(),
                  gloo::transport::tcp::Address(address).getSockaddr());
    pair->connect(address);
  } catch (const gloo::IoException& error) {
    // Gloo has one type for a refused connection and for one that did not come in time.
    const bool late = Clock::now() - start >= timeout_ / kGlooConnectFactor * kGlooConnectFactor;
    throw Error(late ? kDeadlineExceeded : kUnavailable,
                "connecting to member " + std::to_string(peer) + ": " + error.what());
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  connecting_to_ = -1;
  transport_->ThrowIfAborted();
}

void rueda_module_communicator::Abort() {
  const std::lock_guard<std::mutex> lock(mutex_);
  aborted_ = true;
  if (transport_ == nullptr) return;
  transport_->Abort();
  // A pair that is closed does not wait for its connection any longer.
  if (connecting_to_ >= 0) transport_->getPair(connecting_to_)->close();
}

int rueda_module_communicator::SilentPeer(int64_t* silence, int32_t* is_of_large) {
  const rueda::PeerPaths::Silence found = paths_.Silent();
  *silence = std::chrono::duration_cast<std::chrono::nanoseconds>(found.time).count();
  *is_of_large = found.is_of_large ? 1 : 0;
  return found.peer;
}

bool rueda_module_communicator::aborted() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return aborted_;
}

struct rueda_module_buffer {
  rueda_module_communicator* communicator;
  std::unique_ptr<gloo::transport::UnboundBuffer> gloo;
};

// Operations ----------------------------------------------------------------------------------

void rueda_module_communicator::Allreduce(void* data, size_t count,
                                          const rueda_module_reduction& reduction, uint32_t tag) {
  const size_t bytes = count * reduction.element_bytes;
  if (members_ <= kExchangeMembersMax &&
      bytes <= kExchangeBytesMax / static_cast<size_t>(members_ - 1)) {
    Exchange(data, count, reduction, tag);
    return;
  }
  gloo::AllreduceOptions options(Connected());
  switch (reduction.element_bytes) {
    case 1:
      options.setOutput(static_cast<uint8_t*>(data), count);
      break;
    case 2:
      options.setOutput(static_cast<uint16_t*>(data), count);
      break;
    case 4:
      options.setOutput(static_cast<uint32_t*>(data), count);
      break;
    case 8:
      options.setOutput(static_cast<uint64_t*>(data), count);
      break;
    case 16:
      options.setOutput(static_cast<std::complex<double>*>(data), count);
      break;
    default:
      throw Error(kInternal, "elements of " + std::to_string(reduction.element_bytes) + " bytes");
  }
  options.setReduceFunction([&](void* destination, const void* a, const void* b, size_t n) {
    reduction.reduce(reduction.user, destination, a, b, n);
  });
  using Algorithm = gloo::AllreduceOptions::Algorithm;
  options.setAlgorithm(bytes <= kBcubeBytesMax ? Algorithm::BCUBE : Algorithm::RING);
  options.setMaxSegmentSize(kRingSegmentBytes);
  options.setTag(tag);
  gloo::allreduce(options);
}

void rueda_module_communicator::Exchange(void* data, size_t count,
                                         const rueda_module_reduction& reduction, uint32_t tag) {
  const size_t bytes = count * reduction.element_bytes;
  const size_t received_bytes = static_cast<size_t>(members_ - 1) * bytes;
  if (received_.size() < received_bytes) received_.resize(received_bytes);
  const auto place_of = [&](int peer) {
    return static_cast<size_t>(peer < self_ ? peer : peer - 1) * bytes;
  };
  {
    const uint64_t slot = gloo::Slot::build(kExchangeSlotPrefix, tag);
    const auto inbox = Connected()->createUnboundBuffer(received_.data(), received_bytes);
    const auto own = Connected()->createUnboundBuffer(data, bytes);
    for (int k = 1; k < members_; ++k) {
      const int peer = (self_ + members_ - k) % members_;
      inbox->recv(peer, slot, place_of(peer), bytes);
    }
    for (int k = 1; k < members_; ++k) own->send((self_ + k) % members_, slot, 0, bytes);
    for (int k = 1; k < members_; ++k) inbox->waitRecv(timeout_);
    for (int k = 1; k < members_; ++k) own->waitSend(timeout_);
  }
  const auto operand = [&](int member) {
    return member == self_ ? static_cast<char*>(data) : received_.data() + place_of(member);
  };
  char* const sum = operand(0);
  for (int member = 1; member < members_; ++member) {
    const bool last = member + 1 == members_;
    reduction.reduce(reduction.user, last ? data : sum, sum, operand(member), count);
  }
}

void rueda_module_communicator::Allgatherv(void* data, const int64_t* bytes, uint32_t tag) {
  gloo::AllgathervOptions options(Connected());
  options.setOutput(static_cast<char*>(data), std::vector<size_t>(bytes, bytes + members_));
  options.setTag(tag);
  gloo::allgatherv(options);
}

void rueda_module_communicator::Broadcast(void* data, size_t bytes, int root, uint32_t tag) {
  gloo::BroadcastOptions options(Connected());
  options.setOutput(static_cast<char*>(data), bytes);
  options.setRoot(root);
  options.setTag(tag);
  gloo::broadcast(options);
}

void rueda_module_communicator::Barrier(uint32_t tag) {
  gloo::BarrierOptions options(Connected());
  options.setTag(tag);
  gloo::barrier(options);
}

void rueda_module_communicator::Transfer(const rueda_module_transfer* sends, size_t send_count,
                                         const rueda_module_transfer* receives,
                                         size_t receive_count, uint32_t tag) {
  const uint64_t slot = gloo::Slot::build(kTransferSlotPrefix, tag);
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> inboxes, outboxes;
  for (size_t i = 0; i < receive_count; ++i) {
    const rueda_module_transfer& receive = receives[i];
    inboxes.push_back(ConnectedTo(receive.peer)->createUnboundBuffer(receive.data, receive.bytes));
    inboxes.back()->recv(receive.peer, slot, 0, receive.bytes);
  }
  for (size_t i = 0; i < send_count; ++i) {
    const rueda_module_transfer& send = sends[i];
    outboxes.push_back(ConnectedTo(send.peer)->createUnboundBuffer(send.data, send.bytes));
    outboxes.back()->send(send.peer, slot, 0, send.bytes);
  }
  for (const auto& inbox : inboxes) inbox->waitRecv(timeout_);
  for (const auto& outbox : outboxes) outbox->waitSend(timeout_);
}

// The table -----------------------------------------------------------------------------------

namespace {

int32_t Report(int32_t code, const char* words, char* message) {
  // Gloo begins with a line of its source, "[./gloo/transport/tcp/pair.cc:598] ".
  const char* const end = *words == '[' ? strstr(words, "] ") : nullptr;
  snprintf(message, RUEDA_MODULE_MESSAGE_BYTES, "%s", end == nullptr ? words : end + 2);
  return code;
}

int32_t Report(const std::exception& error, char* message) {
  if (const auto* ours = dynamic_cast<const Error*>(&error)) {
    return Report(ours->code, ours->what(), message);
  }
  if (dynamic_cast<const gloo::IoException*>(&error) != nullptr) {
    return Report(kUnavailable, error.what(), message);
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return Report(kResourceExhausted, "out of memory", message);
  }
  return Report(kInternal, error.what(), message);
}

// Runs `call`; no exception gets out.
template <typename Call>
int32_t Guarded(char* message, Call call) noexcept {
  try {
    call();
    return kOk;
  } catch (const std::exception& error) {
    return Report(error, message);
  } catch (...) {
    return Report(kInternal, "an exception of unknown type", message);
  }
}

// The same for what can be aborted: then that is the reason, whatever Gloo makes of it.
template <typename Call>
int32_t Abortable(rueda_module_communicator* communicator, char* message, Call call) noexcept {
  const int32_t code = Guarded(message, call);
  if (code == kOk || !communicator->aborted()) return code;
  return Report(kAborted, "the operation was aborted", message);
}

int32_t Create(const rueda_module_group* group, rueda_module_communicator** communicator,
               char* message) {
  return Guarded(message, [&] {
    if (group->size != sizeof(*group)) throw Error(kInternal, "a group of another version");
    *communicator = new rueda_module_communicator(*group);
  });
}

int32_t Connect(rueda_module_communicator* communicator, int32_t peer, char* message) {
  return Abortable(communicator, message, [&] { communicator->Connect(peer); });
}

int32_t Allreduce(rueda_module_communicator* communicator, void* data, size_t count,
                  const rueda_module_reduction* reduction, uint32_t tag, char* message) {
  return Abortable(communicator, message,
                   [&] { communicator->Allreduce(data, count, *reduction, tag); });
}

int32_t Allgatherv(rueda_module_communicator* communicator, void* data, const int64_t* bytes,
                   uint32_t tag, char* message) {
  return Abortable(communicator, message, [&] { communicator->Allgatherv(data, bytes, tag); });
}

int32_t Broadcast(rueda_module_communicator* communicator, void* data, size_t bytes, int32_t root,
                  uint32_t tag, char* message) {
  return Abortable(communicator, message, [&] { communicator->Broadcast(data, bytes, root, tag); });
}

int32_t Barrier(rueda_module_communicator* communicator, uint32_t tag, char* message) {
  return Abortable(communicator, message, [&] { communicator->Barrier(tag); });
}

int32_t Exchange(rueda_module_communicator* communicator, const rueda_module_transfer* sends,
                 size_t send_count, const rueda_module_transfer* receives, size_t receive_count,
                 uint32_t tag, char* message) {
  return Abortable(communicator, message, [&] {
    communicator->Transfer(sends, send_count, receives, receive_count, tag);
  });
}

int32_t OpenBuffer(rueda_module_communicator* communicator, void* data, size_t bytes,
                   rueda_module_buffer** buffer, char* message) {
  return Abortable(communicator, message, [&] {
    *buffer = new rueda_module_buffer{communicator, communicator->OpenBuffer(data, bytes)};
  });
}

int32_t PostReceive(rueda_module_buffer* buffer, int32_t peer, uint32_t tag, size_t offset,
                    size_t bytes, char* message) {
  return Abortable(buffer->communicator, message, [&] {
    buffer->gloo->recv(peer, gloo::Slot::build(kBufferSlotPrefix, tag), offset, bytes);
  });
}

int32_t PostSend(rueda_module_buffer* buffer, int32_t peer, uint32_t tag, size_t offset,
                 size_t bytes, char* message) {
  return Abortable(buffer->communicator, message, [&] {
    buffer->gloo->send(peer, gloo::Slot::build(kBufferSlotPrefix, tag), offset, bytes);
  });
}

int32_t Await(rueda_module_buffer* buffer, size_t receives, size_t sends, char* message) {
  return Abortable(buffer->communicator, message, [&] {
    const milliseconds timeout = buffer->communicator->timeout();
    while (receives-- > 0) buffer->gloo->waitRecv(timeout);
    while (sends-- > 0) buffer->gloo->waitSend(timeout);
  });
}

void CloseBuffer(rueda_module_buffer* buffer) {
  char message[RUEDA_MODULE_MESSAGE_BYTES];
  Guarded(message, [&] { delete buffer; });
}

int32_t SilentPeer(rueda_module_communicator* communicator, int64_t* silence,
                   int32_t* is_of_large) {
  char message[RUEDA_MODULE_MESSAGE_BYTES];
  int32_t peer = -1;
  Guarded(message, [&] { peer = communicator->SilentPeer(silence, is_of_large); });
  return peer;
}

void Abort(rueda_module_communicator* communicator) {
  char message[RUEDA_MODULE_MESSAGE_BYTES];
  Guarded(message, [&] { communicator->Abort(); });
}

void Destroy(rueda_module_communicator* communicator) {
  char message[RUEDA_MODULE_MESSAGE_BYTES];
  Guarded(message, [&] { delete communicator; });
}

constexpr rueda_module kModule = {
    sizeof(rueda_module), RUEDA_MODULE_ABI, "gloo",     &Create,  &Connect,
    &Allreduce,           &Allgatherv,      &Broadcast, &Barrier, &Exchange,
    &OpenBuffer,          &PostReceive,     &PostSend,  &Await,   &CloseBuffer,
    &SilentPeer,          &Abort,           &Destroy};

}  // namespace

extern "C" __attribute__((visibility("default"))) const rueda_module* rueda_module_table() {
  return &kModule;
}
