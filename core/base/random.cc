#include "core/base/random.h"

#include <errno.h>
#include <sys/random.h>

#include "core/base/check.h"

namespace rueda {

void FillRandom(void* data, size_t bytes) {
  char* const to = static_cast<char*>(data);
  for (size_t filled = 0; filled < bytes;) {
    const ssize_t n = getrandom(to + filled, bytes - filled, 0);
    RUEDA_CHECK(n > 0 || errno == EINTR) << "getrandom failed";
    if (n > 0) filled += static_cast<size_t>(n);
  }
}

}  // namespace rueda
