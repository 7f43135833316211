// Copies between buffers.
#pragma once

#include <cstddef>
#include <cstring>

namespace rueda::kernels {

// Below it memcpy is as good everywhere.
inline constexpr size_t kVectorCopyBytes = 2048;

void CopyByVectors(void* to, const void* from, size_t bytes);

// memcpy, but by vectors when that is much: AMD's Zen 3 and 4 run `rep movsb`, which glibc before
// 2.40 takes there, at a tenth of their speed when `to` lies a few bytes above `from` in its page
// (glibc's bug 30994), as a large std::vector does with a shared buffer. Any thread.
inline void Copy(void* to, const void* from, size_t bytes) {
  if (bytes <= kVectorCopyBytes) {
    memcpy(to, from, bytes);
  } else {
    CopyByVectors(to, from, bytes);
  }
}

}  // namespace rueda::kernels
