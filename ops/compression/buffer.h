// Memory that is kept from one operation to the next.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace rueda {

template <typename T>
class Buffer {
 public:
  // Room for so many; what was in it is gone.
  absl::Status Reserve(int64_t count) {
    if (count <= capacity_) return absl::OkStatus();
    memory_ = nullptr;
    capacity_ = 0;
    memory_.reset(new (std::nothrow) T[static_cast<size_t>(count)]);
    if (memory_ == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ",
                                                       static_cast<size_t>(count) * sizeof(T),
                                                       " bytes of compressed tensors"));
    }
    capacity_ = count;
    return absl::OkStatus();
  }
  T* data() const { return memory_.get(); }

 private:
  std::unique_ptr<T[]> memory_;
  int64_t capacity_ = 0;
};

}  // namespace rueda
