// PURE
#include "controller/launcher/starter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace rueda {
namespace {

// An end that does not answer for that long, three times, is gone.
constexpr int kAliveSeconds = 15;

std::vector<std::string> SshWords(const Starter& starter) {
  std::vector<std::string> words = {"ssh", "-T", "-o", "BatchMode=yes"};
  const auto option = [&](absl::string_view name, int value) {
    words.push_back("-o");
    words.push_back(absl::StrCat(name, "=", value));
  };
  option("ConnectTimeout", std::max(1, starter.connect_seconds));
  option("ServerAliveInterval", kAliveSeconds);
  option("ServerAliveCountMax", 3);
  if (starter.ssh_port > 0) option("Port", starter.ssh_port);
  if (!starter.ssh_identity_file.empty()) {
    words.insert(words.end(), {"-i", starter.ssh_identity_file});
  }
  words.push_back("--");
  return words;
}

}  // namespace

std::vector<std::string> StarterWords(const Starter& starter, const std::string& host,
                                      const std::string& program) {
  if (starter.kind == Starter::Kind::kSrun) {
    return {"srun",
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            absl::StrCat("--nodelist=", host),
            "--mpi=none",
            "--cpu-bind=none",
            "--kill-on-bad-exit=0",
            "--quiet",
            "--",
            program,
            "--agent"};
  }
  if (starter.kind == Starter::Kind::kBlaunch) return {"blaunch", host, program, "--agent"};
  std::vector<std::string> words =
      starter.kind == Starter::Kind::kSsh ? SshWords(starter) : starter.shell;
  words.push_back(host);
  words.push_back(absl::StrCat("exec ", ShellQuoted(program), " --agent"));
  return words;
}

std::string ShellQuoted(absl::string_view word) {
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

}  // namespace rueda
