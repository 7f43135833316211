// FAKE: torch's CUDA on the fake CUDA device (test/support/fake_cuda), linked into a test program:
// the adapter's tests of CUDA then run where there is no device, on a torch without CUDA.
//
// Memory is the host's, and streams are the fake's, so that what the library enqueues there runs on
// its own. Torch's operators are the CPU's: each waits until the current stream has come so far,
// and is done when it returns. What is freed is released, for the fake to notice who still uses it,
// when the streams that torch's allocator would look at have come to where they were: so this
// proves who is ordered behind whom, and who is kept for whom, and nothing of CUDA's or torch's
// own.
#include "test/torch/fake_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <mutex>
#include <set>
#include <unordered_map>

#include "core/base/check.h"
#include "test/support/fake_cuda/control.h"

namespace rueda::fake_cuda {
namespace {

constexpr int kDevices = 2;
constexpr int64_t kPoolStreams = 32;  // a device, as torch has them

void Check(int32_t status, const char* message) {
  TORCH_CHECK(status == 0, message);
}

// Stream 0 is the default one, a null handle.
class Streams {
 public:
  static Streams& Get() {
    static auto* const streams = new Streams();
    return *streams;
  }
  void* Handle(const c10::Stream& stream) {
    if (stream.id() == 0) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    void*& handle = handles_[stream.device_index()][stream.id() - 1];
    if (handle == nullptr) {
      char message[RUEDA_CUDA_MESSAGE_BYTES] = "";
      Check(Cuda().open_stream(stream.device_index(), 0, &handle, message), message);
    }
    return handle;
  }
  c10::Stream FromPool(c10::Device device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t id = next_[device.index()]++ % kPoolStreams + 1;
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }

 private:
  std::mutex mutex_;
  std::array<std::array<void*, kPoolStreams>, kDevices> handles_ = {};
  std::array<int64_t, kDevices> next_ = {};
};

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_stream = {};

c10::Stream Current(c10::Device device) {
  const c10::DeviceIndex index = device.has_index() ? device.index() : current_device;
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(at::kCUDA, index), current_stream[index]);
}

void Drain(const c10::Stream& stream) {
  Fake().drain(stream.device_index(), Streams::Get().Handle(stream));
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return at::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {at::kCUDA, std::exchange(current_device, device.index())};
  }
  c10::Device getDevice() const override { return {at::kCUDA, current_device}; }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Stream getStream(c10::Device device) const override { return Current(device); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return Streams::Get().FromPool(device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = Current(stream.device());
    current_stream[stream.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return Streams::Get().Handle(stream);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    char message[RUEDA_CUDA_MESSAGE_BYTES] = "";
    const int32_t device = stream.device_index();
    if (*event == nullptr) Check(Cuda().open_event(device, event, message), message);
    Check(Cuda().record(device, *event, Streams::Get().Handle(stream), message), message);
  }
  void block(void* event, const c10::Stream& stream) const override {
    char message[RUEDA_CUDA_MESSAGE_BYTES] = "";
    Check(Cuda().wait(stream.device_index(), Streams::Get().Handle(stream), event, message),
          message);
  }
  void destroyEvent(void* event, const c10::DeviceIndex device) const noexcept override {
    if (event != nullptr) Cuda().close_event(device, event);
  }
  bool queryStream(const c10::Stream& stream) const override {
    return Fake().pending(stream.device_index(), Streams::Get().Handle(stream)) == 0;
  }
  void synchronizeStream(const c10::Stream& stream) const override { Drain(stream); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override;
};

// Memory that goes when the streams that use it have come to where they were when it was freed.
class Memory final : public c10::Allocator {
 public:
  static Memory& Get() {
    static auto* const memory = new Memory();
    return *memory;
  }
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(at::kCUDA, current_device);
    if (bytes == 0) return {nullptr, nullptr, &Free, device};
    void* block = nullptr;
    char message[RUEDA_CUDA_MESSAGE_BYTES] = "";
    Check(Cuda().allocate(current_device, bytes, &block, message), message);
    std::memset(block, 0xEE, bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.emplace(block, Block{Current(device), {}});
    return {block, block, &Free, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  void Record(const c10::DataPtr& data, const c10::Stream& stream) {
    if (data.get() == nullptr || data.get_deleter() != &Free) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    Block& block = blocks_.at(data.get());
    if (stream.id() != block.stream.id()) block.others.insert(stream.id());
  }

 private:
  struct Block {
    c10::Stream stream;
    std::set<c10::StreamId> others;
  };
  struct Freed {
    int32_t device;
    void* block;
  };
  static void Free(void* block) {
    if (block != nullptr) Get().FreeBlock(block);
  }
  static void Release(void* user) {
    const std::unique_ptr<Freed> freed(static_cast<Freed*>(user));
    Cuda().release(freed->device, freed->block);
  }
  void FreeBlock(void* block) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto node = blocks_.extract(block);
    lock.unlock();
    const c10::Stream stream = node.mapped().stream;
    const int32_t device = stream.device_index();
    // Behind what the others have been given until now, on a stream for that alone: the block's own
    // does not wait for them.
    char message[RUEDA_CUDA_MESSAGE_BYTES] = "";
    lock.lock();
    void*& reaper = reapers_[device];
    if (reaper == nullptr) Check(Cuda().open_stream(device, 0, &reaper, message), message);
    lock.unlock();
    std::set<c10::StreamId> streams = node.mapped().others;
    streams.insert(stream.id());
    for (const c10::StreamId id : streams) {
      void* event = nullptr;
      const c10::Stream used(c10::Stream::UNSAFE, stream.device(), id);
      Check(Cuda().open_event(device, &event, message), message);
      Check(Cuda().record(device, event, Streams::Get().Handle(used), message), message);
      Check(Cuda().wait(device, reaper, event, message), message);
      Cuda().close_event(device, event);
    }
    Fake().enqueue(device, reaper, &Release, new Freed{device, block});
  }

  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
  std::array<void*, kDevices> reapers_ = {};
};

void Guard::recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const {
  Memory::Get().Record(data, stream);
}

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// So that autograd looks at streams.
struct CUDAHooks : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return fake_cuda::current_device; }
  // Random numbers are drawn on the CPU.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, CUDAHooks)

const bool registered = [] {
  c10::SetAllocator(at::kCUDA, &Memory::Get());
  return true;
}();

// Operators -------------------------------------------------------------------------------------

// Before an operator reads and writes.
void WaitForStreams() {
  for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
    Drain(Current(c10::Device(at::kCUDA, device)));
  }
}

at::Tensor Empty(c10::IntArrayRef size, c10::IntArrayRef stride, at::ScalarType type,
                 c10::Device device) {
  const c10::DeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &Memory::Get(),
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA), type);
}

// The same memory, as the CPU's; an operator may give it other memory.
at::Tensor OnCpu(const at::Tensor& tensor) {
  return at::for_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes())
      .strides(tensor.strides())
      .options(tensor.options().device(at::kCPU))
      .allocator(c10::GetCPUAllocator())
      .resizeable_storage()
      .make_tensor();
}

at::Tensor ToCuda(const at::Tensor& tensor, c10::Device device) {
  const at::Tensor copy = Empty(tensor.sizes(), tensor.strides(), tensor.scalar_type(), device);
  OnCpu(copy).copy_(tensor);
  return copy;
}

// Any operator, by the CPU's of that name.
class OneOperator {
 public:
  void Run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    WaitForStreams();
    const size_t arguments = op.schema().arguments().size();
    for (size_t i = stack->size() - arguments; i < stack->size(); ++i) Take(&(*stack)[i]);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    for (auto& [alias, original] : aliases_) {
      GiveBack(alias, &original);
    }
    const size_t returns = op.schema().returns().size();
    for (size_t i = stack->size() - returns; i < stack->size(); ++i) Give(&(*stack)[i]);
  }

 private:
  at::Tensor Alias(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    device_ = tensor.device();
    aliases_.emplace_back(OnCpu(tensor), tensor);
    return aliases_.back().first;
  }
  void Take(c10::IValue* value) {
    if (value->isTensor()) {
      *value = Alias(value->toTensor());
    } else if (value->isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value->toTensorVector()) list.push_back(Alias(tensor));
      *value = list;
    } else if (value->isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value->toOptionalTensorVector()) {
        list.push_back(tensor.has_value() ? std::optional(Alias(*tensor)) : std::nullopt);
      }
      *value = list;
    } else if (value->isDevice() && value->toDevice().is_cuda()) {
      device_ = value->toDevice();
      *value = at::Device(at::kCPU);
    }
  }
  static void GiveBack(const at::Tensor& alias, at::Tensor* original) {
    if (alias.sizes() == original->sizes()) {
      if (alias.const_data_ptr() != original->const_data_ptr()) OnCpu(*original).copy_(alias);
      return;
    }
    const at::Tensor copy = ToCuda(alias, original->device());
    original->unsafeGetTensorImpl()->set_storage_keep_dtype(copy.storage());
    original->unsafeGetTensorImpl()->set_sizes_and_strides(copy.sizes(), copy.strides(), 0);
  }
  at::Tensor Result(const at::Tensor& tensor) const {
    if (!tensor.defined() || !tensor.is_cpu()) return tensor;
    for (const auto& [alias, original] : aliases_) {
      if (alias.is_same(tensor)) return original;
    }
    return ToCuda(tensor, device_);
  }
  void Give(c10::IValue* value) const {
    if (value->isTensor()) {
      *value = Result(value->toTensor());
    } else if (value->isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value->toTensorVector()) list.push_back(Result(tensor));
      *value = list;
    }
  }

  c10::Device device_ = at::Device(at::kCUDA, 0);
  std::vector<std::pair<at::Tensor, at::Tensor>> aliases_;
};

void AnyOperator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  OneOperator().Run(op, stack);
}

at::Tensor EmptyOperator(c10::IntArrayRef size, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device> device,
                         std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const at::Tensor like = at::detail::empty_meta(size, type.value_or(at::kFloat), at::kStrided,
                                                 at::Device(at::kMeta), false, format);
  return Empty(size, like.strides(), like.scalar_type(),
               device->has_index() ? *device : at::Device(at::kCUDA, current_device));
}

at::Tensor EmptyStridedOperator(c10::IntArrayRef size, c10::IntArrayRef stride,
                                std::optional<at::ScalarType> type, std::optional<at::Layout>,
                                std::optional<at::Device> device, std::optional<bool>) {
  return Empty(size, stride, type.value_or(at::kFloat),
               device->has_index() ? *device : at::Device(at::kCUDA, current_device));
}

at::Tensor& CopyOperator(at::Tensor& to, const at::Tensor& from, bool) {
  WaitForStreams();
  const at::Tensor source = from.is_cuda() ? OnCpu(from) : from;
  if (to.is_cuda()) {
    OnCpu(to).copy_(source);
  } else {
    to.copy_(source);
  }
  return to;
}

const at::Tensor& ResizeOperator(const at::Tensor& self, c10::IntArrayRef size,
                                 std::optional<at::MemoryFormat>) {
  if (self.sizes() == size) return self;
  const at::Tensor fresh =
      EmptyOperator(size, self.scalar_type(), std::nullopt, self.device(), false, std::nullopt);
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(fresh.storage());
  self.unsafeGetTensorImpl()->set_sizes_and_strides(fresh.sizes(), fresh.strides(), 0);
  return self;
}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&AnyOperator>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &EmptyOperator);
  library.impl("empty_strided", &EmptyStridedOperator);
  library.impl("copy_", &CopyOperator);
  library.impl("resize_", &ResizeOperator);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view",
               static_cast<at::Tensor (*)(const at::Tensor&, c10::IntArrayRef)>(&at::native::view));
  library.impl("_reshape_alias",
               static_cast<at::Tensor (*)(const at::Tensor&, c10::IntArrayRef, c10::IntArrayRef)>(
                   &at::native::_reshape_alias));
  library.impl("unfold", &at::native::unfold);
  library.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
}

}  // namespace

void Sleep(const c10::Stream& stream, int ms) {
  const auto sleep = [](void* user) {
    usleep(1000 * static_cast<int>(reinterpret_cast<intptr_t>(user)));
  };
  Fake().enqueue(stream.device_index(), Streams::Get().Handle(stream), sleep,
                 reinterpret_cast<void*>(static_cast<intptr_t>(ms)));
}

}  // namespace rueda::fake_cuda
