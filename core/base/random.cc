#include "core/base/random.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/base/check.h"
#include "core/base/unique_fd.h"

namespace rueda {
namespace {

// For where a filter of system calls forbids getrandom.
void ReadRandomDevice(char* to, size_t bytes) {
  const int refusal = errno;
  const UniqueFd device(open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  for (size_t filled = 0; filled < bytes;) {
    const ssize_t n = read(device.get(), to + filled, bytes - filled);
    RUEDA_CHECK(n > 0 || errno == EINTR)
        << "no random bytes: getrandom is refused (" << strerror(refusal)
        << "), and /dev/urandom can't be read (" << strerror(errno) << ")";
    if (n > 0) filled += static_cast<size_t>(n);
  }
}

}  // namespace

void FillRandom(void* data, size_t bytes) {
  char* const to = static_cast<char*>(data);
  for (size_t filled = 0; filled < bytes;) {
    const ssize_t n = getrandom(to + filled, bytes - filled, 0);
    if (n < 0 && errno != EINTR) return ReadRandomDevice(to + filled, bytes - filled);
    if (n > 0) filled += static_cast<size_t>(n);
  }
}

}  // namespace rueda
