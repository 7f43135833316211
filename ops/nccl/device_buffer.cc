#include "ops/nccl/device_buffer.h"

#include <algorithm>
#include <bit>

#include "ops/nccl/cuda_library.h"

namespace rueda {
namespace {

// Buffers are at least this large, so that the first few operations don't make one each.
constexpr int64_t kBufferBytesMin = 4 << 20;

}  // namespace

absl::StatusOr<char*> DeviceBuffer::Reserve(int64_t bytes) {
  if (bytes > bytes_) {
    const auto room = static_cast<int64_t>(
        std::bit_ceil(static_cast<uint64_t>(std::max(bytes, kBufferBytesMin))));
    memory_.reserve(memory_.size() + 1);  // which may throw
    void* memory = nullptr;
    if (registers_) {
      RUEDA_RETURN_IF_ERROR(
          CallCuda(cuda_->allocate_buffer, communicator_, static_cast<size_t>(room), &memory));
    } else {
      RUEDA_RETURN_IF_ERROR(CallCuda(cuda_->allocate, device_, static_cast<size_t>(room), &memory));
    }
    memory_.push_back(memory);
    bytes_ = room;
  }
  return memory_.empty() ? nullptr : static_cast<char*>(memory_.back());
}

void DeviceBuffer::Release() {
  for (void* memory : memory_) {
    if (registers_) {
      cuda_->release_buffer(device_, communicator_, memory);
    } else {
      cuda_->release(device_, memory);
    }
  }
  memory_.clear();
  bytes_ = 0;
}

}  // namespace rueda
