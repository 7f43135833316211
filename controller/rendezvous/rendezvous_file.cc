#include "controller/rendezvous/rendezvous_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controller/bus/socket.h"
#include "controller/protocol/authentication.h"
#include "controller/rendezvous/secret.h"
#include "core/base/unique_fd.h"

namespace rueda {
namespace {

constexpr char kFirstLine[] = "rueda rendezvous 1";
constexpr size_t kBytesMax = 16'384;

std::string Where(const std::string& path) {
  return absl::StrCat(path, ", the file by which the ranks meet (RUEDA_SHARED_DIR)");
}

// A network file system may remember for many seconds that a file was not there. Reading the
// directory makes it ask again.
absl::Status LookAgain(const std::string& path) {
  const std::string name = path.substr(0, path.rfind('/'));
  DIR* const directory = opendir(name.c_str());
  if (directory == nullptr) return ErrnoStatus(errno, absl::StrCat("RUEDA_SHARED_DIR=", name));
  while (readdir(directory) != nullptr) {
  }
  closedir(directory);
  return absl::OkStatus();
}

absl::Status WriteAll(int fd, absl::string_view text, const std::string& where) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("writing ", where));
    text.remove_prefix(static_cast<size_t>(n));
  }
  return fsync(fd) == 0 ? absl::OkStatus() : ErrnoStatus(errno, absl::StrCat("writing ", where));
}

}  // namespace

std::string RendezvousPath(const std::string& directory, absl::string_view job,
                           uint64_t membership) {
  return absl::StrCat(
      directory, "/rueda-",
      NameFor("rueda rendezvous", absl::StrCat(geteuid(), "/", job, "/", membership)));
}

absl::StatusOr<RendezvousFile> RendezvousFile::Publish(const std::string& path,
                                                       const RendezvousPoint& point) {
  std::string hex = absl::BytesToHexString(point.secret.bytes());
  std::string text = absl::StrCat(kFirstLine, "\n", point.address, "\n", hex, "\n");
  const absl::Cleanup wipe = [&] {
    Wipe(&hex);
    Wipe(&text);
  };
  const std::string unfinished = absl::StrCat(path, ".", getpid(), ".new");
  unlink(unfinished.c_str());
  const UniqueFd fd(
      open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  struct stat info;
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    return ErrnoStatus(errno, absl::StrCat("creating ", Where(path)));
  }
  absl::Status status = CheckPrivate(info, Where(path));  // not every file system keeps a mode
  if (status.ok()) status = WriteAll(fd.get(), text, Where(path));
  if (status.ok() && rename(unfinished.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(errno, absl::StrCat("creating ", Where(path)));
  }
  if (!status.ok()) {
    unlink(unfinished.c_str());
    return status;
  }
  return RendezvousFile(path, info.st_dev, info.st_ino);
}

RendezvousFile::RendezvousFile(RendezvousFile&& other) noexcept
    : path_(std::move(other.path_)), device_(other.device_), inode_(other.inode_) {
  other.path_.clear();
}

RendezvousFile::~RendezvousFile() {
  struct stat info;
  if (path_.empty() || lstat(path_.c_str(), &info) != 0) return;
  if (info.st_dev == device_ && info.st_ino == inode_) unlink(path_.c_str());
}

absl::StatusOr<RendezvousPoint> ReadRendezvous(const std::string& path) {
  RUEDA_RETURN_IF_ERROR(LookAgain(path));
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    if (errno == ENOENT || errno == ESTALE) {  // or replaced at this moment, on another host
      return absl::UnavailableError(absl::StrCat(Where(path), " is not there"));
    }
    return ErrnoStatus(errno, absl::StrCat("opening ", Where(path)));
  }
  RUEDA_RETURN_IF_ERROR(CheckPrivate(info, Where(path)));
  std::string text(kBytesMax, 0);
  const ssize_t n = pread(fd.get(), text.data(), text.size(), 0);
  if (n < 0) return ErrnoStatus(errno, absl::StrCat("reading ", Where(path)));
  text.resize(static_cast<size_t>(n));
  const absl::Cleanup wipe = [&] { Wipe(&text); };
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  RendezvousPoint point;
  if (lines.size() != 4 || lines[0] != kFirstLine || lines[1].empty() || !lines[3].empty()) {
    return absl::DataLossError(absl::StrCat(Where(path), " is none, or of another version"));
  }
  // Rank 0 writes numbers, so no name service is asked.
  if (lines[2].size() % 2 != 0 || lines[2].size() > 2 * kSecretBytesMax ||
      !std::all_of(lines[2].begin(), lines[2].end(), absl::ascii_isxdigit) ||
      !CheckNumericAddress(std::string(lines[1])).ok()) {
    return absl::DataLossError(absl::StrCat(Where(path), " is damaged"));
  }
  point.address = std::string(lines[1]);
  std::string secret = absl::HexStringToBytes(lines[2]);
  point.secret = secret;
  Wipe(&secret);
  return point;
}

}  // namespace rueda
