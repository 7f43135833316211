// RUEDA_CHECK(condition) << "words": our own broken invariants. On in release; the process dies
// with the file, the line and the words, and the launcher names the rank.
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

// Turns a failure into a statement of type void; binds less tightly than <<.
struct EndCheck {
  void operator&(const CheckFailure&) const {}
};

}  // namespace rueda

#define RUEDA_CHECK(condition)       \
  __builtin_expect(!!(condition), 1) \
      ? (void)0                      \
      : ::rueda::EndCheck() & ::rueda::CheckFailure(__FILE__, __LINE__, #condition)
