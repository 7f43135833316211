#include "core/base/check.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace rueda {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  words_ << "rueda: " << file << ":" << line << ": broken invariant: " << condition << " ";
}

CheckFailure::~CheckFailure() {
  words_ << "\n";
  const std::string text = words_.str();
  // Straight to the descriptor: the process is about to die and stdio may be in any state.
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) std::abort();
  std::abort();
}

}  // namespace rueda
