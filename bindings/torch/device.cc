#include "bindings/torch/device.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "rueda/torch.hpp"

namespace rueda::libtorch {
namespace {

using c10::impl::VirtualGuardImpl;

// Of the device, for IdleMemory alone; the same for ever.
c10::Stream IdleStream(at::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::Stream> streams;
  const std::lock_guard<std::mutex> lock(mutex);
  auto it = streams.find(device.index());
  if (it == streams.end()) {
    const VirtualGuardImpl guard(device.type());
    it = streams.emplace(device.index(), guard.getStreamFromGlobalPool(device)).first;
  }
  return it->second;
}

}  // namespace

bool TorchHasCuda() {
  return c10::impl::hasDeviceGuardImpl(at::kCUDA) && VirtualGuardImpl(at::kCUDA).deviceCount() > 0;
}

std::string DeviceName(at::Device device) {
  return device.is_cpu() ? "the CPU" : device.str();
}

std::vector<std::vector<size_t>> ByDevice(c10::ArrayRef<at::Tensor> tensors) {
  std::vector<std::vector<size_t>> places;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto it = std::find_if(places.begin(), places.end(), [&](const auto& there) {
      return tensors[there.front()].device() == tensors[i].device();
    });
    if (it == places.end()) {
      places.push_back({i});
    } else {
      it->push_back(i);
    }
  }
  return places;
}

std::optional<c10::Stream> CurrentStream(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return VirtualGuardImpl(device.type()).getStream(device);
}

void* HandleOf(const c10::Stream& stream) {
  return VirtualGuardImpl(stream.device_type()).getStreamNativeHandle(stream);
}

void Order(const c10::Stream& stream, const c10::Stream& before) {
  if (stream == before) return;
  c10::Event event(before.device_type());
  event.record(before);
  event.block(stream);
}

void KeepFor(const at::Tensor& tensor, const c10::Stream& stream) {
  VirtualGuardImpl(stream.device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

// Not on the caller's stream: what was freed there may be in use by work that the stream has been
// given since the operation was submitted, and the library's stream does not wait for that. So on a
// stream on which nothing is ever enqueued. Its memory is used on streams that it is kept for, and
// comes back when those are done with it. But torch's streams come from a pool and come again, so
// the program may have this one as well: then what it has enqueued is waited for.
at::Tensor IdleMemory(c10::IntArrayRef shape, at::ScalarType type, at::Device device) {
  // The same kind of tensor whatever the mode of the thread that the library calls back on.
  const c10::InferenceMode no_inference(false);
  const auto options = at::TensorOptions().dtype(type).device(device);
  if (device.is_cpu()) return at::empty(shape, options);
  const c10::Stream stream = IdleStream(device);
  const c10::StreamGuard guard(stream);
  at::Tensor memory = at::empty(shape, options);
  if (!stream.query()) stream.synchronize();
  return memory;
}

void StreamChain::Use(const at::Tensor& memory) {
  const std::optional<c10::Stream> now = CurrentStream(memory.device());
  if (!now.has_value()) return;
  if (last_.has_value() && *last_ != *now) {
    Order(*now, *last_);
    KeepFor(memory, *now);
  }
  last_ = now;
}

at::Device local_device(at::DeviceType type) {
  if (type != at::kCPU && type != at::kCUDA) {
    throw Error(RUEDA_UNIMPLEMENTED, "local_device: there are CPU and CUDA, and not " +
                                         c10::DeviceTypeName(type, /*lower_case=*/true));
  }
  rueda_context* const context = rueda::detail::Current();
  if (type == at::kCPU) return at::kCPU;
  rueda_device device = {};
  rueda::detail::Check(rueda_local_device(context, RUEDA_CUDA, &device), context);
  if (!TorchHasCuda()) {
    throw Error(
        RUEDA_FAILED_PRECONDITION,
        "this program's torch has no CUDA: it is a build for the CPU, or the program is not "
        "linked with libtorch_cuda; docs/guides/libtorch.md says how to get one that has");
  }
  return {at::kCUDA, static_cast<c10::DeviceIndex>(device.id)};
}

}  // namespace rueda::libtorch
