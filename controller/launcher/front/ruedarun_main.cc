// ruedarun: starts a job. docs/guides/launcher.md tells what it does.
//
// On this host alone two processes do it: this one (front.h) talks to the user; the one it forks
// (host/spawner.h) owns the ranks. Either cleans up if the other dies. On several hosts each has
// such a pair behind an agent (agent/agent.h), and this one talks to them all.
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "controller/bus/socket.h"
#include "controller/launcher/agent/agent.h"
#include "controller/launcher/decide/config_file.h"
#include "controller/launcher/decide/options.h"
#include "controller/launcher/decide/rank_plan.h"
#include "controller/launcher/front/check_build.h"
#include "controller/launcher/front/elastic_front.h"
#include "controller/launcher/front/front.h"
#include "controller/launcher/front/host_discovery.h"
#include "controller/launcher/front/job_hosts.h"
#include "controller/launcher/front/output.h"
#include "controller/launcher/front/start_agents.h"
#include "controller/launcher/host/inheritance.h"
#include "controller/launcher/host/job.h"
#include "controller/launcher/host/local_ranks.h"
#include "controller/rendezvous/host_identity.h"
#include "controller/rendezvous/network.h"
#include "controller/rendezvous/secret.h"

namespace rueda {
namespace {

int Fail(int exit_code, absl::string_view message) {
  const std::string line = absl::StrCat("ruedarun: ", message, "\n");
  fputs(line.c_str(), stderr);
  return exit_code;
}

// Empty: it can't be found.
std::string OwnPath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

absl::StatusOr<HostJob> MakeJob(const LaunchOptions& options) {
  RUEDA_ASSIGN_OR_RETURN(const int port, FreePort());
  RUEDA_ASSIGN_OR_RETURN(HostJob job, MakeHostJob(NewJobId(), NewSecret().bytes(), options.ranks));
  job.facts.master_port = port;
  return job;
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

FrontOptions MakeFrontOptions(const LaunchOptions& options, const std::string& program) {
  return {program,         options.ranks,          options.verbose,
          options.grace(), options.host_timeout(), options.stop_after()};
}

int LaunchHere(const LaunchOptions& options, const HostFacts& host, Inheritance inheritance) {
  const JobHost here = {HostName(), true, {options.ranks, 0, options.ranks}};
  absl::StatusOr<HostJob> job = MakeJob(options);
  if (!job.ok()) return Fail(kCannotStart, job.status().message());
  job->facts.host_name = here.name;
  absl::StatusOr<std::vector<RankPlan>> plans = PlaceRanks(options, host, job->facts, here.share);
  if (!plans.ok()) return Fail(kUsage, plans.status().message());
  const absl::StatusOr<std::string> program =
      FindProgram(options.command.front(), plans->front().environment);
  if (!program.ok()) {
    return Fail(absl::IsNotFound(program.status()) ? kNotFound : kNotExecutable,
                program.status().message());
  }
  Output output(STDOUT_FILENO, STDERR_FILENO);
  absl::StatusOr<std::vector<RankStreams>> streams = MakeStreams(options, &output);
  if (!streams.ok()) return Fail(kCannotStart, streams.status().message());

  SpawnArgs args = MakeSpawnArgs(options, job->facts, inheritance);
  args.program = *program;
  args.plans = *std::move(plans);
  args.streams = *std::move(streams);
  absl::StatusOr<std::unique_ptr<LocalRanks>> ranks =
      LocalRanks::Start(std::move(args), [&] { output.ClosePipes(); });
  if (!ranks.ok()) return Fail(kCannotStart, ranks.status().message());
  // The supervisor and the ranks have these; here they would only keep pipes open.
  streams->clear();
  job->secret.reset();
  job->board.reset();
  if (options.verbose) {
    output.Say(absl::StrCat("ruedarun: job ", job->facts.id, ": ", options.ranks, " ranks of ",
                            *program, " on ", here.name, ", ", host.usable_cores,
                            " usable cores\n"));
  }
  std::vector<FrontHost> hosts(1);
  hosts[0] = {here, *std::move(ranks)};
  return Front(MakeFrontOptions(options, *program), std::move(hosts),
               std::move(inheritance.signals), &output)
      .Run();
}

// What is the same for the agents of all hosts.
absl::StatusOr<launch::Order> MakeOrder(const LaunchOptions& options, const HostFacts& host) {
  launch::Order order;
  order.set_job_id(NewJobId());
  order.set_secret(std::string(NewSecret().bytes()));
  for (const std::string& word : options.command) order.add_command(word);
  std::error_code error;
  order.set_directory(std::filesystem::current_path(error).string());
  if (error) return absl::FailedPreconditionError("the current directory can't be found");
  const auto add = [](const Environment& environment, auto* variables) {
    for (const auto& [name, value] : environment) {
      launch::Variable* variable = variables->Add();
      variable->set_name(name);
      variable->set_value(value);
    }
  };
  add(TravellingEnvironment(host.environment), order.mutable_environment());
  RUEDA_ASSIGN_OR_RETURN(const Environment wanted, WantedVariables(options, host.environment));
  add(wanted, order.mutable_wanted());
  order.set_bind_to_core(options.bind == LaunchOptions::Bind::kCore);
  order.set_grace_seconds(options.grace_seconds);
  order.set_host_timeout_seconds(options.host_timeout_seconds);
  order.set_recorder_dir(options.output_dir);
  return order;
}

// The settings that ruedarun itself goes by are the ranks'.
absl::StatusOr<Config> OwnSettings(const LaunchOptions& options, const HostFacts& host) {
  RUEDA_ASSIGN_OR_RETURN(const Environment wanted, WantedVariables(options, host.environment));
  Environment environment;
  for (const char* name : {"RUEDA_START_TIMEOUT_S", "RUEDA_NETWORK_INTERFACE"}) {
    for (const Environment* each : {&wanted, &host.environment}) {
      const auto found = each->find(name);
      if (found != each->end()) environment.insert(*found);  // what is there already stays
    }
  }
  Config config;
  RUEDA_RETURN_IF_ERROR(ReadEnvironment(environment, &config));
  return config;
}

Starter StarterOf(const LaunchOptions& options, Starter::Kind kind, const Config& config) {
  Starter starter;
  starter.kind = kind;
  starter.shell = options.remote_shell;
  starter.ssh_port = options.ssh_port;
  starter.ssh_identity_file = options.ssh_identity_file;
  starter.connect_seconds = static_cast<int>(config.start_timeout_s);
  return starter;
}

// Where agents on other hosts connect to, so that they notice when this one dies. Nobody accepts:
// the kernel does all that it is for.
absl::StatusOr<UniqueFd> ListenForLifelines(const Config& config, const JobHosts& where) {
  absl::StatusOr<Interface> interface = absl::NotFoundError("no interface was asked for");
  if (!config.network_interface.empty()) interface = ChooseInterface(config.network_interface);
  for (const JobHost& host : where.hosts) {
    if (!host.is_here && !interface.ok()) interface = InterfaceTowards(host.name);
  }
  if (!interface.ok()) interface = ChooseInterface("");
  if (!interface.ok()) return interface.status();
  return ListenTcp(interface->address);
}

absl::Status ExpectFeeds(const LaunchOptions& options, Output* output) {
  if (options.output_dir.empty()) {
    output->ExpectFeeds(options.prefix, options.ranks);
    return absl::OkStatus();
  }
  std::vector<RankStreams> files(static_cast<size_t>(options.ranks));
  RUEDA_RETURN_IF_ERROR(OpenOutputFiles(options.output_dir, &files));
  output->ExpectFeeds(std::move(files));
  return absl::OkStatus();
}

int LaunchOnHosts(const LaunchOptions& options, const HostFacts& host, const JobHosts& where,
                  Inheritance inheritance) {
  absl::StatusOr<launch::Order> order = MakeOrder(options, host);
  if (!order.ok()) return Fail(kUsage, order.status().message());
  const absl::StatusOr<Config> config = OwnSettings(options, host);
  if (!config.ok()) return Fail(kUsage, config.status().message());
  const std::string self = OwnPath();
  if (self.empty()) return Fail(kCannotStart, "can't find the path of ruedarun (/proc/self/exe)");
  Output output(STDOUT_FILENO, STDERR_FILENO);
  if (const absl::Status status = ExpectFeeds(options, &output); !status.ok()) {
    return Fail(kCannotStart, status.message());
  }
  const absl::StatusOr<UniqueFd> lifelines = ListenForLifelines(*config, where);
  const absl::StatusOr<std::string> address =
      lifelines.ok() ? TcpAddressOf(*lifelines) : lifelines.status();
  if (address.ok()) {
    order->set_lifeline(*address);
  } else {
    output.Say(absl::StrCat("ruedarun: ", address.status().message(),
                            ": if this host dies without a word, ranks on others stay\n"));
  }
  StartedAgents agents =
      StartAgents({where.hosts, StarterOf(options, where.starter, *config), self, *order,
                   config->network_interface, config->start_timeout_s, inheritance.signals.get()},
                  &output);
  for (const std::string& failure : agents.failures) Fail(0, failure);
  if (agents.exit_code != 0) return agents.exit_code;

  std::vector<FrontHost> hosts;
  for (size_t i = 0; i < where.hosts.size(); ++i) {
    const JobHost& place = where.hosts[i];
    hosts.push_back({place, std::move(agents.hosts[i])});
    if (options.verbose) {
      output.Say(absl::StrCat("ruedarun: host ", place.name, ": ", place.share.ranks,
                              place.share.ranks == 1 ? " rank" : " ranks", " from ",
                              place.share.first, " on\n"));
    }
  }
  return Front(MakeFrontOptions(options, options.command.front()), std::move(hosts),
               std::move(inheritance.signals), &output)
      .Run();
}

// Where the processes of an elastic job may run: what a script or a file says, and goes on saying,
// or else the hosts of the options, or this one.
absl::Status FindElasticHosts(const HostFacts& host, LaunchOptions* options, ElasticArgs* args,
                              std::unique_ptr<HostDiscovery>* discovery, Starter::Kind* starter) {
  const bool named = !options->hosts.empty() || !options->hostfile.empty();
  std::string command = options->discovery_script;
  if (!options->hostfile.empty()) {
    RUEDA_RETURN_IF_ERROR(ReadText(options->hostfile).status());
    command = absl::StrCat("cat -- ", ShellQuoted(options->hostfile));
  }
  if (!command.empty()) {
    const bool is_file = options->discovery_script.empty();
    *discovery = std::make_unique<HostDiscovery>(
        command, is_file && options->slots_per_host == 0 ? 1 : options->slots_per_host);
    RUEDA_ASSIGN_OR_RETURN(args->hosts, (*discovery)->AskNow());
  } else if (named) {
    args->hosts = options->hosts;
  } else {
    LaunchOptions alone = *options;
    const int wanted = std::max({options->ranks, options->max_processes, options->min_processes});
    absl::StatusOr<JobHosts> found = FindJobHosts(host.environment, &alone);
    // No batch job, and no -np: then this host.
    if (!found.ok() && options->ranks == 0 && wanted > 0) found = JobHosts();
    RUEDA_RETURN_IF_ERROR(found.status());
    *starter = found->starter;
    for (const JobHost& each : found->hosts) args->hosts.push_back({each.name, each.share.ranks});
    if (args->hosts.empty()) args->hosts.push_back({"localhost", wanted + options->spares});
  }
  int slots = 0;
  for (const HostSlots& each : args->hosts) slots += each.slots;
  if (options->ranks == 0) options->ranks = slots;
  int min = options->min_processes > 0 ? options->min_processes : options->ranks;
  if (options->max_processes > 0) min = std::min(min, options->max_processes);
  if (*discovery == nullptr && slots < min) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the hosts have ", slots, slots == 1 ? " slot" : " slots", ", and the job needs ", min,
        " processes: name more hosts or slots, or lower --min-np"));
  }
  return absl::OkStatus();
}

int LaunchElastic(LaunchOptions options, const HostFacts& host) {
  if (!options.output_dir.empty()) {
    const absl::Status made = MakeOutputDirectory(options.output_dir);
    if (!made.ok()) return Fail(kCannotStart, made.message());
  }
  ElasticArgs args;
  std::unique_ptr<HostDiscovery> discovery;
  Starter::Kind starter = Starter::Kind::kSsh;
  const absl::Status found = FindElasticHosts(host, &options, &args, &discovery, &starter);
  if (!found.ok()) return Fail(kUsage, found.message());
  if (!options.remote_shell.empty()) starter = Starter::Kind::kShell;
  absl::StatusOr<Inheritance> inheritance = TakeOver();
  if (!inheritance.ok()) return Fail(kCannotStart, inheritance.status().message());
  absl::StatusOr<launch::Order> order = MakeOrder(options, host);
  if (!order.ok()) return Fail(kUsage, order.status().message());
  const absl::StatusOr<Config> config = OwnSettings(options, host);
  if (!config.ok()) return Fail(kUsage, config.status().message());
  args.agent = OwnPath();
  if (args.agent.empty()) {
    return Fail(kCannotStart, "can't find the path of ruedarun (/proc/self/exe)");
  }
  Output output(STDOUT_FILENO, STDERR_FILENO);
  JobHosts places;
  for (const HostSlots& each : args.hosts) {
    places.hosts.push_back({each.name, IsThisHost(each.name).value_or(false), {}});
  }
  const absl::StatusOr<UniqueFd> lifelines = ListenForLifelines(*config, places);
  const absl::StatusOr<std::string> address =
      lifelines.ok() ? TcpAddressOf(*lifelines) : lifelines.status();
  if (address.ok()) order->set_lifeline(*address);
  args.order = *std::move(order);
  args.network_interface = config->network_interface;
  args.start_timeout = static_cast<Nanos>(config->start_timeout_s * static_cast<double>(kSecond));
  args.starter = [starter = StarterOf(options, starter, *config), agent = args.agent](
                     const std::string& name, bool is_here) {
    const bool directly = is_here && starter.kind != Starter::Kind::kSrun;
    return directly ? std::vector<std::string>{agent, "--agent"}
                    : StarterWords(starter, name, agent);
  };
  args.options = std::move(options);
  return ElasticFront(std::move(args), std::move(discovery), std::move(inheritance->signals),
                      &output)
      .Run();
}

absl::Status ApplyFile(const std::string& path, LaunchOptions* options) {
  RUEDA_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  const absl::StatusOr<std::vector<std::string>> words = ReadConfigFile(text);
  absl::Status status = words.status();
  if (status.ok()) status = ApplyOptions(*words, options);
  return StatusAt(path, status);
}

// The command line goes before the file that it names.
absl::StatusOr<LaunchOptions> ReadOptions(const std::vector<std::string>& arguments) {
  absl::StatusOr<LaunchOptions> options = ParseOptions(arguments);
  if (!options.ok() || options->config_file.empty()) return options;
  LaunchOptions of_file;
  RUEDA_RETURN_IF_ERROR(ApplyFile(options->config_file, &of_file));
  return ParseOptions(arguments, std::move(of_file));
}

int Main(int argc, char** argv) {
  OpenStandardFds();
  absl::StatusOr<LaunchOptions> options =
      ReadOptions(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
  if (!options.ok()) {
    return Fail(kUsage, absl::StrCat(options.status().message(), "\nTry ruedarun --help"));
  }
  if (options->agent) return RunAgent();
  if (options->check_build) {
    fputs(CheckBuildText(OwnPath()).c_str(), stdout);
    return 0;
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
  const HostFacts host = LookAtHost();
  if (options->elastic) return LaunchElastic(*std::move(options), host);
  const absl::StatusOr<JobHosts> where = FindJobHosts(host.environment, &*options);
  if (!where.ok()) return Fail(kUsage, where.status().message());
  absl::StatusOr<Inheritance> inheritance = TakeOver();
  if (!inheritance.ok()) return Fail(kCannotStart, inheritance.status().message());
  if (!where->all_here()) return LaunchOnHosts(*options, host, *where, *std::move(inheritance));
  return LaunchHere(*options, host, *std::move(inheritance));
}

}  // namespace
}  // namespace rueda

int main(int argc, char** argv) {
  return rueda::Main(argc, argv);
}
