#include "controller/launcher/host/job.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controller/bus/socket.h"
#include "controller/rendezvous/host_identity.h"
#include "core/base/interfaces.h"
#include "core/base/process.h"
#include "core/base/random.h"

namespace rueda {
namespace {

constexpr size_t kJobIdBytes = 16;
// Where programs are looked for without a PATH.
constexpr char kDefaultPath[] = "/usr/local/bin:/usr/bin:/bin";

absl::StatusOr<UniqueFd> OpenFile(const std::string& path, int flags) {
  UniqueFd fd(open(path.c_str(), flags | O_CLOEXEC, 0666));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  return fd;
}

absl::StatusOr<UniqueFd> SecretFd(absl::string_view secret) {
  UniqueFd fd(memfd_create("rueda-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, "making room for the job's secret (memfd_create)");
  if (write(fd.get(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size())) {
    return ErrnoStatus(errno, "writing the job's secret");
  }
  constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return ErrnoStatus(errno, "sealing the job's secret");
  }
  return fd;
}

}  // namespace

void OpenStandardFds() {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);  // gets the lowest free number
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

HostFacts LookAtHost() {
  HostFacts host;
  host.environment = ProcessEnvironment();
  host.usable_cores = UsableCores();
  host.cores = AllowedCores();
  return host;
}

absl::StatusOr<bool> IsThisHost(const std::string& name) {
  if (name == HostName() || name == "localhost") return true;
  const absl::StatusOr<Addresses> found = Resolve(name, "", SOCK_STREAM);
  if (!found.ok()) return StatusAt(absl::StrCat("host ", name), found.status());
  RUEDA_ASSIGN_OR_RETURN(const std::vector<Interface> own, ListInterfaces());
  for (const addrinfo* each = found->get(); each != nullptr; each = each->ai_next) {
    const std::string address = NumericAddress(each->ai_addr);
    const auto has_address = [&](const Interface& interface) {
      return interface.address == address;
    };
    // All of 127.0.0.0/8 is loopback.
    if (absl::StartsWith(address, "127.") || std::any_of(own.begin(), own.end(), has_address)) {
      return true;
    }
  }
  return false;
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  constexpr size_t kBytesMax = 1 << 20;
  RUEDA_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, O_RDONLY));
  std::string text(kBytesMax + 1, 0);
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t n = read(fd.get(), &text[size], text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("reading ", path));
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  if (size > kBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("reading ", path, ": it is larger than 1 MiB"));
  }
  text.resize(size);
  return text;
}

std::string NewJobId() {
  char bytes[kJobIdBytes];
  FillRandom(bytes, sizeof bytes);
  return absl::BytesToHexString(absl::string_view(bytes, sizeof bytes));
}

absl::StatusOr<HostJob> MakeHostJob(const std::string& id, absl::string_view secret, int size) {
  HostJob job;
  RUEDA_ASSIGN_OR_RETURN(job.secret, SecretFd(secret));
  RUEDA_ASSIGN_OR_RETURN(job.board, VerdictBoard::Create(size));
  job.facts.id = id;
  job.facts.secret_fd = job.secret.get();
  job.facts.agent_fd = job.board->fd();
  job.facts.agent_bell_fd = job.board->bell_fd();
  return job;
}

absl::StatusOr<int> FreePort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return ErrnoStatus(errno, "looking for a free port for MASTER_PORT");
  }
  return ntohs(address.sin_port);
}

absl::StatusOr<std::string> FindProgram(const std::string& program,
                                        const Environment& environment) {
  const auto path = environment.find("PATH");
  const std::string folders = path == environment.end() ? kDefaultPath : path->second;
  std::vector<std::string> candidates;
  const bool is_path = program.find('/') != std::string::npos;
  if (is_path) {
    candidates.push_back(program);
  } else if (!program.empty()) {
    for (const absl::string_view directory : absl::StrSplit(folders, ':')) {
      candidates.push_back(absl::StrCat(directory.empty() ? "." : directory, "/", program));
    }
  }
  std::string refused;
  for (const std::string& candidate : candidates) {
    struct stat info;
    if (stat(candidate.c_str(), &info) != 0) continue;
    if (S_ISREG(info.st_mode) && access(candidate.c_str(), X_OK) == 0) return candidate;
    // As a shell does: a directory in PATH that happens to have the name is no reason to stop.
    if (!S_ISDIR(info.st_mode) || is_path) refused = candidate;
  }
  struct stat info;
  const bool exists = !program.empty() && stat(program.c_str(), &info) == 0;
  std::string hint;
  if (exists && absl::EndsWith(program, ".py")) {
    hint = absl::StrCat("; did you mean 'python ", program, "'?");
  } else if (exists && !is_path) {
    hint = absl::StrCat("; did you mean './", program, "'?");
  }
  if (!refused.empty()) {
    const bool is_directory = std::filesystem::is_directory(refused);
    return absl::PermissionDeniedError(absl::StrCat(
        "can't execute '", refused, "': ",
        is_directory ? "it is a directory" : absl::StrCat("it is not marked as executable", hint)));
  }
  return absl::NotFoundError(
      absl::StrCat("program '", program, "' not found", is_path ? "" : " in PATH", hint));
}

absl::StatusOr<std::vector<RankStreams>> OpenInputs(int ranks, int standard_input) {
  std::vector<RankStreams> streams(static_cast<size_t>(ranks));
  for (RankStreams& each : streams) {
    if (&each == &streams[0] && isatty(standard_input) == 0) {
      each.in.reset(fcntl(standard_input, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
      if (!each.in.valid()) return ErrnoStatus(errno, "passing on the standard input");
    } else {
      RUEDA_ASSIGN_OR_RETURN(each.in, OpenFile("/dev/null", O_RDONLY));
    }
  }
  return streams;
}

absl::Status MakeOutputDirectory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  return error ? ErrnoStatus(error.value(), absl::StrCat("making ", directory)) : absl::OkStatus();
}

absl::Status OpenOutputFiles(const std::string& directory, Rank rank, RankStreams* streams) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_APPEND;
  const std::string path = absl::StrCat(directory, "/rank.", rank);
  RUEDA_ASSIGN_OR_RETURN(streams->out, OpenFile(path + ".out", kFlags));
  RUEDA_ASSIGN_OR_RETURN(streams->err, OpenFile(path + ".err", kFlags));
  return absl::OkStatus();
}

absl::Status OpenOutputFiles(const std::string& directory, std::vector<RankStreams>* streams) {
  RUEDA_RETURN_IF_ERROR(MakeOutputDirectory(directory));
  for (size_t rank = 0; rank < streams->size(); ++rank) {
    RUEDA_RETURN_IF_ERROR(OpenOutputFiles(directory, static_cast<Rank>(rank), &(*streams)[rank]));
  }
  return absl::OkStatus();
}

}  // namespace rueda
