// How an agent is started on a host: by ssh, by another remote shell, by srun, or here. PURE
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rueda {

struct Starter {
  enum class Kind { kSsh, kShell, kSrun, kBlaunch };
  Kind kind = Kind::kSsh;
  std::vector<std::string> shell;  // kShell: its words; the host and a command line follow
  int ssh_port = 0;                // 0: as the user's configuration has it
  std::string ssh_identity_file;   // likewise
  int connect_seconds = 0;         // until ssh gives up a host that does not answer
};

// The words that start `program --agent` on `host`. ssh does what the user's own configuration
// says, but asks nothing.
std::vector<std::string> StarterWords(const Starter& starter, const std::string& host,
                                      const std::string& program);

// As one word of a shell's command line (of sh, csh and fish).
std::string ShellQuoted(absl::string_view word);

}  // namespace rueda
