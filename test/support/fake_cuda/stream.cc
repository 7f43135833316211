// FAKE: see stream.h.
#include "test/support/fake_cuda/stream.h"

#include <sched.h>
#include <stdlib.h>

#include <chrono>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"

namespace rueda::fake_cuda {
namespace {

constexpr std::chrono::milliseconds kLook(20);  // how often a wait looks whether the device failed

// Lets the streams' threads run one task at a time, whichever draws the lowest number.
class Lottery {
 public:
  Lottery() {
    const char* const seed = getenv("FAKE_CUDA_SEED");
    on_ = seed != nullptr;
    if (on_) numbers_.seed(static_cast<uint64_t>(atoll(seed)));
  }
  bool on() const { return on_; }

  void Enter() {
    if (!on_) return;
    MutexLock lock(mutex_);
    const std::pair<uint64_t, uint64_t> ticket = {numbers_(), count_++};
    const int yields = static_cast<int>(ticket.first % 8);
    waiting_.insert(ticket);
    for (int i = 0; i < yields; ++i) {  // others may come
      mutex_.Unlock();
      sched_yield();
      mutex_.Lock();
    }
    while (running_ || *waiting_.begin() != ticket) changed_.Wait(mutex_);
    waiting_.erase(ticket);
    running_ = true;
  }
  void Leave() {
    if (!on_) return;
    MutexLock lock(mutex_);
    running_ = false;
    changed_.NotifyAll();
  }

 private:
  bool on_;
  Mutex mutex_;
  CondVar changed_;
  std::mt19937_64 numbers_ ABSL_GUARDED_BY(mutex_);
  uint64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::pair<uint64_t, uint64_t>> waiting_ ABSL_GUARDED_BY(mutex_);
};

Lottery& lottery() {
  return PerProcess<Lottery>();
}

}  // namespace

class Stream {
 public:
  Stream(int32_t device, int32_t number) : device_(device), number_(number) {}
  static std::shared_ptr<Stream> Start(int32_t device, int32_t number) {
    auto stream = std::make_shared<Stream>(device, number);
    std::thread([stream] { stream->Run(); }).detach();
    return stream;
  }

  int32_t device() const { return device_; }
  int32_t number() const { return number_; }

  Outcome Enqueue(std::function<void()> task) {
    MutexLock lock(mutex_);
    if (capturing_) return Internal("operation not permitted when stream is capturing");
    tasks_.push_back(std::move(task));
    ++pending_;
    changed_.NotifyAll();
    return {};
  }
  void Close() {
    MutexLock lock(mutex_);
    closing_ = true;
    held_ = false;
    changed_.NotifyAll();
  }
  void Hold(bool held) {
    MutexLock lock(mutex_);
    held_ = held;
    steps_ = 0;
    changed_.NotifyAll();
  }
  void Step(int32_t tasks) {
    MutexLock lock(mutex_);
    steps_ += tasks;
    changed_.NotifyAll();
  }
  int32_t Pending() {
    MutexLock lock(mutex_);
    return pending_;
  }
  void Drain() {
    MutexLock lock(mutex_);
    while (pending_ > 0) changed_.Wait(mutex_);
  }
  void SetCapturing(bool capturing) {
    MutexLock lock(mutex_);
    capturing_ = capturing;
  }
  bool IsCapturing() {
    MutexLock lock(mutex_);
    return capturing_;
  }

 private:
  // A failed device lets go of all that it has.
  bool IsHeld() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return held_ && steps_ == 0 && !HasFailed(device_);
  }
  std::chrono::nanoseconds Patience() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (tasks_.empty()) return std::chrono::hours(1);
    return kLook;
  }
  void Run() {
    for (;;) {
      std::function<void()> task;
      {
        MutexLock lock(mutex_);
        while (tasks_.empty() ? !closing_ : IsHeld()) changed_.WaitFor(mutex_, Patience());
        if (tasks_.empty()) return;
        if (steps_ > 0) --steps_;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      lottery().Enter();
      task();
      task = nullptr;
      lottery().Leave();
      MutexLock lock(mutex_);
      --pending_;
      changed_.NotifyAll();
    }
  }

  const int32_t device_;
  const int32_t number_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  int32_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  int32_t steps_ ABSL_GUARDED_BY(mutex_) = 0;
  bool capturing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
};

namespace {

// One call of `record`: what a wait refers to, whatever the event is recorded behind later.
struct Mark {
  explicit Mark(int32_t on) : device(on) {}
  const int32_t device;
  Mutex mutex;
  CondVar changed;
  bool done ABSL_GUARDED_BY(mutex) = false;

  void Set() {
    MutexLock lock(mutex);
    done = true;
    changed.NotifyAll();
  }
  // Until it is done, which it soon is when its device fails. The same of the one that waits.
  void Await(int32_t waiter) {
    MutexLock lock(mutex);
    while (!done && (waiter == device || !HasFailed(waiter))) changed.WaitFor(mutex, kLook);
  }
};

struct Event {
  int32_t device;
  int32_t number;
  std::shared_ptr<Mark> latest;  // null: never recorded
};

struct Registry {
  Mutex mutex;
  int32_t stream_count ABSL_GUARDED_BY(mutex) = 0;
  int32_t event_count ABSL_GUARDED_BY(mutex) = 0;
  std::map<void*, std::shared_ptr<Stream>> streams ABSL_GUARDED_BY(mutex);
  std::map<int32_t, std::shared_ptr<Stream>> defaults ABSL_GUARDED_BY(mutex);  // by device
  std::map<void*, std::unique_ptr<Event>> events ABSL_GUARDED_BY(mutex);
  std::vector<std::weak_ptr<Stream>> all ABSL_GUARDED_BY(mutex);  // closed ones, too

  std::shared_ptr<Stream> Start(int32_t device, int32_t number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::shared_ptr<Stream> stream = Stream::Start(device, number);
    std::erase_if(all, [](const std::weak_ptr<Stream>& one) { return one.expired(); });
    all.push_back(stream);
    return stream;
  }
};

Registry& registry() {
  return PerProcess<Registry>();
}

Outcome NoEvent() {
  return InvalidArgument("there is no such event");
}

}  // namespace

std::shared_ptr<Stream> FindStream(int32_t device, void* handle) {
  MutexLock lock(registry().mutex);
  if (reinterpret_cast<uintptr_t>(handle) <= 2) {
    std::shared_ptr<Stream>& stream = registry().defaults[device];
    if (stream == nullptr) stream = registry().Start(device, 0);
    return stream;
  }
  const auto found = registry().streams.find(handle);
  if (found == registry().streams.end() || found->second->device() != device) return nullptr;
  return found->second;
}

void* OpenStream(int32_t device) {
  MutexLock lock(registry().mutex);
  std::shared_ptr<Stream> stream = registry().Start(device, ++registry().stream_count);
  void* const handle = stream.get();
  registry().streams[handle] = std::move(stream);
  return handle;
}

bool CloseStream(int32_t device, void* handle) {
  MutexLock lock(registry().mutex);
  const auto found = registry().streams.find(handle);
  if (found == registry().streams.end() || found->second->device() != device) return false;
  found->second->Close();
  registry().streams.erase(found);
  return true;
}

void DrainDevice(int32_t device) {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    MutexLock lock(registry().mutex);
    for (const std::weak_ptr<Stream>& one : registry().all) {
      std::shared_ptr<Stream> stream = one.lock();
      if (stream != nullptr && stream->device() == device) streams.push_back(std::move(stream));
    }
  }
  for (const std::shared_ptr<Stream>& stream : streams) stream->Drain();
}

int32_t LiveStreams() {
  MutexLock lock(registry().mutex);
  return static_cast<int32_t>(registry().streams.size());
}

int32_t NumberOf(const Stream& stream) {
  return stream.number();
}
int32_t DeviceOf(const Stream& stream) {
  return stream.device();
}

Outcome Enqueue(Stream& stream, std::function<void()> task) {
  return stream.Enqueue([device = stream.device(), task = std::move(task)] {
    if (!HasFailed(device)) task();
  });
}

Outcome EnqueueAlways(Stream& stream, std::function<void()> task) {
  return stream.Enqueue(std::move(task));
}

void Hold(Stream& stream, bool held) {
  stream.Hold(held);
}
void Step(Stream& stream, int32_t tasks) {
  stream.Step(tasks);
}
int32_t Pending(Stream& stream) {
  return stream.Pending();
}
void Drain(Stream& stream) {
  stream.Drain();
}
void SetCapturing(Stream& stream, bool capturing) {
  stream.SetCapturing(capturing);
}
bool IsCapturing(Stream& stream) {
  return stream.IsCapturing();
}

Waiting::Waiting() {
  lottery().Leave();
}
Waiting::~Waiting() {
  lottery().Enter();
}

void* OpenEvent(int32_t device) {
  MutexLock lock(registry().mutex);
  auto event = std::make_unique<Event>(Event{device, ++registry().event_count, nullptr});
  void* const handle = event.get();
  registry().events[handle] = std::move(event);
  return handle;
}

bool CloseEvent(void* handle) {
  MutexLock lock(registry().mutex);
  return registry().events.erase(handle) == 1;
}

int32_t LiveEvents() {
  MutexLock lock(registry().mutex);
  return static_cast<int32_t>(registry().events.size());
}

int32_t EventNumber(void* handle) {
  MutexLock lock(registry().mutex);
  const auto found = registry().events.find(handle);
  return found == registry().events.end() ? -1 : found->second->number;
}

Outcome Record(int32_t device, void* handle, Stream& stream) {
  auto mark = std::make_shared<Mark>(device);
  MutexLock lock(registry().mutex);
  const auto found = registry().events.find(handle);
  if (found == registry().events.end()) return NoEvent();
  if (found->second->device != device) {
    return InvalidArgument(absl::StrCat("the event is device ", found->second->device, "'s"));
  }
  Outcome enqueued = EnqueueAlways(stream, [mark] { mark->Set(); });
  if (enqueued.ok()) found->second->latest = mark;
  return enqueued;
}

Outcome Wait(Stream& stream, void* handle) {
  std::shared_ptr<Mark> mark;
  {
    MutexLock lock(registry().mutex);
    const auto found = registry().events.find(handle);
    if (found == registry().events.end()) return NoEvent();
    mark = found->second->latest;
  }
  if (mark == nullptr) {
    return IsCapturing(stream) ? Enqueue(stream, nullptr) : Outcome();
  }
  return Enqueue(stream, [mark, device = stream.device()] {
    const Waiting waiting;
    mark->Await(device);
    if (HasFailed(mark->device)) {
      FailDevice(device, absl::StrCat("it waited for device ", mark->device, ", which failed"));
    }
  });
}

Outcome Synchronize(int32_t device, void* handle) {
  std::shared_ptr<Mark> mark;
  {
    MutexLock lock(registry().mutex);
    const auto found = registry().events.find(handle);
    if (found == registry().events.end()) return NoEvent();
    mark = found->second->latest;
  }
  if (mark != nullptr) mark->Await(device);
  return CheckDevice(device);
}

}  // namespace rueda::fake_cuda
