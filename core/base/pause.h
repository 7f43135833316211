// A moment in a loop that spins on memory. For any thread.
#pragma once

namespace rueda {

// Leaves the memory that others write alone for a moment, and the core to its other thread.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // `yield` does nothing on most cores
#endif
}

}  // namespace rueda
