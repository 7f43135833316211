// The structs of rueda.h that begin with `size`, in calls of programs that were built with another
// version's header: the one reader and the one writer of them. A shorter struct is an older
// version's, and what it lacks has its default. A longer one is a newer version's, and may set
// nothing that this version does not have. What has this version's size is used where it lies.
// PURE.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/base/status.h"
#include "rueda/rueda.h"

namespace rueda::capi {

template <typename T>
struct Versions {
  const char* name;
  const char* init;  // its macro
  size_t bytes_min;  // of the oldest version
  T defaults;
};

// One for each struct. A new field goes to the end of its struct, begins at a multiple of
// alignof(size_t), has zero as its default, and leaves `bytes_min` as it is.
template <typename T>
inline constexpr Versions<T> kVersions = {};
template <>
inline constexpr Versions<rueda_init_options> kVersions<rueda_init_options> = {
    "rueda_init_options", "RUEDA_INIT_OPTIONS_INIT", offsetof(rueda_init_options, knobs),
    RUEDA_INIT_OPTIONS_INIT};
template <>
inline constexpr Versions<rueda_exec> kVersions<rueda_exec> = {
    "rueda_exec", "RUEDA_EXEC_INIT", offsetof(rueda_exec, ready_event), RUEDA_EXEC_INIT};
template <>
inline constexpr Versions<rueda_operation> kVersions<rueda_operation> = {
    "rueda_operation", "RUEDA_OPERATION_INIT", offsetof(rueda_operation, splits),
    RUEDA_OPERATION_INIT};
template <>
inline constexpr Versions<rueda_completion> kVersions<rueda_completion> = {
    "rueda_completion", "RUEDA_COMPLETION_INIT", offsetof(rueda_completion, flags),
    RUEDA_COMPLETION_INIT};
template <>
inline constexpr Versions<rueda_error> kVersions<rueda_error> = {
    "rueda_error", "RUEDA_ERROR_INIT", offsetof(rueda_error, message), RUEDA_ERROR_INIT};
template <>
inline constexpr Versions<rueda_membership> kVersions<rueda_membership> = {
    "rueda_membership", "RUEDA_MEMBERSHIP_INIT", offsetof(rueda_membership, keeping),
    RUEDA_MEMBERSHIP_INIT};
// All of it: whoever has no room for `owner` could free nothing.
template <>
inline constexpr Versions<rueda_result> kVersions<rueda_result> = {
    "rueda_result", "RUEDA_RESULT_INIT", sizeof(rueda_result), RUEDA_RESULT_INIT};

// Whether the struct at `given` can be one of a version: INVALID_ARGUMENT says what is wrong.
// `bytes`: this version's.
absl::Status CheckVersion(const char* name, const char* init, size_t bytes_min, size_t bytes,
                          const void* given);

// Checks a caller's struct. One that is to be written is checked before the work is done.
template <typename T>
absl::Status CheckStruct(const T* given) {
  if (__builtin_expect(given != nullptr && given->size == sizeof(T), 1)) return absl::OkStatus();
  constexpr const Versions<T>& versions = kVersions<T>;
  return CheckVersion(versions.name, versions.init, versions.bytes_min, sizeof(T), given);
}

// Sets `*read` to the caller's struct as this version has it: to `given`, or else to `copy`, which
// is filled only then.
template <typename T>
absl::Status ReadStruct(const T* given, T* copy, const T** read) {
  if (__builtin_expect(given != nullptr && given->size == sizeof(T), 1)) {
    *read = given;
    return absl::OkStatus();
  }
  RUEDA_RETURN_IF_ERROR(CheckStruct(given));
  *copy = kVersions<T>.defaults;
  memcpy(static_cast<void*>(copy), given, std::min(given->size, sizeof(T)));
  copy->size = sizeof(T);
  *read = copy;
  return absl::OkStatus();
}

// Fills the caller's struct, which was checked, as far as it goes. Its `size` stays.
template <typename T>
void WriteStruct(const T& value, T* given) {
  const size_t bytes = std::min(given->size, sizeof(T)) - sizeof(size_t);
  memcpy(reinterpret_cast<char*>(given) + sizeof(size_t),
         reinterpret_cast<const char*>(&value) + sizeof(size_t), bytes);
}

}  // namespace rueda::capi
