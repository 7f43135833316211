#include "core/trace/old_dumps.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace rueda::trace {
namespace {

constexpr absl::string_view kBefore = "rueda-recorder.";
constexpr absl::string_view kAfter = ".txt";
constexpr size_t kKept = 16;
constexpr time_t kRecentSeconds = 3'600;

bool IsDumpName(absl::string_view name) {
  int pid;
  return absl::ConsumePrefix(&name, kBefore) && absl::ConsumeSuffix(&name, kAfter) &&
         absl::SimpleAtoi(name, &pid);
}

}  // namespace

std::string DumpName(int pid) {
  return absl::StrCat(kBefore, pid, kAfter);
}

void RemoveOldDumps(const std::string& directory) {
  std::vector<std::pair<time_t, std::string>> old;
  std::error_code error;
  const time_t now = time(nullptr);
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    if (!IsDumpName(it->path().filename().native())) continue;
    struct stat file;
    if (lstat(it->path().c_str(), &file) != 0 || !S_ISREG(file.st_mode)) continue;
    if (file.st_uid != geteuid() || file.st_mtime > now - kRecentSeconds) continue;
    old.emplace_back(file.st_mtime, it->path().native());
  }
  std::sort(old.rbegin(), old.rend());
  for (size_t i = kKept; i < old.size(); ++i) unlink(old[i].second.c_str());
}

}  // namespace rueda::trace
