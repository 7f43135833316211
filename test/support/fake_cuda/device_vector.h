// FAKE: device memory and streams for tests. The fake's device memory is the host's: what a test
// enqueues on a stream reads and writes it directly.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "test/support/fake_cuda/control.h"

namespace rueda::fake_cuda {

// Room for the table's words: `EXPECT_EQ(Cuda().record(device, event, stream, words), 0) << words`.
struct Message {
  char text[RUEDA_CUDA_MESSAGE_BYTES] = "";
  operator char*() { return text; }
};

template <typename T>
class DeviceVector {
 public:
  // Full of 0xFF: NaN, -1.
  DeviceVector(int32_t device, size_t size) : device_(device), size_(size) {
    Message message;
    EXPECT_EQ(Cuda().allocate(device_, bytes(), &memory_, message), 0) << message.text;
  }
  DeviceVector(int32_t device, const std::vector<T>& values) : DeviceVector(device, values.size()) {
    Upload(values);
  }
  DeviceVector(int32_t device, std::initializer_list<T> values)
      : DeviceVector(device, std::vector<T>(values)) {}
  DeviceVector(DeviceVector&& other) noexcept
      : device_(other.device_),
        size_(other.size_),
        memory_(std::exchange(other.memory_, nullptr)) {}
  ~DeviceVector() {
    if (memory_ != nullptr) Cuda().release(device_, memory_);
  }

  T* data() const { return static_cast<T*>(memory_); }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }

  void Upload(const std::vector<T>& values) {
    ASSERT_EQ(values.size(), size_);
    Message message;
    EXPECT_EQ(Cuda().transfer(device_, memory_, values.data(), bytes(), message), 0)
        << message.text;
  }
  std::vector<T> Download() const {
    std::vector<T> values(size_);
    Message message;
    EXPECT_EQ(Cuda().transfer(device_, values.data(), memory_, bytes(), message), 0)
        << message.text;
    return values;
  }

 private:
  int32_t device_;
  size_t size_;
  void* memory_ = nullptr;
};

// A stream of the test's own: the caller's.
class CallersStream {
 public:
  explicit CallersStream(int32_t device) : device_(device) {
    Message message;
    EXPECT_EQ(Cuda().open_stream(device_, 0, &stream_, message), 0) << message.text;
  }
  ~CallersStream() { Cuda().close_stream(device_, stream_); }
  CallersStream(const CallersStream&) = delete;
  void* get() const { return stream_; }
  int32_t number() const { return Fake().stream_number(device_, stream_); }
  int32_t pending() const { return Fake().pending(device_, stream_); }

  void Hold() { Fake().hold(device_, stream_); }
  void Release() { Fake().release(device_, stream_); }
  void Step(int32_t tasks = 1) { Fake().step(device_, stream_, tasks); }
  void Drain() { Fake().drain(device_, stream_); }
  // The caller's own kernel.
  void Enqueue(std::function<void()> work) {
    auto* const mine = new std::function<void()>(std::move(work));
    Fake().enqueue(device_, stream_, &Run, mine);
  }

 private:
  static void Run(void* user) {
    const std::unique_ptr<std::function<void()>> work(static_cast<std::function<void()>*>(user));
    (*work)();
  }

  const int32_t device_;
  void* stream_ = nullptr;
};

}  // namespace rueda::fake_cuda
