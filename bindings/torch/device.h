// Devices and their streams, by torch's device-generic interfaces: built with a torch with or
// without CUDA, and needs no library of CUDA's.
//
// On CUDA work is enqueued on a stream, and done in its order. Two rules of torch's allocator
// matter to whoever works on several streams. Memory belongs to the stream that was current when it
// was allocated: freed, it goes to the next who asks on that stream, at once, as what that one
// enqueues comes behind what was enqueued before. And memory that another stream uses, too, must be
// kept for that one (record_stream in Python): then it is given to nobody before that stream has
// done what it had been given when the memory was freed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <optional>
#include <string>
#include <vector>

namespace rueda::libtorch {

// Whether torch can work on CUDA in this process.
bool TorchHasCuda();

// "the CPU", "cuda:0"
std::string DeviceName(at::Device device);

// By device, in the order of their first tensors: which of `tensors` are there. An operation's are
// all on one.
std::vector<std::vector<size_t>> ByDevice(c10::ArrayRef<at::Tensor> tensors);

// The stream that this thread's work on the device is enqueued on; nothing for the CPU.
std::optional<c10::Stream> CurrentStream(at::Device device);
// As a cudaStream_t.
void* HandleOf(const c10::Stream& stream);

// What `stream` is given from now on comes behind what `before` has been given until now. Does not
// block.
void Order(const c10::Stream& stream, const c10::Stream& before);
// Keeps the tensor's memory for the stream.
void KeepFor(const at::Tensor& tensor, const c10::Stream& stream);

// Memory for what the library writes on a stream of its own, as soon as this returns: nothing that
// is on its way on any stream uses it. To be kept for the streams that use it. On the CPU just
// memory. On any thread.
at::Tensor IdleMemory(c10::IntArrayRef shape, at::ScalarType type, at::Device device);

// Keeps in order what different streams do to one piece of memory; backward passes may have
// several. Not thread-safe. On the CPU it does nothing.
class StreamChain {
 public:
  // The current stream uses `memory` from now on, behind the one that did so before.
  void Use(const at::Tensor& memory);

 private:
  std::optional<c10::Stream> last_;
};

}  // namespace rueda::libtorch
