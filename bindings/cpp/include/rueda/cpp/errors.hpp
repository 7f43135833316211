// Rueda's C++ API: errors. Included by rueda/rueda.hpp, which says how to use it.
#ifndef RUEDA_CPP_ERRORS_HPP_
#define RUEDA_CPP_ERRORS_HPP_

#include <stdexcept>
#include <string>

#include "rueda/rueda.h"

/// Rueda's C++ API.
namespace rueda {

/// \addtogroup cpp_job
/// @{

/// What every function of this API throws.
class Error : public std::runtime_error {
 public:
  /// `message`: for people.
  Error(rueda_status status, const std::string& message, bool recoverable = false, int rank = -1)
      : std::runtime_error(message), status_(status), recoverable_(recoverable), rank_(rank) {}
  /// Which kind of error.
  rueda_status status() const { return status_; }
  /// A rank or the network was lost, and a new epoch without it could go on. A mismatch, or a
  /// mistake of the caller's, is not recoverable: trying again changes nothing.
  bool recoverable() const { return recoverable_; }
  /// The rank that was lost; -1 when none was.
  int rank() const { return rank_; }

 private:
  rueda_status status_;
  bool recoverable_;
  int rank_;
};

/// @}

namespace detail {

// The latest error of this thread; after a loss with what the context knows about it.
inline Error LastError(rueda_status status, rueda_context* context) {
  const std::string message = rueda_last_error();
  rueda_error error = RUEDA_ERROR_INIT;
  if (status == RUEDA_ABORTED && rueda_context_error(context, &error) == RUEDA_OK) {
    return Error(status, message, error.recoverable != 0, error.rank);
  }
  return Error(status, message);
}

inline void Check(rueda_status status, rueda_context* context = rueda_current_context()) {
  if (status != RUEDA_OK) throw LastError(status, context);
}

inline int CheckNumber(int32_t number) {
  if (number < 0) throw Error(RUEDA_FAILED_PRECONDITION, rueda_last_error());
  return number;
}

// The current context, or an error that says what to do.
inline rueda_context* Current() {
  rueda_context* context = rueda_current_context();
  if (context == nullptr) {
    throw Error(RUEDA_FAILED_PRECONDITION, "Rueda is not initialised: call rueda::init() first");
  }
  return context;
}

// For the C API. "" becomes null: unnamed.
inline const char* NameOf(const std::string& name) {
  if (name.find('\0') != std::string::npos) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                "a name with a NUL byte in it: '" + std::string(name.c_str()) + "'...");
  }
  return name.empty() ? nullptr : name.c_str();
}

}  // namespace detail

}  // namespace rueda

#endif  // RUEDA_CPP_ERRORS_HPP_
