// What a job needs from its host before it starts: facts, names, a secret, the program.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "controller/failure/verdict_board.h"
#include "controller/launcher/decide/options.h"
#include "controller/launcher/decide/rank_plan.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace rueda {

// What ruedarun and its agents exit with when they start no rank; the last two as shells do.
inline constexpr int kCannotStart = 1;
inline constexpr int kUsage = 2;
inline constexpr int kNotExecutable = 126;
inline constexpr int kNotFound = 127;

// Makes sure that descriptors 0, 1 and 2 are open, so that nothing else gets their numbers.
void OpenStandardFds();

HostFacts LookAtHost();

// `name` is this host's, an address of it, or resolves to one. NOT_FOUND: it can't be resolved.
absl::StatusOr<bool> IsThisHost(const std::string& name);

// The content of a file of the user's, of up to 1 MiB, with the text for the user when it can't be
// read.
absl::StatusOr<std::string> ReadText(const std::string& path);

// 128 random bits in hexadecimal digits.
std::string NewJobId();

// What a host has of a job before its first process.
struct HostJob {
  JobFacts facts;
  UniqueFd secret;  // a memfd that nobody can change; close-on-exec, and above 2
  std::unique_ptr<VerdictBoard> board;
};
// `size`: of the job. The facts hold its id and the three descriptors.
absl::StatusOr<HostJob> MakeHostJob(const std::string& id, absl::string_view secret, int size);

// A TCP port of 127.0.0.1 that nobody listens on now.
absl::StatusOr<int> FreePort();

// The path of `program`: itself when it holds a '/', else as found by the PATH of `environment`.
// NOT_FOUND or PERMISSION_DENIED with the text for the user.
absl::StatusOr<std::string> FindProgram(const std::string& program, const Environment& environment);

// Where one rank reads and writes. Close-on-exec, and above 2.
struct RankStreams {
  UniqueFd in;
  UniqueFd out;
  UniqueFd err;
};

// Rank 0's input is a copy of `standard_input` unless that is a terminal, which only the group in
// its foreground may read; the others' is /dev/null. No outputs yet.
absl::StatusOr<std::vector<RankStreams>> OpenInputs(int ranks, int standard_input);

absl::Status MakeOutputDirectory(const std::string& directory);
// Opens <directory>/rank.R.out and .err of a rank, empty; or of each, and makes the directory.
absl::Status OpenOutputFiles(const std::string& directory, Rank rank, RankStreams* streams);
absl::Status OpenOutputFiles(const std::string& directory, std::vector<RankStreams>* streams);

}  // namespace rueda
