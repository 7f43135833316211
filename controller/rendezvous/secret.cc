#include "controller/rendezvous/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "core/base/random.h"
#include "core/base/unique_fd.h"

namespace rueda {
namespace {

constexpr size_t kSecretBytes = 32;  // of those that we make

absl::StatusOr<Secret> ReadAll(int fd, absl::string_view where) {
  char bytes[kSecretBytesMax + 1];
  const absl::Cleanup wipe = [&] { explicit_bzero(bytes, sizeof bytes); };
  const ssize_t n = pread(fd, bytes, sizeof bytes, 0);
  if (n < 0 && errno == ESPIPE) {
    return absl::FailedPreconditionError(absl::StrCat(
        where, ": that descriptor is not the job's secret. A child of a rank has got the rank's ",
        "variables; in Python, keep what multiprocessing starts from calling init: put that under ",
        "if __name__ == \"__main__\""));
  }
  if (n < 0) return ErrnoStatus(errno, absl::StrCat("reading the job's secret from ", where));
  if (n < static_cast<ssize_t>(kSecretBytesMin) || n > static_cast<ssize_t>(kSecretBytesMax)) {
    return absl::InvalidArgumentError(absl::StrCat("the job's secret in ", where, " has ", n,
                                                   " bytes; expected ", kSecretBytesMin, " to ",
                                                   kSecretBytesMax));
  }
  return Secret(absl::string_view(bytes, static_cast<size_t>(n)));
}

}  // namespace

Secret NewSecret() {
  char bytes[kSecretBytes];
  const absl::Cleanup wipe = [&] { explicit_bzero(bytes, sizeof bytes); };
  FillRandom(bytes, sizeof bytes);
  return Secret(absl::string_view(bytes, sizeof bytes));
}

absl::Status CheckPrivate(const struct stat& file, absl::string_view where) {
  if (S_ISREG(file.st_mode) && file.st_uid == geteuid() && (file.st_mode & 077) == 0) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(
      where, ": must be a regular file of this user that nobody else may read (chmod 600)"));
}

absl::StatusOr<Secret> ReadSecret(const Config& config) {
  if (config.secret_fd >= 0) {
    const int fd = static_cast<int>(config.secret_fd);
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 && errno == EBADF) {
      return absl::FailedPreconditionError(
          absl::StrCat("RUEDA_SECRET_FD=", fd,
                       ": that descriptor is closed. A program between the launcher and this one "
                       "has closed it; in Python, subprocess needs pass_fds=[",
                       fd, "]"));
    }
    return ReadAll(fd, absl::StrCat("RUEDA_SECRET_FD=", fd));
  }
  if (config.secret_file.empty()) return Secret();
  const std::string where = absl::StrCat("RUEDA_SECRET_FILE=", config.secret_file);
  const UniqueFd fd(
      open(config.secret_file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info;
  if (!fd.valid() && errno == ELOOP) {
    return absl::PermissionDeniedError(
        absl::StrCat(where,
                     " is a symbolic link, which may lead anywhere: copy the file, as with "
                     "`umask 077 && cp`"));
  }
  if (!fd.valid() || fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, where);
  RUEDA_RETURN_IF_ERROR(CheckPrivate(info, where));
  return ReadAll(fd.get(), where);
}

}  // namespace rueda
