// ruedarun's command line. PURE
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "controller/launcher/decide/host_list.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/config/config.h"

namespace rueda {

struct LaunchOptions {
  enum class Bind { kNone, kCore };
  enum class Prefix { kRank, kNone };
  struct Export {
    std::string name;
    std::optional<std::string> value;  // without: it must stand in ruedarun's own environment
  };

  bool help = false;             // then nothing else is looked at
  bool version = false;          // likewise
  bool agent = false;            // likewise
  bool check_build = false;      // likewise
  std::string config_file;       // path; not read yet
  int ranks = 0;                 // 0: as many as there are slots
  std::vector<HostSlots> hosts;  // of -H; empty: this host
  std::string hostfile;          // path; not read yet
  std::vector<Export> exports;
  std::vector<std::string> remote_shell;  // instead of ssh; empty: ssh
  int ssh_port = 0;                       // 0: as the user's configuration has it
  std::string ssh_identity_file;          // likewise
  Environment settings;                   // of options that stand for Rueda's variables, checked
  std::string output_dir;                 // empty: the ranks' lines go to ruedarun's own outputs
  Bind bind = Bind::kNone;
  Prefix prefix = Prefix::kRank;
  bool verbose = false;
  double grace_seconds = 5;          // until SIGKILL, once the job is to end
  double host_timeout_seconds = 30;  // ruedarun and another host may be silent to each other
  double stop_after_seconds = 0;     // then the ranks are warned; 0: never
  // Of an elastic job.
  bool elastic = false;      // the job is one: any of the next four was given
  std::string elastic_only;  // an option that is of no use in another one; empty: none was given
  int min_processes = 0;     // 0: as many as `ranks`
  int max_processes = 0;     // 0: as many as there are slots
  int spares = 0;
  std::string discovery_script;  // a shell's command line
  int slots_per_host = 0;        // of those that the script says nothing of; 0: it has to
  double elastic_timeout_seconds = 600;
  double regroup_timeout_seconds = 10;
  int reset_limit = -1;  // -1: none
  double cooldown_seconds_min = 1;
  double cooldown_seconds_max = 60;
  bool blacklist_hosts = false;

  std::vector<std::string> command;  // the program and its arguments

  Nanos grace() const { return static_cast<Nanos>(grace_seconds * kSecond); }
  Nanos host_timeout() const { return static_cast<Nanos>(host_timeout_seconds * kSecond); }
  Nanos stop_after() const {
    return stop_after_seconds > 0 ? static_cast<Nanos>(stop_after_seconds * kSecond) : kForever;
  }
};

// Whether every one of the options of that name counts, not the last alone.
bool MayBeRepeated(absl::string_view name);

// `options`, with what `arguments` change: argv without the name of ruedarun itself. Options end at
// the first word that is none, or after "--"; what follows is the program and its arguments,
// untouched. INVALID_ARGUMENT holds the text for the user: an option that is unknown is refused
// with the nearest known one, one that Horovod's launcher has and this one has not is refused by
// name.
absl::StatusOr<LaunchOptions> ParseOptions(absl::Span<const std::string> arguments,
                                           LaunchOptions options = {});
// Only options: the words of a file (ReadConfigFile). Errors as above.
absl::Status ApplyOptions(absl::Span<const std::string> words, LaunchOptions* options);

std::string HelpText();
std::string VersionText();

}  // namespace rueda
