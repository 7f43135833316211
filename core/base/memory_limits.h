// What the limits of this process (setrlimit, a shell's ulimit, a batch system) leave for memory
// that it shares with others, and the pages of such memory. For any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace rueda {

inline constexpr size_t kNoLimit = SIZE_MAX;

// Bytes that may still be mapped under the limit on the address space (RLIMIT_AS).
size_t AddressSpaceLeft();
// How large a file may become (RLIMIT_FSIZE). The kernel counts a memfd as a file.
size_t FileBytesMax();

// A page of memory: 4 KiB on x86-64; kernels for arm64 have 4, 16 or 64 KiB.
size_t PageBytes();
inline constexpr size_t kPageBytesMax = 64u << 10;

// For people: "the limit on the address space of a process (RLIMIT_AS, ulimit -v) is 1000 bytes, of
// which 10 are left", and "the limit on the size of a file (RLIMIT_FSIZE, ulimit -f) is 1000
// bytes".
std::string AddressSpaceLimitText();
std::string FileLimitText();

}  // namespace rueda
