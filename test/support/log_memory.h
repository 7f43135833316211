// Memory for a host's log, which a job would have in shared memory: zeros, which cost nothing until
// they are touched. On the heap, where a sanitizer sees who goes beyond its end.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "controller/bus/host_log.h"
#include "core/base/check.h"

namespace rueda::testing {

class LogMemory {
 public:
  explicit LogMemory(const LogLayout& layout)
      : layout_(layout), memory_(std::calloc(1, layout.bytes() + kLine - 1)) {
    RUEDA_CHECK(memory_ != nullptr);
  }

  const LogLayout& layout() const { return layout_; }
  void* data() const {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(memory_.get());
    return reinterpret_cast<void*>((begin + kLine - 1) / kLine * kLine);
  }

 private:
  static constexpr size_t kLine = 64;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  const LogLayout layout_;
  const std::unique_ptr<void, Free> memory_;
};

// Of so many writers, else as it is by default.
inline LogLayout LayoutOf(int writers) {
  LogLayout layout;
  layout.writers = writers;
  return layout;
}

}  // namespace rueda::testing
