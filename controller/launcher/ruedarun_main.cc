// ruedarun: starts a job on this host. docs/launcher.md tells what it does.
//
// Two processes: this one (front.h) talks to the user; the one it forks (spawner.h) owns the ranks.
// Either cleans up if the other dies.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "controller/launcher/children.h"
#include "controller/launcher/front.h"
#include "controller/launcher/job.h"
#include "controller/launcher/options.h"
#include "controller/launcher/output.h"
#include "controller/launcher/placement.h"
#include "controller/launcher/spawner.h"
#include "controller/rendezvous/host_identity.h"
#include "controller/rendezvous/verdict_board.h"

namespace rueda {
namespace {

constexpr int kCannotStart = 1;
constexpr int kUsage = 2;
constexpr int kNotExecutable = 126;
constexpr int kNotFound = 127;

int Fail(int exit_code, absl::string_view message) {
  const std::string line = absl::StrCat("ruedarun: ", message, "\n");
  fputs(line.c_str(), stderr);
  return exit_code;
}

// What the process was started with that it changes for itself, and not for the ranks.
struct Inheritance {
  rlimit open_files = {};
  bool ignores_hangup = false;
  sigset_t signals = {};  // to take
};

bool IsIgnored(int signal) {
  struct sigaction action;
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// Signals from here on wait until somebody reads them. Those that a shell made us ignore (nohup; in
// the background of a script) stay ignored.
Inheritance TakeOver() {
  Inheritance inheritance;
  inheritance.ignores_hangup = IsIgnored(SIGHUP);
  sigemptyset(&inheritance.signals);
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2, SIGCONT}) {
    sigaddset(&inheritance.signals, signal);
  }
  for (const int signal : {SIGINT, SIGHUP, SIGTSTP}) {
    if (!IsIgnored(signal)) sigaddset(&inheritance.signals, signal);
  }
  for (const int each : {SIGTERM, SIGUSR1, SIGUSR2, SIGCONT, SIGCHLD}) signal(each, SIG_DFL);
  signal(SIGPIPE, SIG_IGN);
  sigset_t blocked = inheritance.signals;
  sigaddset(&blocked, SIGCHLD);
  sigprocmask(SIG_SETMASK, &blocked, nullptr);

  getrlimit(RLIMIT_NOFILE, &inheritance.open_files);
  rlimit all = inheritance.open_files;
  all.rlim_cur = all.rlim_max;  // two pipes for each rank
  setrlimit(RLIMIT_NOFILE, &all);
  return inheritance;
}

// Everything a job has before its first process.
struct Job {
  JobFacts facts;
  UniqueFd secret;
  std::unique_ptr<VerdictBoard> board;
};

absl::StatusOr<Job> MakeJob(const LaunchOptions& options) {
  Job job;
  RUEDA_ASSIGN_OR_RETURN(job.facts.id, NewJobId());
  RUEDA_ASSIGN_OR_RETURN(job.facts.master_port, FreePort());
  RUEDA_ASSIGN_OR_RETURN(job.secret, NewSecret());
  RUEDA_ASSIGN_OR_RETURN(job.board, VerdictBoard::Create(options.ranks));
  job.facts.secret_fd = job.secret.get();
  job.facts.agent_fd = job.board->fd();
  return job;
}

// Where the ranks are to run is this host.
absl::Status CheckHosts(const LaunchOptions& options) {
  std::vector<HostSlots> hosts = options.hosts;
  if (!options.hostfile.empty()) {
    RUEDA_ASSIGN_OR_RETURN(const std::string text, ReadText(options.hostfile));
    absl::StatusOr<std::vector<HostSlots>> read = ParseHostfile(text);
    if (!read.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.hostfile, ": ", read.status().message()));
    }
    hosts = *std::move(read);
  }
  if (hosts.empty()) return absl::OkStatus();
  RUEDA_ASSIGN_OR_RETURN(hosts, FillHosts(hosts, options.ranks));
  for (const HostSlots& host : hosts) {
    RUEDA_ASSIGN_OR_RETURN(const bool here, IsThisHost(host.name));
    if (!here) {
      return absl::InvalidArgumentError(
          absl::StrCat("host ", host.name,
                       ": not yet: this version starts ranks on this host only, ", HostName()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RankStreams>> MakeStreams(const LaunchOptions& options, Output* output) {
  RUEDA_ASSIGN_OR_RETURN(std::vector<RankStreams> streams, OpenInputs(options.ranks, STDIN_FILENO));
  if (options.output_dir.empty()) {
    RUEDA_RETURN_IF_ERROR(output->OpenPipes(options.prefix, &streams));
  } else {
    RUEDA_RETURN_IF_ERROR(OpenOutputFiles(options.output_dir, &streams));
  }
  return streams;
}

// The child's side of the fork.
[[noreturn]] void BeSupervisor(SpawnRequest request, Channel channel) {
  setpgid(0, 0);  // the terminal's signals are for the launcher
  prctl(PR_SET_NAME, "ruedarun-agent");
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  const absl::Status status = Supervise(std::move(request), std::move(channel));
  if (!status.ok()) Fail(kCannotStart, status.message());
  _exit(status.ok() ? 0 : kCannotStart);
}

int Launch(const LaunchOptions& options, const HostFacts& host, const Inheritance& inheritance) {
  absl::StatusOr<Job> job = MakeJob(options);
  if (!job.ok()) return Fail(kCannotStart, job.status().message());
  absl::StatusOr<std::vector<RankPlan>> plans = PlaceRanks(options, host, job->facts);
  if (!plans.ok()) return Fail(kUsage, plans.status().message());
  const Environment& environment = plans->front().environment;
  const auto path = environment.find("PATH");
  const absl::StatusOr<std::string> program =
      FindProgram(options.command.front(),
                  path == environment.end() ? "/usr/local/bin:/usr/bin:/bin" : path->second);
  if (!program.ok()) {
    return Fail(absl::IsNotFound(program.status()) ? kNotFound : kNotExecutable,
                program.status().message());
  }
  Output output(STDOUT_FILENO, STDERR_FILENO);
  absl::StatusOr<std::vector<RankStreams>> streams = MakeStreams(options, &output);
  if (!streams.ok()) return Fail(kCannotStart, streams.status().message());
  absl::StatusOr<std::pair<Channel, Channel>> channels = Channel::CreatePair();
  if (!channels.ok()) return Fail(kCannotStart, channels.status().message());
  UniqueFd signal_fd(signalfd(-1, &inheritance.signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signal_fd.valid()) {
    return Fail(kCannotStart, ErrnoStatus(errno, "making a signalfd").message());
  }

  FrontOptions front;
  front.program = *program;
  front.host = HostName();
  front.ranks = options.ranks;
  front.verbose = options.verbose;
  front.grace = static_cast<Nanos>(options.grace_seconds * kSecond);
  front.other_children = ChildrenOfThis();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  fflush(nullptr);
  const pid_t pid = fork();
  if (pid < 0) return Fail(kCannotStart, ErrnoStatus(errno, "can't fork").message());
  if (pid == 0) {
    output.ClosePipes();
    channels->first.Close();
    BeSupervisor(
        {*program, options.command, *std::move(plans), *std::move(streams), job->facts.secret_fd,
         job->facts.agent_fd, front.grace, inheritance.open_files, inheritance.ignores_hangup},
        std::move(channels->second));
  }
  UniqueFd pidfd = OpenPidfd(pid);
  if (!pidfd.valid()) {
    const absl::Status status = ErrnoStatus(errno, "can't watch the supervisor process");
    kill(pid, SIGKILL);
    return Fail(kCannotStart, status.message());
  }
  // The supervisor and the ranks have these; here they would only keep pipes open.
  channels->second.Close();
  streams->clear();
  job->secret.reset();
  job->board.reset();
  if (options.verbose) {
    output.Say(absl::StrCat("ruedarun: job ", job->facts.id, ": ", options.ranks, " ranks of ",
                            *program, " on ", front.host, ", ", host.usable_cores,
                            " usable cores\n"));
  }
  return Front(std::move(front), std::move(channels->first), pid, std::move(pidfd),
               std::move(signal_fd), &output)
      .Run();
}

int Main(int argc, char** argv) {
  OpenStandardFds();
  absl::StatusOr<LaunchOptions> options =
      ParseOptions(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
  if (!options.ok()) {
    return Fail(kUsage, absl::StrCat(options.status().message(), "\nTry ruedarun --help"));
  }
  if (options->help || options->version) {
    fputs((options->help ? HelpText() : VersionText()).c_str(), stdout);
    return 0;
  }
  if (!options->output_dir.empty()) {
    std::error_code error;  // a rank may change its directory
    const std::filesystem::path path = std::filesystem::absolute(options->output_dir, error);
    if (error) return Fail(kCannotStart, error.message());
    options->output_dir = path.string();
  }
  // While signals still end this process: files and name servers may let it wait.
  if (const absl::Status status = CheckHosts(*options); !status.ok()) {
    return Fail(kUsage, status.message());
  }
  const HostFacts host = LookAtHost();
  const Inheritance inheritance = TakeOver();
  return Launch(*options, host, inheritance);
}

}  // namespace
}  // namespace rueda

int main(int argc, char** argv) {
  return rueda::Main(argc, argv);
}
