#include "core/base/memory_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

size_t SoftLimit(__rlimit_resource what) {
  rlimit limit;
  if (getrlimit(what, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNoLimit;
  return static_cast<size_t>(limit.rlim_cur);
}

// 0 where /proc can't be seen.
size_t MappedBytes() {
  std::ifstream file("/proc/self/statm");
  size_t pages = 0;
  file >> pages;
  return file ? pages * PageBytes() : 0;
}

}  // namespace

size_t AddressSpaceLeft() {
  const size_t limit = SoftLimit(RLIMIT_AS);
  if (limit == kNoLimit) return kNoLimit;
  const size_t mapped = MappedBytes();
  return limit > mapped ? limit - mapped : 0;
}

size_t FileBytesMax() {
  return SoftLimit(RLIMIT_FSIZE);
}

size_t PageBytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::string AddressSpaceLimitText() {
  return absl::StrCat("the limit on the address space of a process (RLIMIT_AS, ulimit -v) is ",
                      SoftLimit(RLIMIT_AS), " bytes, of which ", AddressSpaceLeft(), " are left");
}

std::string FileLimitText() {
  return absl::StrCat("the limit on the size of a file (RLIMIT_FSIZE, ulimit -f) is ",
                      FileBytesMax(), " bytes");
}

}  // namespace rueda
