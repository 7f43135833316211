#include "test/support/device_mirror.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>

#include "ops/nccl/cuda_library.h"
#include "rueda/rueda.h"

extern "C" {
const char* __real_rueda_last_error();
rueda_status __real_rueda_init(uint32_t, const rueda_init_options*, rueda_context**);
rueda_status __real_rueda_submit(rueda_context*, const rueda_operation*, size_t,
                                 const rueda_completion*, rueda_handle*);
rueda_status __real_rueda_execute(rueda_context*, const rueda_operation*, size_t, int64_t,
                                  rueda_handle*);
rueda_status __real_rueda_poll(rueda_context*, rueda_handle, int32_t*);
rueda_status __real_rueda_wait(rueda_context*, rueda_handle, int64_t);
rueda_status __real_rueda_wait_on_stream(rueda_context*, rueda_handle, void*);
rueda_status __real_rueda_release(rueda_context*, rueda_handle);
rueda_status __real_rueda_result_take(rueda_context*, rueda_handle, size_t, rueda_result*);
void __real_rueda_result_free(rueda_result*);
rueda_status __real_rueda_context_reset(rueda_context*);
void __real_rueda_context_destroy(rueda_context*);
rueda_status __real_rueda_broadcast_bytes(rueda_context*, int32_t, const char*, int32_t,
                                          const void*, size_t, rueda_result*);
rueda_status __real_rueda_allgather_bytes(rueda_context*, int32_t, const char*, const void*, size_t,
                                          rueda_result*, int64_t*);
}

namespace rueda::testing {
namespace {

// Of the device's memory, on either side of what the library may touch.
constexpr size_t kGuardBytes = 256;
constexpr char kGuard = '\xA5';
// Where in such a unit a tensor begins on the host, it begins on the device.
constexpr size_t kPlace = 256;

// Counts --------------------------------------------------------------------------------------

// Shared by all processes: made before any of them is forked.
struct Counters {
  std::atomic<int64_t> mirrored{0};
  std::atomic<int64_t> on_cpu[static_cast<int>(OnCpu::kCount)] = {};
};
Counters* const counters =
    new (mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
        Counters;

void Count(OnCpu reason) {
  ++counters->on_cpu[static_cast<int>(reason)];
}

// The device ----------------------------------------------------------------------------------

// The module that the library uses: of librueda.so, or of a program that holds it.
const rueda_cuda* LoadTable() {
  std::string directory;
  Dl_info info;
  char file[PATH_MAX];
  const void* const shared = dlsym(RTLD_DEFAULT, "rueda_version");
  if (shared != nullptr && dladdr(shared, &info) != 0 && realpath(info.dli_fname, file)) {
    directory = file;
    directory.replace(directory.rfind('/'), std::string::npos, "/rueda");
  }
  const absl::StatusOr<const rueda_cuda*> table = LoadCuda(directory);
  return table.ok() ? *table : nullptr;
}

// A context's device, two streams of the caller's, and memory. What the module refuses is the
// test's failure.
class Device {
 public:
  // Null: the context has none.
  static std::shared_ptr<Device> Of(rueda_context* context) {
    rueda_device found;
    if (rueda_local_device(context, RUEDA_CUDA, &found) != RUEDA_OK) return nullptr;
    static const rueda_cuda* const table = LoadTable();
    return table == nullptr ? nullptr : std::make_shared<Device>(table, found);
  }

  Device(const rueda_cuda* cuda, rueda_device device) : cuda_(*cuda), device_(device) {
    for (void*& stream : streams_) Call(cuda_.open_stream, index(), 0, &stream);
    rueda_cuda_device description = {};
    Call(cuda_.describe, index(), &description);
    keeps_memory_ = strcmp(description.name, "fake") != 0;
  }
  Device(const Device&) = delete;
  ~Device() {
    LookAfter();
    for (void* stream : streams_) cuda_.close_stream(index(), stream);
  }

  rueda_device device() const { return device_; }
  void* stream(int which) const { return streams_[which]; }

  // Owned by whoever holds it. A real device's is kept for the next one, as CUDA may wait for
  // everything on the device where memory comes and goes; the fake wants to see that.
  std::shared_ptr<char> Allocate(size_t bytes) {
    if (!keeps_memory_) {
      void* memory = nullptr;
      Call(cuda_.allocate, index(), bytes, &memory);
      return {static_cast<char*>(memory),
              [cuda = &cuda_, device = index()](char* unused) { cuda->release(device, unused); }};
    }
    static std::mutex mutex;
    static auto* const unused = new std::multimap<std::pair<int32_t, size_t>, char*>;
    size_t room = 4096;
    while (room < bytes) room *= 2;
    const std::pair<int32_t, size_t> key(index(), room);
    void* memory = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (const auto it = unused->find(key); it != unused->end()) {
        memory = it->second;
        unused->erase(it);
      }
    }
    if (memory == nullptr) Call(cuda_.allocate, index(), room, &memory);
    return {static_cast<char*>(memory), [key](char* given_back) {
              const std::lock_guard<std::mutex> lock(mutex);
              unused->emplace(key, given_back);
            }};
  }

  void Transfer(void* to, const void* from, size_t bytes) {
    Call(cuda_.transfer, index(), to, from, bytes);
  }
  // Behind what the stream has, from device memory to device memory.
  void Copy(void* stream, const char* from, char* to, size_t bytes) {
    const rueda_cuda_segment segment = {from, to, static_cast<int64_t>(bytes)};
    rueda_cuda_copy copy = {};
    copy.segments = &segment;
    copy.count = 1;
    copy.factor = 1;  // of uint8, whose number is 0
    Call(cuda_.copy, index(), stream, static_cast<const rueda_cuda_copy*>(&copy));
  }
  // Closed when nobody holds it.
  std::shared_ptr<void> Record(void* stream) {
    void* event = nullptr;
    Call(cuda_.open_event, index(), &event);
    Call(cuda_.record, index(), event, stream);
    return {event,
            [cuda = &cuda_, device = index()](void* unused) { cuda->close_event(device, unused); }};
  }
  void Synchronize(const std::shared_ptr<void>& event) {
    Call(cuda_.synchronize, index(), event.get());
  }

  // Work that waits for a stream, for the next thread that may wait: not the engine's.
  void Later(std::function<void()> work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    later_.push_back(std::move(work));
  }
  void LookAfter() {
    std::vector<std::function<void()>> work;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      work.swap(later_);
    }
    for (const auto& each : work) each();
  }

 private:
  int32_t index() const { return device_.id; }

  template <typename Function, typename... Args>
  static void Call(Function function, Args... args) {
    char words[RUEDA_CUDA_MESSAGE_BYTES] = "";
    if (function(args..., words) != 0) ADD_FAILURE() << "the mirror's use of CUDA: " << words;
  }

  const rueda_cuda& cuda_;
  const rueda_device device_;
  void* streams_[2] = {};
  bool keeps_memory_ = false;
  std::mutex mutex_;
  std::vector<std::function<void()>> later_;
};

// Tensors -------------------------------------------------------------------------------------

// What of an operation the library reads and writes, as the header has it.
struct Uses {
  bool input = true;
  bool output = true;     // one may be given
  bool in_place = false;  // without an output the input is it
};

Uses UsesOf(const rueda_operation& operation, int32_t self) {
  const bool root = operation.root == self;
  switch (operation.kind) {
    case RUEDA_ALLREDUCE:
    case RUEDA_BROADCAST:
      return {true, true, true};
    case RUEDA_REDUCE:
      return {true, root, root};
    case RUEDA_GATHER:
      return {true, root, false};
    case RUEDA_SCATTER:  // of another than the root's input only the shape counts
      return {root, true, false};
    case RUEDA_SEND:
      return {true, false, false};
    case RUEDA_RECV:
      return {false, true, false};
    case RUEDA_BARRIER:
      return {false, false, false};
    default:
      return {true, true, false};
  }
}

// The tensor's size; nothing if it is one that the library must refuse.
std::optional<size_t> BytesOf(const rueda_tensor& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > 32 || (tensor.ndim > 0 && tensor.shape == nullptr)) {
    return std::nullopt;
  }
  if (tensor.dtype.lanes != 1 || tensor.dtype.bits % 8 != 0 || tensor.dtype.bits > 128) {
    return std::nullopt;
  }
  size_t bytes = tensor.dtype.bits / 8;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] < 0) return std::nullopt;
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(tensor.shape[i]), &bytes)) {
      return std::nullopt;
    }
  }
  int64_t stride = 1;
  for (int i = tensor.ndim - 1; tensor.strides != nullptr && bytes > 0 && i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != stride) return std::nullopt;
    stride *= tensor.shape[i];
  }
  return bytes;
}

size_t AlignmentOf(rueda_dtype dtype) {
  constexpr uint8_t kComplex = 5;
  return dtype.bits / 8 / (dtype.code == kComplex ? 2 : 1);
}

// Of the host's memory: one tensor.
struct Range {
  char* begin;
  size_t bytes;
  size_t alignment;
  bool written;
  char* end() const { return begin + bytes; }
};

// Ranges without a gap between them, and where they are on the device.
struct Region {
  char* host = nullptr;
  size_t bytes = 0;
  std::vector<Range> ranges;
  size_t offset = 0;  // of them in `block`
  std::shared_ptr<char> block;
  std::shared_ptr<char> staging;  // from which they come, and in which they go back
  std::vector<char> image;        // what `block` was filled with
  char* device = nullptr;         // stays when the block is gone

  bool Holds(const char* at) const { return host <= at && at <= host + bytes; }
  size_t room() const { return offset + bytes + kGuardBytes; }
};

// Where the region begins in its block, so that all its tensors are aligned; best as on the host.
std::optional<size_t> OffsetOf(const Region& region) {
  for (size_t step = 0; step < kPlace; ++step) {
    const size_t offset = kGuardBytes + (reinterpret_cast<uintptr_t>(region.host) + step) % kPlace;
    const bool fits = std::all_of(region.ranges.begin(), region.ranges.end(), [&](const Range& r) {
      return (offset + static_cast<size_t>(r.begin - region.host)) % r.alignment == 0;
    });
    if (fits) return offset;
  }
  return std::nullopt;
}

// `with_neighbours`: what only touches is one region, too.
std::vector<Region> Joined(std::vector<Range> ranges, bool with_neighbours) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Region> regions;
  for (const Range& range : ranges) {
    const bool joins = !regions.empty() &&
                       (with_neighbours ? range.begin <= regions.back().host + regions.back().bytes
                                        : range.begin < regions.back().host + regions.back().bytes);
    if (!joins) regions.push_back({range.begin, 0, {}, 0, nullptr, nullptr, {}, nullptr});
    Region& region = regions.back();
    region.bytes = std::max(region.bytes, static_cast<size_t>(range.end() - region.host));
    region.ranges.push_back(range);
  }
  return regions;
}

// Operations ----------------------------------------------------------------------------------

// One submit of the test's: an operation or a group.
class Mirrored {
 public:
  Mirrored(std::shared_ptr<Device> device, uint64_t number)
      : number_(number), device_(std::move(device)) {}

  // Uploads what the operations read, behind nothing that was enqueued before. Else a reason.
  std::optional<OnCpu> Prepare(const rueda_operation* operations, size_t count, int32_t self);
  const rueda_operation* operations() const { return operations_.data(); }
  uint64_t number() const { return number_; }

  // The operation has ended, or was never accepted: what it wrote goes to the test's memory. Once;
  // whoever comes second finds it done.
  void Finish(rueda_status status);
  // The same behind what the stream has been given, which was ordered behind the operation.
  void FinishOn(void* stream);
  // The place in the test's memory that stands for one on the device; null: there is none.
  void* HostOf(const void* on_device);

  // The test's own.
  rueda_completion completion = RUEDA_COMPLETION_INIT;
  rueda_context* context = nullptr;
  bool registered = false;  // by Contexts

 private:
  // What a function `allocate` of the test's has given.
  struct Allocated {
    char* host;
    size_t bytes;
    std::shared_ptr<char> block;
    char* device;
  };

  static void* Allocate(void* user, int32_t part, const int64_t* shape, int32_t ndim);
  void Collect(const rueda_tensor& tensor, bool written, std::vector<Range>* ranges);
  const rueda_tensor* Moved(const rueda_tensor& tensor);
  void Upload();
  using Images = std::vector<std::vector<char>>;  // of the regions' blocks
  Images Download();
  void DeliverRegions(const Images& images);
  void DeliverAllocated();
  std::string Words() const;

  const uint64_t number_;
  const std::shared_ptr<Device> device_;
  std::string name_;  // of the first
  std::vector<rueda_operation> operations_;
  std::vector<std::unique_ptr<rueda_tensor>> tensors_;
  std::vector<size_t> element_bytes_;
  rueda_exec exec_ = RUEDA_EXEC_INIT;
  rueda_allocate_fn allocate_ = nullptr;
  void* allocate_user_ = nullptr;
  std::shared_ptr<void> uploaded_;  // an event

  std::mutex mutex_;
  bool finished_ = false;
  bool delivered_ = false;  // what it wrote is in the test's memory
  std::vector<Region> regions_;
  std::vector<Allocated> allocated_;
};

void Mirrored::Collect(const rueda_tensor& tensor, bool written, std::vector<Range>* ranges) {
  const std::optional<size_t> bytes = BytesOf(tensor);
  if (!bytes.has_value() || tensor.data == nullptr) return;
  ranges->push_back({static_cast<char*>(tensor.data) + tensor.byte_offset, *bytes,
                     AlignmentOf(tensor.dtype), written});
}

// The tensor on the device. What the library must refuse keeps its data.
const rueda_tensor* Mirrored::Moved(const rueda_tensor& tensor) {
  tensors_.push_back(std::make_unique<rueda_tensor>(tensor));
  rueda_tensor& moved = *tensors_.back();
  moved.device = device_->device();
  if (!BytesOf(tensor).has_value() || tensor.data == nullptr) return &moved;
  char* const at = static_cast<char*>(tensor.data) + tensor.byte_offset;
  // Of two that hold an end, the one that the tensor is of: it begins there.
  const Region* found = nullptr;
  for (const Region& region : regions_) {
    if (region.Holds(at) && (found == nullptr || region.host == at)) found = &region;
  }
  if (found == nullptr) return &moved;  // one that the library does not look at
  moved.data = found->device + (at - found->host);
  moved.byte_offset = 0;
  return &moved;
}

std::optional<OnCpu> Mirrored::Prepare(const rueda_operation* operations, size_t count,
                                       int32_t self) {
  if (operations == nullptr || count == 0 || count > 4096) return OnCpu::kUnreadable;
  std::vector<Range> ranges;
  for (size_t i = 0; i < count; ++i) {
    const rueda_operation& operation = operations[i];
    if (operation.size != sizeof operation) return OnCpu::kUnreadable;
    if (operation.exec != nullptr) return OnCpu::kOwnDevice;
    for (const rueda_tensor* tensor : {operation.input, operation.output}) {
      if (tensor != nullptr && tensor->device.type != RUEDA_CPU) return OnCpu::kOwnDevice;
    }
    const Uses uses = UsesOf(operation, self);
    const bool writes_input = uses.in_place && operation.output == nullptr;
    if (uses.input && operation.input != nullptr) {
      Collect(*operation.input, writes_input, &ranges);
    }
    if (uses.output && operation.output != nullptr) Collect(*operation.output, true, &ranges);
  }
  for (const bool with_neighbours : {true, false}) {
    regions_ = Joined(ranges, with_neighbours);
    bool fit = true;
    for (Region& region : regions_) {
      const std::optional<size_t> offset = OffsetOf(region);
      fit = fit && offset.has_value();
      region.offset = offset.value_or(0);
    }
    if (fit) break;
    if (!with_neighbours) return OnCpu::kMisaligned;
  }
  Upload();
  operations_.assign(operations, operations + count);
  if (operations[0].name != nullptr) name_ = std::string(operations[0].name).substr(0, 64);
  allocate_ = operations[0].allocate;
  allocate_user_ = operations[0].allocate_user;
  for (rueda_operation& operation : operations_) {
    const rueda_tensor* const typed = operation.input ? operation.input : operation.output;
    element_bytes_.push_back(typed != nullptr ? typed->dtype.bits / 8 : 0);
    if (operation.input != nullptr) operation.input = Moved(*operation.input);
    if (operation.output != nullptr) operation.output = Moved(*operation.output);
    const bool barrier = operation.kind == RUEDA_BARRIER;
    // Null is the device's default stream where there is a tensor to tell the device.
    if (exec_.stream != nullptr || exec_.ready_event != nullptr || barrier) operation.exec = &exec_;
    if (operation.allocate != nullptr && operation.allocate == allocate_ &&
        operation.allocate_user == allocate_user_) {
      operation.allocate = &Allocate;
      operation.allocate_user = this;
    }
  }
  return std::nullopt;
}

// The tensors' memory holds anything until a stream of the caller's, that has other work too, has
// filled it: in turns the caller's stream, another one that has recorded an event, and the default
// stream.
void Mirrored::Upload() {
  void* const streams[] = {device_->stream(0), device_->stream(1), nullptr};
  void* const stream = streams[number_ % 3];
  for (Region& region : regions_) {
    region.image.assign(region.room(), kGuard);
    if (region.bytes > 0) memcpy(&region.image[region.offset], region.host, region.bytes);
    region.block = device_->Allocate(region.room());
    region.staging = device_->Allocate(region.room());
    region.device = region.block.get() + region.offset;
    device_->Transfer(region.staging.get(), region.image.data(), region.room());
    device_->Copy(stream, region.staging.get(), region.block.get(), region.room());
  }
  uploaded_ = device_->Record(stream);
  exec_.device = device_->device();
  if (number_ % 3 == 0) exec_.stream = stream;
  if (number_ % 3 == 1) exec_.ready_event = uploaded_.get();
}

void* Mirrored::Allocate(void* user, int32_t part, const int64_t* shape, int32_t ndim) {
  Mirrored& self = *static_cast<Mirrored*>(user);
  void* const host = self.allocate_(self.allocate_user_, part, shape, ndim);
  if (host == nullptr) return nullptr;
  size_t bytes = self.element_bytes_[static_cast<size_t>(part)];
  for (int32_t i = 0; i < ndim; ++i) bytes *= static_cast<size_t>(shape[i]);
  Allocated allocated = {static_cast<char*>(host), bytes,
                         self.device_->Allocate(bytes + 2 * kGuardBytes), nullptr};
  const std::vector<char> image(bytes + 2 * kGuardBytes, kGuard);
  self.device_->Transfer(allocated.block.get(), image.data(), image.size());
  allocated.device = allocated.block.get() + kGuardBytes;
  const std::lock_guard<std::mutex> lock(self.mutex_);
  self.allocated_.push_back(allocated);
  return allocated.device;
}

Mirrored::Images Mirrored::Download() {
  Images images;
  for (const Region& region : regions_) {
    images.emplace_back(region.room());
    device_->Transfer(images.back().data(), region.block.get(), region.room());
  }
  return images;
}

std::string Mirrored::Words() const {
  const char* const name = operations_.empty() ? nullptr : operations_[0].name;
  return "kind " + (operations_.empty() ? "?" : std::to_string(operations_[0].kind)) +
         (name == nullptr ? " without a name" : " '" + name_ + "'");
}

// The blocks as they are now; what the test may see goes to its memory.
void Mirrored::DeliverRegions(const Images& images) {
  for (size_t i = 0; i < regions_.size(); ++i) {
    const Region& region = regions_[i];
    std::vector<char> expected = region.image;
    for (const Range& range : region.ranges) {
      if (!range.written || range.bytes == 0) continue;
      const size_t at = region.offset + static_cast<size_t>(range.begin - region.host);
      memcpy(range.begin, &images[i][at], range.bytes);
      memcpy(&expected[at], &images[i][at], range.bytes);
    }
    const auto wrong = std::mismatch(images[i].begin(), images[i].end(), expected.begin()).first;
    if (wrong == images[i].end()) continue;
    const auto at = static_cast<size_t>(wrong - images[i].begin());
    const bool inside = at >= region.offset && at < region.offset + region.bytes;
    ADD_FAILURE() << Words() << " wrote " << (inside ? "in its input" : "beside its tensors")
                  << ", at byte " << static_cast<int64_t>(at - region.offset) << " of "
                  << region.bytes;
  }
}

void Mirrored::DeliverAllocated() {
  for (const Allocated& allocated : allocated_) {
    std::vector<char> image(allocated.bytes + 2 * kGuardBytes);
    device_->Transfer(image.data(), allocated.block.get(), image.size());
    if (allocated.bytes > 0) memcpy(allocated.host, &image[kGuardBytes], allocated.bytes);
    std::fill_n(image.begin() + kGuardBytes, allocated.bytes, kGuard);
    EXPECT_EQ(image, std::vector<char>(image.size(), kGuard))
        << Words() << " wrote beside what `allocate` gave";
  }
}

void Mirrored::Finish(rueda_status status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(finished_, true)) return;
  if (status == RUEDA_OK) {
    if (!std::exchange(delivered_, true)) {
      DeliverRegions(Download());
      DeliverAllocated();
    }
    for (Region& region : regions_) region.block = region.staging = nullptr;
    uploaded_ = nullptr;
  } else {
    // The tensors may not even be there yet.
    device_->Later([device = device_.get(), uploaded = std::exchange(uploaded_, nullptr), status,
                    regions = std::exchange(regions_, {}), words = Words()] {
      device->Synchronize(uploaded);
      // After an abort outputs hold anything; also when the context was reset or destroyed before
      // this could ask how the operation had ended.
      if (status == RUEDA_ABORTED || status == RUEDA_NOT_FOUND ||
          status == RUEDA_FAILED_PRECONDITION) {
        return;
      }
      for (const Region& region : regions) {
        std::vector<char> now(region.room());
        device->Transfer(now.data(), region.block.get(), now.size());
        EXPECT_TRUE(now == region.image)
            << words << " ended with " << rueda_status_name(status) << ", and changed its tensors";
      }
    });
  }
  for (Allocated& allocated : allocated_) allocated.block = nullptr;
}

// No lock is held while the device works: a callback, which takes it, may be what others wait for.
void Mirrored::FinishOn(void* stream) {
  std::vector<Region> regions;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // What `allocate` gives is the host's to know only when the operation has ended.
    if (finished_ || delivered_ || allocate_ != nullptr) return;
    regions = regions_;
  }
  for (const Region& region : regions) {
    device_->Copy(stream, region.block.get(), region.staging.get(), region.room());
  }
  device_->Synchronize(device_->Record(stream));
  Images images;
  for (const Region& region : regions) {
    images.emplace_back(region.room());
    device_->Transfer(images.back().data(), region.staging.get(), region.room());
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!finished_ && !std::exchange(delivered_, true)) DeliverRegions(images);
}

void* Mirrored::HostOf(const void* on_device) {
  const auto* const at = static_cast<const char*>(on_device);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Allocated& allocated : allocated_) {
    if (at == allocated.device) return allocated.host;
  }
  for (const Region& region : regions_) {
    if (region.device <= at && at <= region.device + region.bytes) {
      return region.host + (at - region.device);
    }
  }
  return nullptr;
}

// Contexts ------------------------------------------------------------------------------------

class Contexts {
 public:
  // Never destroyed: callbacks may come late.
  static Contexts& Get() {
    static auto* const it = new Contexts;
    return *it;
  }

  // Null: it has no device.
  std::shared_ptr<Device> DeviceOf(rueda_context* context) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (const auto it = contexts_.find(context); it != contexts_.end()) return it->second.device;
    }
    std::shared_ptr<Device> device = Device::Of(context);
    if (device == nullptr) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    return contexts_.try_emplace(context, Context{std::move(device), {}}).first->second.device;
  }
  uint64_t NextNumber() { return next_number_++; }

  // Once for each, by whoever hears of the handle first.
  void Register(rueda_handle handle, const std::shared_ptr<Mirrored>& operation) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(operation->registered, true)) return;
    if (const auto it = contexts_.find(operation->context); it != contexts_.end()) {
      it->second.operations[handle] = operation;
    }
  }
  std::shared_ptr<Mirrored> Find(rueda_context* context, rueda_handle handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = contexts_.find(context);
    if (it == contexts_.end()) return nullptr;
    const auto found = it->second.operations.find(handle);
    return found == it->second.operations.end() ? nullptr : found->second;
  }
  std::shared_ptr<Mirrored> Extract(rueda_context* context, rueda_handle handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = contexts_.find(context);
    if (it == contexts_.end()) return nullptr;
    auto extracted = it->second.operations.extract(handle);
    return extracted.empty() ? nullptr : std::move(extracted.mapped());
  }
  void PutBack(rueda_handle handle, const std::shared_ptr<Mirrored>& operation) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto it = contexts_.find(operation->context); it != contexts_.end()) {
      it->second.operations[handle] = operation;
    }
  }
  // Its handles are no more, its device stays.
  void Forget(rueda_context* context) {
    std::map<rueda_handle, std::shared_ptr<Mirrored>> operations;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto it = contexts_.find(context); it != contexts_.end()) {
      operations.swap(it->second.operations);
    }
  }
  void Drop(rueda_context* context) {
    Context dropped;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto it = contexts_.find(context); it != contexts_.end()) {
      dropped = std::move(it->second);
      contexts_.erase(it);
    }
  }

 private:
  struct Context {
    std::shared_ptr<Device> device;
    std::map<rueda_handle, std::shared_ptr<Mirrored>> operations;
  };

  std::atomic<uint64_t> next_number_{0};
  std::mutex mutex_;
  std::map<rueda_context*, Context> contexts_;
};

// Whether this thread is in a callback, which must wait for nothing.
thread_local bool in_callback = false;

// What the library calls when a mirrored operation has ended. `user`: a shared_ptr of its own.
void OnCompletion(void* user, rueda_handle handle, rueda_status status) {
  const std::unique_ptr<std::shared_ptr<Mirrored>> own(
      static_cast<std::shared_ptr<Mirrored>*>(user));
  Mirrored& operation = **own;
  operation.Finish(status);
  if (operation.completion.callback == nullptr) return;
  Contexts::Get().Register(handle, *own);
  const bool within = std::exchange(in_callback, true);
  operation.completion.callback(operation.completion.user, handle, status);
  in_callback = within;
}

// What becomes of a submit.
struct Attempt {
  std::shared_ptr<Mirrored> mirrored;  // null: it goes to the CPU
  std::optional<OnCpu> reason;
};

Attempt Begin(rueda_context* context, const rueda_operation* operations, size_t count) {
  const std::shared_ptr<Device> device = Contexts::Get().DeviceOf(context);
  if (device == nullptr) return {nullptr, OnCpu::kNoDevice};
  if (!in_callback) device->LookAfter();
  auto mirrored = std::make_shared<Mirrored>(device, Contexts::Get().NextNumber());
  mirrored->context = context;
  const std::optional<OnCpu> reason = mirrored->Prepare(operations, count, rueda_rank(context));
  if (reason.has_value()) return {nullptr, reason};
  return {std::move(mirrored), std::nullopt};
}

// Whether the library refused for a reason by design.
std::optional<OnCpu> RefusedByDesign(rueda_status status, const rueda_operation& operation) {
  if (status != RUEDA_UNIMPLEMENTED) return std::nullopt;
  if (operation.reduce_op == RUEDA_ADASUM) return OnCpu::kAdasum;
  if (operation.compressor != nullptr) return OnCpu::kCompressor;
  return std::nullopt;
}

// Of a handle that is valid.
bool HasEnded(rueda_context* context, rueda_handle handle) {
  int32_t done = 0;
  return __real_rueda_poll(context, handle, &done) == RUEDA_OK && done == 1;
}

// Results -------------------------------------------------------------------------------------

// A result of the device's in the host's memory.
struct HostResult {
  rueda_result on_device = RUEDA_RESULT_INIT;
  std::vector<char> data;
};

std::mutex results_mutex;
std::set<const void*>& HostResults() {
  static auto* const results = new std::set<const void*>;
  return *results;
}

void Bring(rueda_context* context, rueda_handle handle, rueda_result* result) {
  const std::shared_ptr<Mirrored> operation = Contexts::Get().Find(context, handle);
  rueda_tensor& tensor = result->tensor;
  tensor.device = {RUEDA_CPU, 0};
  if (void* const host = operation == nullptr ? nullptr : operation->HostOf(tensor.data)) {
    tensor.data = host;  // the test's own
    return;
  }
  auto* const owner = new HostResult;
  owner->on_device = *result;
  owner->data.resize(std::max<size_t>(BytesOf(tensor).value_or(0), 1));
  if (tensor.data != nullptr && *BytesOf(tensor) > 0) {
    Contexts::Get().DeviceOf(context)->Transfer(owner->data.data(), tensor.data, *BytesOf(tensor));
  }
  tensor.data = owner->data.data();
  result->owner = owner;
  const std::lock_guard<std::mutex> lock(results_mutex);
  HostResults().insert(owner);
}

std::vector<std::pair<std::string, std::string>>& Knobs() {
  static auto* const knobs = new std::vector<std::pair<std::string, std::string>>;
  return *knobs;
}

}  // namespace

bool IsByDesign(OnCpu reason) {
  return reason == OnCpu::kAdasum || reason == OnCpu::kCompressor || reason == OnCpu::kBytes;
}

MirrorCounts CountMirrored() {
  MirrorCounts counts;
  counts.mirrored = counters->mirrored;
  for (int i = 0; i < static_cast<int>(OnCpu::kCount); ++i) counts.on_cpu[i] = counters->on_cpu[i];
  return counts;
}

std::string ToString(const MirrorCounts& counts) {
  const char* const kReasons[] = {"adasum",
                                  "of a compressor for the CPU",
                                  "strings of bytes",
                                  "with a device of the test's own",
                                  "without operations of this version's size",
                                  "with tensors in one another that can't all be aligned",
                                  "without a device"};
  static_assert(std::size(kReasons) == static_cast<size_t>(OnCpu::kCount));
  std::string words = std::to_string(counts.mirrored) + " operations on CUDA";
  const char* separator = "; on the CPU: ";
  for (size_t i = 0; i < std::size(kReasons); ++i) {
    if (counts.on_cpu[i] == 0) continue;
    words += separator + std::to_string(counts.on_cpu[i]) + " " + kReasons[i];
    separator = ", ";
  }
  return words;
}

void SetMirrorKnobs(std::vector<std::pair<std::string, std::string>> knobs) {
  Knobs() = std::move(knobs);
}

}  // namespace rueda::testing

// The C API as the test calls it --------------------------------------------------------------

extern "C" {

using namespace rueda::testing;  // NOLINT: the definitions below are the C API's

// As of tensors on the CPU: of a signature the device is left out.
const char* __wrap_rueda_last_error() {
  constexpr char kPlaceName[] = " on CUDA";
  const char* const words = __real_rueda_last_error();
  if (strstr(words, kPlaceName) == nullptr) return words;
  thread_local std::string own;
  own = words;
  for (size_t at; (at = own.find(kPlaceName)) != std::string::npos;) {
    own.erase(at, strlen(kPlaceName));
  }
  return own.c_str();
}

rueda_status __wrap_rueda_init(uint32_t version, const rueda_init_options* options,
                               rueda_context** context) {
  if (options == nullptr || Knobs().empty()) return __real_rueda_init(version, options, context);
  rueda_init_options more = *options;
  std::vector<const char*> words(options->knobs, options->knobs + 2 * options->knob_count);
  for (const auto& [name, value] : Knobs())
    words.insert(words.end(), {name.c_str(), value.c_str()});
  more.knobs = words.data();
  more.knob_count = words.size() / 2;
  return __real_rueda_init(version, &more, context);
}

rueda_status __wrap_rueda_submit(rueda_context* context, const rueda_operation* operations,
                                 size_t count, const rueda_completion* completion,
                                 rueda_handle* handle) {
  Attempt attempt = Begin(context, operations, count);
  // A completion that the library must refuse is its own to see.
  if (handle == nullptr || (completion != nullptr && (completion->size != sizeof *completion ||
                                                      completion->callback == nullptr))) {
    if (attempt.mirrored != nullptr) attempt.mirrored->Finish(RUEDA_CANCELLED);
    return __real_rueda_submit(context, operations, count, completion, handle);
  }
  if (attempt.mirrored != nullptr) {
    Mirrored& mirrored = *attempt.mirrored;
    if (completion != nullptr) mirrored.completion = *completion;
    auto* const own = new std::shared_ptr<Mirrored>(attempt.mirrored);
    rueda_completion ours = RUEDA_COMPLETION_INIT;
    ours.callback = &OnCompletion;
    ours.user = own;
    // In the engine's order: what comes later must not be seen to end before this is delivered.
    ours.flags = RUEDA_COMPLETION_INLINE;
    if (completion != nullptr) ours.flags = completion->flags;
    const rueda_status status =
        __real_rueda_submit(context, mirrored.operations(), count, &ours, handle);
    attempt.reason = RefusedByDesign(status, operations[0]);
    if (!attempt.reason.has_value()) ++counters->mirrored;
    if (status == RUEDA_OK) {
      Contexts::Get().Register(*handle, attempt.mirrored);
      return status;
    }
    delete own;
    mirrored.Finish(status);
    if (!attempt.reason.has_value()) return status;
  }
  const rueda_status status = __real_rueda_submit(context, operations, count, completion, handle);
  if (status == RUEDA_OK || IsByDesign(*attempt.reason)) Count(*attempt.reason);
  return status;
}

rueda_status __wrap_rueda_execute(rueda_context* context, const rueda_operation* operations,
                                  size_t count, int64_t timeout_ns, rueda_handle* handle) {
  Attempt attempt = Begin(context, operations, count);
  if (attempt.mirrored != nullptr) {
    Mirrored& mirrored = *attempt.mirrored;
    const rueda_status status =
        __real_rueda_execute(context, mirrored.operations(), count, timeout_ns, handle);
    attempt.reason = RefusedByDesign(status, operations[0]);
    if (!attempt.reason.has_value()) ++counters->mirrored;
    // Without a handle it has no limit, and has ended when the call returns.
    const bool accepted = handle != nullptr && *handle != 0;
    if (!accepted || status == RUEDA_OK || HasEnded(context, *handle)) mirrored.Finish(status);
    if (accepted) Contexts::Get().Register(*handle, attempt.mirrored);
    if (!attempt.reason.has_value()) return status;
  }
  const rueda_status status = __real_rueda_execute(context, operations, count, timeout_ns, handle);
  if (status == RUEDA_OK || IsByDesign(*attempt.reason)) Count(*attempt.reason);
  return status;
}

rueda_status __wrap_rueda_poll(rueda_context* context, rueda_handle handle, int32_t* done) {
  const std::shared_ptr<Mirrored> operation = Contexts::Get().Find(context, handle);
  const rueda_status status = __real_rueda_poll(context, handle, done);
  if (operation != nullptr && status == RUEDA_OK && *done == 1) {
    operation->Finish(__real_rueda_wait(context, handle, 0));
  }
  return status;
}

rueda_status __wrap_rueda_wait(rueda_context* context, rueda_handle handle, int64_t timeout_ns) {
  const std::shared_ptr<Mirrored> operation = Contexts::Get().Find(context, handle);
  if (operation == nullptr) return __real_rueda_wait(context, handle, timeout_ns);
  // In turns by way of a stream, which comes to know of the end before the host does.
  if (timeout_ns == RUEDA_FOREVER && operation->number() % 2 == 0) {
    void* const stream = Contexts::Get().DeviceOf(context)->stream(0);
    if (__real_rueda_wait_on_stream(context, handle, stream) == RUEDA_OK) {
      operation->FinishOn(stream);
    }
  }
  const rueda_status status = __real_rueda_wait(context, handle, timeout_ns);
  if (status == RUEDA_OK || HasEnded(context, handle)) operation->Finish(status);
  return status;
}

rueda_status __wrap_rueda_wait_on_stream(rueda_context* context, rueda_handle handle,
                                         void* stream) {
  const std::shared_ptr<Mirrored> operation = Contexts::Get().Find(context, handle);
  const rueda_status status = __real_rueda_wait_on_stream(context, handle, stream);
  if (operation != nullptr && status == RUEDA_OK) operation->FinishOn(stream);
  return status;
}

rueda_status __wrap_rueda_release(rueda_context* context, rueda_handle handle) {
  const std::shared_ptr<Mirrored> operation = Contexts::Get().Extract(context, handle);
  const rueda_status status = __real_rueda_release(context, handle);
  if (operation != nullptr && status != RUEDA_OK) Contexts::Get().PutBack(handle, operation);
  return status;
}

rueda_status __wrap_rueda_result_take(rueda_context* context, rueda_handle handle, size_t index,
                                      rueda_result* result) {
  const rueda_status status = __real_rueda_result_take(context, handle, index, result);
  if (status == RUEDA_OK && result->tensor.device.type == RUEDA_CUDA) {
    Bring(context, handle, result);
  }
  return status;
}

void __wrap_rueda_result_free(rueda_result* result) {
  HostResult* ours = nullptr;
  if (result != nullptr) {
    const std::lock_guard<std::mutex> lock(results_mutex);
    if (HostResults().erase(result->owner) > 0) ours = static_cast<HostResult*>(result->owner);
  }
  if (ours == nullptr) return __real_rueda_result_free(result);
  const size_t size = result->size;
  *result = RUEDA_RESULT_INIT;
  result->size = size;
  __real_rueda_result_free(&ours->on_device);
  delete ours;
}

rueda_status __wrap_rueda_context_reset(rueda_context* context) {
  const rueda_status status = __real_rueda_context_reset(context);
  if (status == RUEDA_OK) Contexts::Get().Forget(context);
  return status;
}

void __wrap_rueda_context_destroy(rueda_context* context) {
  __real_rueda_context_destroy(context);
  Contexts::Get().Drop(context);
}

rueda_status __wrap_rueda_broadcast_bytes(rueda_context* context, int32_t process_set,
                                          const char* name, int32_t root, const void* data,
                                          size_t bytes, rueda_result* result) {
  Count(OnCpu::kBytes);
  return __real_rueda_broadcast_bytes(context, process_set, name, root, data, bytes, result);
}

rueda_status __wrap_rueda_allgather_bytes(rueda_context* context, int32_t process_set,
                                          const char* name, const void* data, size_t bytes,
                                          rueda_result* result, int64_t* sizes) {
  Count(OnCpu::kBytes);
  return __real_rueda_allgather_bytes(context, process_set, name, data, bytes, result, sizes);
}

}  // extern "C"
