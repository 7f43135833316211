// Counts the bytes of tensors that a process has at a time: those of torch's allocator for the CPU,
// and those of rueda_mem_alloc, where strategies keep shares and buckets.
//
// A program that links this has rueda_mem_alloc and rueda_mem_free of its own, which count and call
// the library's: that is how the adapter's are seen.
#pragma once

#include <cstdint>

namespace compare {

// Begins to count. Once, before other threads allocate tensors.
void StartMemoryMeter();

// Thread-safe. The peak is that of the bytes that have come since the last ResetPeak().
void ResetPeak();
int64_t PeakBytes();

}  // namespace compare
