// PURE
#include "controller/launcher/decide/starter.h"

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

// A step has what its job has on the node, GPUs too, but where the job asked for them by --gpus or
// --gpus-per-task: srun takes that from its environment, and the controller from the job, and a
// step of one node and one task would then ask for all of the job's GPUs, or have one task's. A
// label would stand in the agent's messages.
constexpr char kSrun[] =
    "test -z \"$SLURM_GPUS$SLURM_GPUS_PER_TASK\" || test -z \"$SLURM_GPUS_ON_NODE\" || "
    "set -- --gres=gpu:\"$SLURM_GPUS_ON_NODE\" \"$@\"; "
    "unset SLURM_GPUS SLURM_GPUS_PER_TASK SLURM_LABELIO; "
    "exec srun \"$@\"";

}  // namespace

std::vector<std::string> StarterWords(const Starter& starter, const std::string& host,
                                      const std::string& program) {
  if (starter.kind == Starter::Kind::kSrun) {
    return {"sh",
            "-c",
            kSrun,
            "srun",
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
