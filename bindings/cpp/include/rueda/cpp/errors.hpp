// Rueda's C++ API: errors. Included by rueda/rueda.hpp, which says how to use it.
#ifndef RUEDA_CPP_ERRORS_HPP_
#define RUEDA_CPP_ERRORS_HPP_

#include <cstdint>
#include <memory>
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
  /// With all that the C API knows about it.
  Error(rueda_status status, const std::string& message, const rueda_error& details)
      : std::runtime_error(message),
        status_(status),
        recoverable_(details.recoverable != 0),
        rank_(details.rank),
        pid_(details.pid),
        membership_(details.membership),
        words_(std::make_shared<const Words>(
            Words{details.host, details.cause, details.operation, details.tensor})) {}

  /// Which kind of error.
  rueda_status status() const { return status_; }
  /// The same ranks could go on in a new membership, all of them or, where one was lost, those that
  /// live. A mismatch, or a mistake of the caller's, is not recoverable: trying again changes
  /// nothing.
  bool recoverable() const { return recoverable_; }
  /// The rank that was lost (a LostRankError), or else the one that ended the membership: it called
  /// abort(), or could not go on. -1: none.
  int rank() const { return rank_; }
  /// The lost rank's host; "" where nothing is known, as with the words below.
  const std::string& host() const { return words_->host; }
  /// Its process on that host; 0 where no rank was lost.
  int pid() const { return pid_; }
  /// How it was lost: "killed by signal 9 (SIGKILL)".
  const std::string& cause() const { return words_->cause; }
  /// What it was doing, or what was awaited of it (what() says which); where the operation failed
  /// and the job goes on, which: "allreduce".
  const std::string& operation() const { return words_->operation; }
  /// With which tensor; likewise.
  const std::string& tensor() const { return words_->tensor; }
  /// The membership of the operation, or the one that ended; 0 where nothing is known.
  uint64_t membership() const { return membership_; }
  /// Deprecated: its old name. It goes with 0.3.
  [[deprecated("write membership()")]] uint64_t epoch() const { return membership_; }

 private:
  struct Words {
    std::string host, cause, operation, tensor;
  };
  static const std::shared_ptr<const Words>& NoWords() {
    static const auto none = std::make_shared<const Words>();
    return none;
  }

  rueda_status status_;
  bool recoverable_;
  int rank_;
  int pid_ = 0;
  uint64_t membership_ = 0;
  std::shared_ptr<const Words> words_ = NoWords();  // shared: exceptions are copied without a throw
};

/// The ranks disagree about an operation on tensors: all of them get this, and the job goes on.
/// operation() and tensor() say about which. Objects, joins and process sets throw an Error with
/// RUEDA_INVALID_ARGUMENT for that.
class MismatchError : public Error {
 public:
  using Error::Error;
};

/// A rank was lost, and the membership has ended with it: rank(), host(), pid() and cause() say
/// how. A membership that ends otherwise, such as by abort, is an Error with the status
/// RUEDA_ABORTED, whose rank() says who ended it.
class LostRankError : public Error {
 public:
  using Error::Error;
};

/// @}

namespace detail {

// `ended`: of an operation that ended so. A mistake may then be the other ranks'.
[[noreturn]] inline void Throw(rueda_status status, const std::string& message,
                               const rueda_error& details, bool ended) {
  if (status == RUEDA_ABORTED && details.pid != 0) throw LostRankError(status, message, details);
  if (status == RUEDA_INVALID_ARGUMENT && ended) throw MismatchError(status, message, details);
  throw Error(status, message, details);
}

// The latest error of this thread; after a loss with what the context knows about it.
[[noreturn]] inline void ThrowLast(rueda_status status, rueda_context* context) {
  const std::string message = rueda_last_error();
  rueda_error details = RUEDA_ERROR_INIT;
  if (status == RUEDA_ABORTED) (void)rueda_context_error(context, &details);
  Throw(status, message, details, /*ended=*/false);
}

// The latest error of this thread: how the operation ended.
[[noreturn]] inline void ThrowEnd(rueda_status status, rueda_context* context,
                                  rueda_handle handle) {
  const std::string message = rueda_last_error();
  rueda_error details = RUEDA_ERROR_INIT;
  const bool ended = rueda_handle_error(context, handle, &details) == RUEDA_OK;
  Throw(status, message, details, ended);
}

inline void Check(rueda_status status, rueda_context* context = rueda_current_context()) {
  if (status != RUEDA_OK) ThrowLast(status, context);
}

inline int CheckNumber(int32_t number) {
  if (number < 0) throw Error(RUEDA_FAILED_PRECONDITION, rueda_last_error());
  return number;
}

// The current context, or an error that says what to do.
inline rueda_context* Current() {
  rueda_context* context = rueda_current_context();
  if (context == nullptr) {
    throw Error(RUEDA_FAILED_PRECONDITION, "Rueda is not initialized: call rueda::init() first");
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
