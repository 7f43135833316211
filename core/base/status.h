// The project's use of absl::Status: the two macros that pass errors on. Everything that can happen
// is a Status; what can't is a RUEDA_CHECK (check.h).
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RUEDA_RETURN_IF_ERROR(expression)                                                      \
  do {                                                                                         \
    if (absl::Status rueda_status_ = (expression); __builtin_expect(!rueda_status_.ok(), 0)) { \
      return rueda_status_;                                                                    \
    }                                                                                          \
  } while (false)

#define RUEDA_CONCAT_INNER(a, b) a##b
#define RUEDA_CONCAT(a, b) RUEDA_CONCAT_INNER(a, b)

#define RUEDA_ASSIGN_OR_RETURN(lhs, expression) \
  RUEDA_ASSIGN_OR_RETURN_INNER(RUEDA_CONCAT(rueda_statusor_, __LINE__), lhs, expression)

#define RUEDA_ASSIGN_OR_RETURN_INNER(statusor, lhs, expression)      \
  auto statusor = (expression);                                      \
  if (__builtin_expect(!statusor.ok(), 0)) return statusor.status(); \
  lhs = std::move(statusor).value()

namespace rueda {

// A copy that shares nothing with the original: for another thread. Copies of an absl::Status share
// a counter, which libabsl updates where ThreadSanitizer does not see it.
inline absl::Status DeepCopy(const absl::Status& status) {
  return absl::Status(status.code(), status.message());
}

// `errno` as a Status: "doing: No such file or directory". Codes follow absl's own mapping.
absl::Status ErrnoStatus(int error, absl::string_view doing);

// An error with where it comes from before its message: "where: message".
absl::Status StatusAt(absl::string_view where, const absl::Status& status);

}  // namespace rueda
