#include "bindings/c/structs.h"

#include "absl/strings/str_cat.h"

namespace rueda::capi {
namespace {

// More is no version's, but what was in memory that nobody initialized.
constexpr size_t kStructBytesMax = 4'096;

}  // namespace

absl::Status CheckVersion(const char* name, const char* init, size_t bytes_min, size_t bytes,
                          const void* given) {
  if (given == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", name, " is null; give one that is initialized with ", init));
  }
  size_t size;
  memcpy(&size, given, sizeof size);
  if (size < bytes_min || size > kStructBytesMax || size % alignof(size_t) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ".size is ", size, ", which no version has; initialize the struct with ", init));
  }
  const char* const begin = static_cast<const char*>(given);
  if (std::any_of(begin + std::min(bytes, size), begin + size, [](char c) { return c != 0; })) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " sets fields that librueda ", RUEDA_VERSION_MAJOR, ".",
                     RUEDA_VERSION_MINOR, ".", RUEDA_VERSION_PATCH,
                     " does not have: the caller was built for a newer version. Update the "
                     "library, or leave these fields as ",
                     init, " sets them"));
  }
  return absl::OkStatus();
}

}  // namespace rueda::capi
