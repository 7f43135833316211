// Where the kernels' headers are compiled: by nvcc for the device and the host, and by any C++
// compiler for the host alone, where tests run them block by block and thread by thread.
//
// A kernel's body takes its table of arguments and its thread's index in the launch. `block`s cut
// the work into tiles, one each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define RUEDA_HOST_DEVICE __host__ __device__
#define RUEDA_DEVICE __device__
#else
#define RUEDA_HOST_DEVICE
#define RUEDA_DEVICE
#endif
#if defined(__CUDA_ARCH__)
#define RUEDA_UNROLL _Pragma("unroll")
#else
#define RUEDA_UNROLL
#endif

namespace rueda::cuda {

// Of every launch.
inline constexpr uint32_t kThreads = 256;
inline constexpr uint32_t kWarp = 32;
// What one block works on, of the memory that is written.
inline constexpr int64_t kTileBytes = 16 << 10;
// Of a launch: the hardware takes 2^31 - 1, which no memory is large enough for.
inline constexpr int64_t kBlocksMax = int64_t{1} << 30;
// Of a kernel's arguments: from compute capability 7.0 and CUDA 12.1 on.
inline constexpr size_t kTableBytesMax = 32764;

struct ThreadIndex {
  uint32_t block;
  uint32_t thread;  // below kThreads
};

// The widest that one instruction reads or writes.
struct alignas(16) Vector {
  uint32_t words[4];
};
inline constexpr int64_t kVectorBytes = sizeof(Vector);

RUEDA_HOST_DEVICE inline bool IsAligned(const void* pointer, size_t to) {
  return reinterpret_cast<uintptr_t>(pointer) % to == 0;
}

// Reads and writes T as it lies in memory: aligned, as the device insists on.
template <class T>
RUEDA_HOST_DEVICE inline T Load(const void* from) {
#if defined(__CUDA_ARCH__)
  return *static_cast<const T*>(from);
#else
  if (!IsAligned(from, alignof(T))) __builtin_trap();
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
#endif
}

template <class T>
RUEDA_HOST_DEVICE inline void Store(T value, void* to) {
#if defined(__CUDA_ARCH__)
  *static_cast<T*>(to) = value;
#else
  if (!IsAligned(to, alignof(T))) __builtin_trap();
  std::memcpy(to, &value, sizeof value);
#endif
}

// The same at any address.
template <class T>
RUEDA_HOST_DEVICE inline T LoadAnywhere(const void* from) {
  if (IsAligned(from, sizeof(T))) return Load<T>(from);
  uint8_t bytes[sizeof(T)];
  RUEDA_UNROLL
  for (size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<const uint8_t*>(from)[i];
  T value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

template <class T>
RUEDA_HOST_DEVICE inline void StoreAnywhere(T value, void* to) {
  if (IsAligned(to, sizeof(T))) return Store(value, to);
  uint8_t bytes[sizeof(T)];
  memcpy(bytes, &value, sizeof value);
  RUEDA_UNROLL
  for (size_t i = 0; i < sizeof(T); ++i) static_cast<uint8_t*>(to)[i] = bytes[i];
}

// The first of `count` ascending ends that is beyond `block`: whose tile it is.
RUEDA_HOST_DEVICE inline uint32_t OwnerOf(const uint32_t* ends, uint32_t count, uint32_t block) {
  uint32_t low = 0;
  uint32_t high = count - 1;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (ends[middle] > block) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

inline int64_t TilesOf(int64_t bytes) {
  return (bytes + kTileBytes - 1) / kTileBytes;
}

RUEDA_HOST_DEVICE inline int64_t Smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

}  // namespace rueda::cuda
