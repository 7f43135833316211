// The caller's structs, every field checked, as the runtime's.
#pragma once

#include "absl/container/inlined_vector.h"
#include "controller/runtime/runtime.h"
#include "rueda/rueda.h"

namespace rueda::capi {

rueda_dtype TheirDType(DType dtype);
rueda_device TheirDevice(DeviceType type, int index);
// UNIMPLEMENTED for others than the CPU and CUDA.
absl::StatusOr<DeviceType> DeviceTypeOf(int32_t type);

struct CheckedOperations {
  OperationArgs args;  // refers to what follows, and to the caller's names and splits
  DeviceExec exec;     // of one on a device
  DeviceClaim claim;   // likewise, when it is prepared
  absl::InlinedVector<PartArgs, 1> parts;
  absl::InlinedVector<absl::string_view, 1> names;
};

// One operation, or a group, that rank `self` submits. Errors say which operation and what is wrong
// with it.
absl::Status CheckOperations(const rueda_operation* operations, size_t count, Rank self,
                             CheckedOperations* checked);

// Writes the first `capacity` of `found` to the caller's `ranks`, and how many there are to
// `count`. INVALID_ARGUMENT: one of these pointers of `function` is null.
absl::Status WriteRanks(const char* function, absl::Span<const Rank> found, int32_t* ranks,
                        size_t capacity, size_t* count);

}  // namespace rueda::capi
