// RUEDA_CHECK(condition) << "words": our own broken invariants. On in release; the process dies with
// the file, the line and the words, and the launcher names the rank.
#pragma once

#include <sstream>

namespace rueda {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  template <typename T>
  CheckFailure& operator<<(const T& value) {
    words_ << value;
    return *this;
  }

 private:
  std::ostringstream words_;
};

}  // namespace rueda

#define RUEDA_CHECK(condition)                     \
  switch (0)                                       \
  case 0:                                          \
  default:                                         \
    if (__builtin_expect(!!(condition), 1)) {      \
    } else /* NOLINT */                            \
      ::rueda::CheckFailure(__FILE__, __LINE__, #condition)
