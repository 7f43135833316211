// FAKE: see communicator.h.
#include "test/support/fake_cuda/communicator.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/tensor/dtype.h"
#include "core/tensor/signature.h"

namespace rueda::fake_cuda {
namespace {

constexpr std::chrono::milliseconds kLook(20);
// How long a member waits for the others to end.
constexpr int64_t kLeavePatience = kSecond;

struct Globals {
  std::atomic<bool> split_works{true};
  std::atomic<int32_t> count{0};
  Mutex mutex;
  std::set<Communicator*> live ABSL_GUARDED_BY(mutex);
  std::set<std::pair<int32_t, int32_t>> refused ABSL_GUARDED_BY(mutex);
};

Globals& globals() {
  return PerProcess<Globals>();
}

Outcome Unavailable(std::string words) {
  return {absl::StatusCode::kUnavailable, std::move(words)};
}

size_t Alignment(const Description& what) {
  if (what.dtype < 0) return 1;
  const auto dtype = static_cast<DType>(what.dtype);
  return DTypeSize(dtype) / (IsComplex(dtype) ? 2 : 1);
}

// Whether in and out are the same where NCCL wants them to be, or apart.
bool OverlapsWrongly(const Transfer& transfer, int32_t self) {
  const Description& what = transfer.what;
  const auto in = reinterpret_cast<uintptr_t>(transfer.in);
  const auto out = reinterpret_cast<uintptr_t>(transfer.out);
  if (what.in_bytes == 0 || what.out_bytes == 0) return false;
  if (in + what.in_bytes <= out || out + what.out_bytes <= in) return false;
  if (what.kind == Collective::kAllgather) return in != out + self * what.in_bytes;
  if (what.kind == Collective::kReducescatter) return out != in + self * what.out_bytes;
  return in != out;
}

}  // namespace

bool Supports(int32_t dtype, int32_t reduce_op) {
  if (!IsDType(dtype)) return false;
  {
    MutexLock lock(globals().mutex);
    if (globals().refused.count({dtype, reduce_op}) > 0) return false;
  }
  const auto type = static_cast<DType>(dtype);
  const auto op = static_cast<ReduceOp>(reduce_op);
  if (type == DType::kBool || type == DType::kInt16 || type == DType::kUInt16) return false;
  if (IsComplex(type)) return op == ReduceOp::kSum;
  if (op == ReduceOp::kAverage) return IsFloating(type);
  return op == ReduceOp::kSum || op == ReduceOp::kProduct || op == ReduceOp::kMin ||
         op == ReduceOp::kMax;
}

void Refuse(int32_t dtype, int32_t reduce_op) {
  MutexLock lock(globals().mutex);
  globals().refused.insert({dtype, reduce_op});
}

void SetSplit(bool works) {
  globals().split_works.store(works);
}

void ResetCommunicators() {
  SetSplit(true);
  MutexLock lock(globals().mutex);
  globals().refused.clear();
}

int32_t LiveCommunicators() {
  MutexLock lock(globals().mutex);
  return static_cast<int32_t>(globals().live.size());
}

void KillMembers(int32_t number, int32_t device) {
  MutexLock lock(globals().mutex);
  for (Communicator* const one : globals().live) {
    if (number == -1 ? one->device == device : one->number == number) one->Vanish();
  }
}

Communicator::Communicator(int32_t on) : number(++globals().count), device(on) {
  MutexLock lock(globals().mutex);
  globals().live.insert(this);
}

Communicator::~Communicator() {
  for (const int socket : {data_.load(), control_.load()}) {
    if (socket >= 0) close(socket);
  }
}

Outcome Communicator::Connect(const rueda_cuda_id& id, int32_t members, int32_t self,
                              int32_t device, std::shared_ptr<Communicator>* result) {
  if (members < 1 || members > FAKE_CUDA_MEMBERS_MAX || self < 0 || self >= members) {
    return InvalidArgument(absl::StrCat("member ", self, " of ", members));
  }
  auto communicator = std::make_shared<Communicator>(device);
  if (Outcome joined = communicator->Join(id, members, self); !joined.ok()) {
    communicator->Destroy();
    return joined;
  }
  *result = std::move(communicator);
  return {};
}

Outcome Communicator::Join(const rueda_cuda_id& id, int32_t members, int32_t self) {
  members_ = members;
  self_ = self;
  const std::pair<std::atomic<int>*, Channel> both[] = {{&data_, Channel::kData},
                                                        {&control_, Channel::kControl}};
  for (const auto& [socket, channel] : both) {
    const Hello hello = {members, self, channel};
    socket->store(ConnectToHub(id));
    if (*socket < 0 || !SendAll(*socket, &hello, sizeof hello, nullptr)) {
      return Unavailable("nobody is where the communicator's id leads");
    }
  }
  return {};
}

Outcome Communicator::Split(int32_t color, int32_t key, std::shared_ptr<Communicator>* result) {
  if (!globals().split_works.load()) {
    return {absl::StatusCode::kUnimplemented, "this fake can't split"};
  }
  {
    MutexLock lock(mutex_);
    if (turn_ < tickets_) {
      Outcome wrong = Internal("a communicator was split with work under way");
      FailDevice(device, wrong.words);
      return wrong;
    }
  }
  const Header header = {Say::kSplit, self_, 0};
  const Choice choice = {color, key};
  if (!SendAll(control_, &header, sizeof header, nullptr) ||
      !SendAll(control_, &choice, sizeof choice, nullptr)) {
    return Unavailable("the member that made the id has vanished");
  }
  if (color < 0) return {};
  *result = std::make_shared<Communicator>(device);
  (*result)->parent_ = shared_from_this();
  return {};
}

Outcome Communicator::Await(int64_t timeout) {
  if (ready_) return Usable();
  const int64_t deadline = DeadlineAfter(MonotonicNow(), timeout);
  if (parent_ != nullptr) {
    if (Outcome parted = AwaitPart(deadline); !parted.ok()) return parted;
  }
  std::string bytes;
  Outcome there = AwaitSaid(Say::kGo, deadline, &bytes);
  ready_ = there.ok();
  return there;
}

Outcome Communicator::AwaitPart(int64_t deadline) {
  std::string bytes;
  Outcome said;
  do {  // in slices: this may be aborted, too
    const int64_t slice = std::min(deadline, MonotonicNow() + 20 * kMillisecond);
    said = parent_->AwaitSaid(Say::kPart, slice, &bytes);
  } while (said.code == absl::StatusCode::kDeadlineExceeded && MonotonicNow() < deadline &&
           !Stopped());
  if (Stopped()) return Dead();
  if (!said.ok()) return said;
  Part part;
  memcpy(&part, bytes.data(), sizeof part);
  parent_.reset();
  return Join(part.id, part.members, part.self);
}

// Reads one thing that the hub says. False: nothing more comes from there, or `stop` said so.
bool Communicator::Read(const Stop& stop, Say* say, std::string* bytes) {
  Header header;
  if (!ReceiveAll(control_, &header, sizeof header, stop)) return false;
  bytes->resize(header.bytes);
  if (!ReceiveAll(control_, bytes->data(), bytes->size(), nullptr)) return false;
  *say = header.say;
  if (header.say == Say::kLost && lost_.empty()) {
    lost_ = absl::StrCat("member ", header.number, " has vanished");
  }
  return true;
}

Outcome Communicator::AwaitSaid(Say wanted, int64_t deadline, std::string* bytes) {
  const Stop stop = [&] { return MonotonicNow() > deadline || Stopped(); };
  for (;;) {
    Say say = wanted;
    if (!Read(stop, &say, bytes)) {
      if (Stopped()) return Dead();
      if (MonotonicNow() > deadline) {
        return {absl::StatusCode::kDeadlineExceeded, "not all members came in time"};
      }
      return Unavailable("the member that made the id has vanished");
    }
    if (say == wanted) return {};
    if (say == Say::kRefused) return InvalidArgument(*bytes);
    if (say == Say::kLost) return Unavailable(lost_);
  }
}

Outcome Communicator::AllocateBuffer(size_t bytes, void** memory) {
  Outcome allocated = Allocate(device, bytes, memory);
  if (allocated.ok()) buffers_.push_back(*memory);
  return allocated;
}

void Communicator::ReleaseBuffer(void* memory) {
  if (std::erase(buffers_, memory) == 0) {
    return FailDevice(device, "a buffer was released that is not this communicator's");
  }
  Release(device, memory);
}

Outcome Communicator::Begin() {
  if (gathering_) return InvalidArgument("there was a begin already");
  gathering_ = true;
  return {};
}

Outcome Communicator::End() {
  if (!gathering_) return InvalidArgument("there was no begin");
  gathering_ = false;
  const std::vector<Transfer> group = std::exchange(group_, {});
  const std::shared_ptr<Stream> stream = std::exchange(group_stream_, nullptr);
  if (stream == nullptr) return InvalidArgument("nothing stands between begin and end");
  if (Outcome usable = Usable(); !usable.ok() || group.empty()) return usable;
  auto run = [me = shared_from_this(), ticket = tickets_, group] { me->Run(ticket, group); };
  Outcome enqueued = fake_cuda::Enqueue(*stream, std::move(run));
  if (enqueued.ok()) ++tickets_;
  return enqueued;
}

Outcome Communicator::Enqueue(const std::shared_ptr<Stream>& stream, const Transfer& transfer) {
  const bool alone = !gathering_;
  if (!alone && group_stream_ != nullptr && group_stream_ != stream) {
    return {absl::StatusCode::kUnimplemented, "this fake has groups on one stream only"};
  }
  gathering_ = true;
  group_stream_ = stream;
  const Collective kind = transfer.what.kind;
  // NCCL leaves out empty collectives, too.
  if (transfer.what.count > 0 || kind == Collective::kSend || kind == Collective::kReceive) {
    group_.push_back(transfer);
  }
  return alone ? End() : Outcome();
}

Outcome Communicator::Dead() const {
  if (aborted_.load()) return {absl::StatusCode::kAborted, "the communicator was aborted"};
  return CheckDevice(device);
}

Outcome Communicator::Usable() const {
  if (Outcome dead = Dead(); !dead.ok()) return dead;
  return ready_ ? Outcome() : InvalidArgument("the communicator is not ready: await it first");
}

Outcome Communicator::Check() {
  if (Outcome dead = Dead(); !dead.ok()) return dead;
  if (!ready_) return {};
  pollfd wanted = {control_, POLLIN, 0};
  while (lost_.empty() && poll(&wanted, 1, 0) == 1) {
    Say say;
    std::string bytes;
    if (Read(nullptr, &say, &bytes)) continue;
    lost_ = "the member that made the id has vanished";
  }
  return lost_.empty() ? Outcome() : Unavailable(lost_);
}

void Communicator::Abort() {
  aborted_.store(true);
  Vanish();
  MutexLock lock(mutex_);
  changed_.NotifyAll();
}

void Communicator::Vanish() {
  for (const int socket : {data_.load(), control_.load()}) {
    if (socket >= 0) shutdown(socket, SHUT_RDWR);
  }
}

void Communicator::Destroy() {
  if (!Stopped() && ready_) {
    MutexLock lock(mutex_);
    if (turn_ < tickets_) FailDevice(device, "a communicator was destroyed with work under way");
    if (!buffers_.empty()) FailDevice(device, "a communicator was destroyed before its buffers");
  }
  if (!Stopped() && ready_) {
    const Header header = {Say::kLeave, self_, 0};
    SendAll(control_, &header, sizeof header, nullptr);
    std::string bytes;
    AwaitSaid(Say::kMayLeave, MonotonicNow() + kLeavePatience, &bytes);
  }
  {
    MutexLock lock(globals().mutex);
    globals().live.erase(this);
  }
  Abort();
}

// ---- on a stream's thread ----

void Communicator::Run(uint64_t ticket, const std::vector<Transfer>& task) {
  const Waiting waiting;
  {
    MutexLock lock(mutex_);
    while (turn_ < ticket && !Stopped()) changed_.WaitFor(mutex_, kLook);
  }
  const bool begun = !Stopped();
  bool done = false;
  if (begun) {
    if (Outcome checked = CheckTask(task); !checked.ok()) {
      FailDevice(device, checked.words);
    } else {
      done = Exchange(task);
    }
  }
  MutexLock lock(mutex_);
  while (!done && !Stopped()) changed_.WaitFor(mutex_, kLook);  // as a kernel spins
  if (begun && !done && !HasFailed(device)) Spoil(task);
  turn_ = std::max(turn_, ticket + 1);
  changed_.NotifyAll();
}

Outcome Communicator::CheckTask(const std::vector<Transfer>& task) const {
  for (const Transfer& transfer : task) {
    const Description& what = transfer.what;
    const size_t alignment = Alignment(what);
    if (Outcome in = CheckRange(device, transfer.in, what.in_bytes, alignment); !in.ok()) return in;
    Outcome out = CheckRange(device, transfer.out, what.out_bytes, alignment);
    if (!out.ok()) return out;
    if (OverlapsWrongly(transfer, self_)) {
      return Internal("a collective's input and output overlap otherwise than in place");
    }
  }
  return {};
}

// False: the hub is out of reach, or the wait has ended.
bool Communicator::Exchange(const std::vector<Transfer>& task) {
  const Stop stop = [this] { return Stopped(); };
  Header header = {Say::kTask, static_cast<int32_t>(task.size()), 0};
  if (!SendAll(data_, &header, sizeof header, stop)) return false;
  for (const Transfer& transfer : task) {
    if (!SendAll(data_, &transfer.what, sizeof transfer.what, stop) ||
        !SendAll(data_, transfer.in, transfer.what.in_bytes, stop)) {
      return false;
    }
  }
  if (!ReceiveAll(data_, &header, sizeof header, stop)) return false;
  if (header.say == Say::kWrong) {
    std::string words(header.bytes, 0);
    if (ReceiveAll(data_, words.data(), words.size(), stop)) FailDevice(device, words);
    return false;
  }
  for (const Transfer& transfer : task) {
    if (!ReceiveAll(data_, transfer.out, transfer.what.out_bytes, stop)) return false;
  }
  return true;
}

// A collective that was aborted while it ran may have written anything, until its task ends.
void Communicator::Spoil(const std::vector<Transfer>& task) {
  for (const Transfer& transfer : task) {
    const size_t bytes = transfer.what.out_bytes;
    const Outcome checked = CheckRange(device, transfer.out, bytes, 1);
    if (!checked.ok()) return FailDevice(device, checked.words);
    memset(transfer.out, 0xAB, bytes);
  }
}

}  // namespace rueda::fake_cuda
