#include "controller/launcher/decide/options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace rueda {
namespace {

using Words = std::vector<std::string>;

LaunchOptions Parsed(const Words& arguments) {
  absl::StatusOr<LaunchOptions> options = ParseOptions(arguments);
  EXPECT_TRUE(options.ok()) << options.status().ToString();
  return options.ok() ? *options : LaunchOptions();
}

TEST(Options, HaveDefaults) {
  const LaunchOptions options = Parsed({"-np", "4", "prog"});
  EXPECT_EQ(options.ranks, 4);
  EXPECT_EQ(options.command, Words({"prog"}));
  EXPECT_TRUE(options.exports.empty());
  EXPECT_EQ(options.output_dir, "");
  EXPECT_EQ(options.bind, LaunchOptions::Bind::kNone);
  EXPECT_EQ(options.prefix, LaunchOptions::Prefix::kRank);
  EXPECT_EQ(options.grace_seconds, 5);
  EXPECT_FALSE(options.verbose);
}

TEST(Options, AreAllRead) {
  const LaunchOptions options = Parsed({"-np",
                                        "2",
                                        "-x",
                                        "A=1",
                                        "-x",
                                        "B",
                                        "-x",
                                        "C=",
                                        "-x",
                                        "D=x=y",
                                        "--output-dir",
                                        "out",
                                        "--bind-to",
                                        "core",
                                        "--prefix",
                                        "none",
                                        "--grace-seconds",
                                        "0.5",
                                        "--verbose",
                                        "prog"});
  ASSERT_EQ(options.exports.size(), 4u);
  EXPECT_EQ(options.exports[0].name, "A");
  EXPECT_EQ(options.exports[0].value, "1");
  EXPECT_EQ(options.exports[1].name, "B");
  EXPECT_EQ(options.exports[1].value, std::nullopt);
  EXPECT_EQ(options.exports[2].value, "");
  EXPECT_EQ(options.exports[3].name, "D");
  EXPECT_EQ(options.exports[3].value, "x=y");
  EXPECT_EQ(options.output_dir, "out");
  EXPECT_EQ(options.bind, LaunchOptions::Bind::kCore);
  EXPECT_EQ(options.prefix, LaunchOptions::Prefix::kNone);
  EXPECT_EQ(options.grace_seconds, 0.5);
  EXPECT_TRUE(options.verbose);
}

TEST(Options, HaveSeveralSpellings) {
  for (const Words& words :
       {Words{"-np", "3", "p"}, Words{"--np", "3", "p"}, Words{"-n", "3", "p"},
        Words{"--num-proc", "3", "p"}, Words{"--num-proc=3", "p"}, Words{"-np=3", "p"}}) {
    EXPECT_EQ(Parsed(words).ranks, 3) << words[0];
  }
}

TEST(Options, NameHostsMoreThanOnce) {
  EXPECT_EQ(Parsed({"-np", "7", "-H", "a:4", "--hosts=b:2,a", "p"}).hosts,
            (std::vector<HostSlots>{{"a", 5}, {"b", 2}}));
}

TEST(Options, NameHosts) {
  EXPECT_EQ(Parsed({"-np", "6", "-H", "a:4,b:2", "p"}).hosts,
            (std::vector<HostSlots>{{"a", 4}, {"b", 2}}));
  EXPECT_EQ(Parsed({"-np", "6", "--hostfile", "f", "p"}).hostfile, "f");
  EXPECT_TRUE(Parsed({"-np", "6", "p"}).hosts.empty());
}

TEST(Options, StandForSettings) {
  const LaunchOptions options = Parsed({"-np",
                                        "1",
                                        "--start-timeout",
                                        "5",
                                        "--fusion-threshold-mb",
                                        "0.5",
                                        "--timeline-filename",
                                        "t.json",
                                        "--stall-check-warning-time-seconds=3",
                                        "--stall-check-shutdown-time-seconds",
                                        "30",
                                        "--gloo-timeout-seconds",
                                        "7",
                                        "--network-interface",
                                        "eth0",
                                        "--log-level",
                                        "TRACE",
                                        "--allow-unauthenticated-data",
                                        "--allow-unauthenticated",
                                        "p"});
  EXPECT_EQ(options.settings, (Environment{{"RUEDA_START_TIMEOUT_S", "5"},
                                           {"RUEDA_FUSION_THRESHOLD", "524288"},
                                           {"RUEDA_TIMELINE", "t.json"},
                                           {"RUEDA_STALL_WARN_S", "3"},
                                           {"RUEDA_STALL_TIMEOUT_S", "30"},
                                           {"RUEDA_GLOO_TIMEOUT_S", "7"},
                                           {"RUEDA_NETWORK_INTERFACE", "eth0"},
                                           {"RUEDA_ALLOW_UNAUTHENTICATED", "1"},
                                           {"RUEDA_ALLOW_UNAUTHENTICATED_DATA", "1"},
                                           {"RUEDA_LOG_LEVEL", "debug"}}));
}

TEST(Options, OfTheProgramAreLeftAlone) {
  EXPECT_EQ(Parsed({"-np", "2", "prog", "-np", "7", "--verbose", "--", "-x"}).command,
            Words({"prog", "-np", "7", "--verbose", "--", "-x"}));
  EXPECT_EQ(Parsed({"-np", "2", "--", "--prog", "--help"}).command, Words({"--prog", "--help"}));
  EXPECT_EQ(Parsed({"-np", "2", "--", "prog", "--"}).command, Words({"prog", "--"}));
  EXPECT_EQ(Parsed({"-np", "2", "-"}).command, Words({"-"}));
  EXPECT_EQ(Parsed({"-np", "2", ""}).command, Words({""}));
}

TEST(Options, HelpAndVersionAskForNothingElse) {
  for (const char* word : {"--help", "-help", "-h"}) EXPECT_TRUE(Parsed({word}).help) << word;
  for (const char* word : {"--version", "-v"}) EXPECT_TRUE(Parsed({word}).version) << word;
  EXPECT_FALSE(Parsed({"-np", "1", "prog", "--help"}).help);
}

TEST(Options, AreRefusedWithTheReason) {
  const struct {
    Words arguments;
    std::string message;
  } kCases[] = {
      {{}, "which program? None is named after the options"},
      {{"-np", "2"}, "which program? None is named after the options"},
      {{"-np", "2", "--"}, "which program? None is named after the options"},
      {{"-np"}, "option -np needs a number of ranks"},
      {{"-np", "--verbose"}, "option -np needs a number of ranks"},
      {{"-np", "0", "p"}, "option -np 0: expected a number of ranks from 1 to 65536"},
      {{"-np", "65537", "p"}, "option -np 65537: expected a number of ranks from 1 to 65536"},
      {{"-np", "-3", "p"}, "option -np -3: expected a number of ranks from 1 to 65536"},
      {{"-np", "2x", "p"}, "option -np 2x: expected a number of ranks from 1 to 65536"},
      {{"-np", "99999999999", "p"},
       "option -np 99999999999: expected a number of ranks from 1 to 65536"},
      {{"--num-proc=", "p"}, "option --num-proc : expected a number of ranks from 1 to 65536"},
      {{"-np", "2", "-x", "=1", "p"}, "option -x =1: expected NAME or NAME=VALUE"},
      {{"-np", "2", "--bind-to", "socket", "p"}, "option --bind-to socket: expected core or none"},
      {{"-np", "2", "--prefix", "time", "p"}, "option --prefix time: expected rank or none"},
      {{"-np", "2", "--grace-seconds", "-1", "p"},
       "option --grace-seconds -1: expected a number of seconds from 0 to 86400"},
      {{"-np", "2", "--grace-seconds", "inf", "p"},
       "option --grace-seconds inf: expected a number of seconds from 0 to 86400"},
      {{"-np", "2", "--grace-seconds", "nan", "p"},
       "option --grace-seconds nan: expected a number of seconds from 0 to 86400"},
      {{"-np", "2", "--output-dir=", "p"}, "option --output-dir : expected a directory"},
      {{"-np", "2", "-p", "0", "p"}, "option -p 0: expected a port from 1 to 65535"},
      {{"-np", "2", "--ssh-identity-file=", "p"}, "option --ssh-identity-file : expected a file"},
      {{"-np", "2", "--remote-shell= ", "p"},
       "option --remote-shell  : expected a command that takes a host and a command line"},
      {{"--verbose=yes"}, "option --verbose takes no value, but was given 'yes'"},
      {{"--nump-roc", "2"}, "unknown option --nump-roc; did you mean --num-proc?"},
      {{"-npp", "2"}, "unknown option -npp; did you mean -np?"},
      {{"--output-dri", "x"}, "unknown option --output-dri; did you mean --output-dir?"},
      {{"--verbos"}, "unknown option --verbos; did you mean --verbose?"},
      {{"--hostfil", "x"}, "unknown option --hostfil; did you mean --hostfile?"},
      {{"--zzzzzzzz"}, "unknown option --zzzzzzzz"},
      {{"--nproc", "2"}, "option --nproc: use -np instead"},
      {{"--check-build", "extra"}, "--check-build stands alone, without extra"},
      {{"-q"}, "unknown option -q"},
      {{"-np", "2", "-H", "a:0", "p"},
       "option -H: 'a:0': expected a number of slots from 1 to 1024"},
      {{"-np", "2", "--hosts=-x", "p"},
       "option --hosts: '-x': a host's name does not begin with '-'"},
      {{"-np", "2", "-x", "A B=1", "p"}, "option -x A B=1: expected NAME or NAME=VALUE"},
      {{"-np", "2", "-H", "a:2", "--hostfile", "f", "p"},
       "-H and --hostfile: which of the two? Give one"},
      {{"--hostfile=", "p"}, "option --hostfile : expected a file of hosts"},
      {{"--start-timeout", "soon", "p"},
       "option --start-timeout soon: expected a number from 0.01 to 1e+06"},
      {{"--log-level", "loud", "p"},
       "option --log-level loud: expected one of debug, info, warning, error, off"},
      {{"--host-timeout", "1", "p"},
       "option --host-timeout 1: expected a number of seconds from 2 to 86400"},
      {{"--host-timeout=inf", "p"},
       "option --host-timeout inf: expected a number of seconds from 2 to 86400"},
      {{"--stop-after", "0", "p"},
       "option --stop-after 0: expected a number of seconds from 1 to 1e+07"},
      {{"--fusion-threshold-mb", "-1", "p"},
       "option --fusion-threshold-mb -1: expected a number of MiB from 0 to 1e+06"},
      {{"--fusion-threshold-mb", "nan", "p"},
       "option --fusion-threshold-mb nan: expected a number of MiB from 0 to 1e+06"},
      {{"--autotune"}, "option --autotune: not yet: there is no autotuner"},
      {{"--cycle-time-ms"}, "option --cycle-time-ms needs a number of milliseconds"},
  };
  for (const auto& each : kCases) {
    const absl::StatusOr<LaunchOptions> options = ParseOptions(each.arguments);
    EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument) << each.message;
    EXPECT_EQ(options.status().message(), each.message);
  }
}

TEST(ElasticOptions, HaveDefaults) {
  const LaunchOptions options = Parsed({"-np", "4", "prog"});
  EXPECT_FALSE(options.elastic);
  EXPECT_EQ(options.min_processes, 0);
  EXPECT_EQ(options.max_processes, 0);
  EXPECT_EQ(options.spares, 0);
  EXPECT_EQ(options.discovery_script, "");
  EXPECT_EQ(options.slots_per_host, 0);
  EXPECT_EQ(options.elastic_timeout_seconds, 600);
  EXPECT_EQ(options.regroup_timeout_seconds, 10);
  EXPECT_EQ(options.reset_limit, -1);
  EXPECT_EQ(options.cooldown_seconds_min, 1);
  EXPECT_EQ(options.cooldown_seconds_max, 60);
  EXPECT_FALSE(options.blacklist_hosts);
}

TEST(ElasticOptions, AreAllRead) {
  const LaunchOptions options = Parsed({"--min-np",
                                        "2",
                                        "--max-np=8",
                                        "--spares",
                                        "3",
                                        "--host-discovery-script",
                                        "./hosts.sh --all",
                                        "--slots",
                                        "4",
                                        "--elastic-timeout",
                                        "0.5",
                                        "--regroup-timeout",
                                        "7",
                                        "--reset-limit",
                                        "100",
                                        "--blacklist-cooldown-range",
                                        "5",
                                        "120",
                                        "--blacklist",
                                        "host",
                                        "prog",
                                        "30"});
  EXPECT_TRUE(options.elastic);
  EXPECT_EQ(options.min_processes, 2);
  EXPECT_EQ(options.max_processes, 8);
  EXPECT_EQ(options.spares, 3);
  EXPECT_EQ(options.discovery_script, "./hosts.sh --all");
  EXPECT_EQ(options.slots_per_host, 4);
  EXPECT_EQ(options.elastic_timeout_seconds, 0.5);
  EXPECT_EQ(options.regroup_timeout_seconds, 7);
  EXPECT_EQ(options.reset_limit, 100);
  EXPECT_EQ(options.cooldown_seconds_min, 5);
  EXPECT_EQ(options.cooldown_seconds_max, 120);
  EXPECT_TRUE(options.blacklist_hosts);
  EXPECT_EQ(options.ranks, 0);
  EXPECT_EQ(options.command, Words({"prog", "30"}));
}

TEST(ElasticOptions, HaveHorovodsSpellingsToo) {
  EXPECT_EQ(Parsed({"--min-num-proc", "3", "p"}).min_processes, 3);
  EXPECT_EQ(Parsed({"--max-num-proc", "3", "p"}).max_processes, 3);
  EXPECT_EQ(Parsed({"--spares", "0", "--slots-per-host", "3", "p"}).slots_per_host, 3);
}

TEST(ElasticOptions, MakeAJobElasticWhenTheySayWhoIsInIt) {
  for (const Words& words :
       {Words{"--min-np", "1", "p"}, Words{"--min-num-proc", "1", "p"}, Words{"--max-np", "1", "p"},
        Words{"--max-num-proc", "1", "p"}, Words{"--spares", "0", "p"},
        Words{"--host-discovery-script", "s", "p"}}) {
    EXPECT_TRUE(Parsed(words).elastic) << words[0];
  }
  // One of a file changes nothing of another job.
  LaunchOptions of_file;
  ASSERT_TRUE(ApplyOptions(Words({"--elastic-timeout=1", "--slots=2"}), &of_file).ok());
  const absl::StatusOr<LaunchOptions> both = ParseOptions(Words({"-np", "2", "p"}), of_file);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_FALSE(both->elastic);
}

TEST(ElasticOptions, ThatDoNotMakeAJobElasticAreRefusedWithoutOneThatDoes) {
  for (const Words& words :
       {Words{"--slots", "1", "p"}, Words{"--elastic-timeout", "1", "p"},
        Words{"--regroup-timeout", "1", "p"}, Words{"--reset-limit", "1", "p"},
        Words{"--blacklist-cooldown-range", "1", "2", "p"}, Words{"--blacklist", "slot", "p"}}) {
    EXPECT_EQ(ParseOptions(words).status().message(),
              "option " + words[0] + " is for elastic jobs: add --min-np N, or leave it out");
    Words more = {"--min-np", "1"};
    more.insert(more.end(), words.begin(), words.end());
    EXPECT_TRUE(Parsed(more).elastic) << words[0];
  }
}

TEST(ElasticOptions, TakeARangeInTwoWords) {
  for (const Words& words :
       {Words{"--blacklist-cooldown-range", "0", "2.5", "--spares", "0", "p"},
        Words{"--blacklist-cooldown-range=0", "2.5", "--spares", "0", "p"},
        Words{"--blacklist-cooldown-range=0 2.5", "--spares", "0", "p"},
        Words{"-min-np", "1", "-blacklist-cooldown-range", "0", "2.5", "--", "p"}}) {
    const LaunchOptions options = Parsed(words);
    EXPECT_EQ(options.cooldown_seconds_min, 0) << words[0];
    EXPECT_EQ(options.cooldown_seconds_max, 2.5) << words[0];
    EXPECT_EQ(options.command, Words({"p"})) << words[0];
  }
  LaunchOptions of_file;
  ASSERT_TRUE(ApplyOptions(Words({"--blacklist-cooldown-range=3 3"}), &of_file).ok());
  EXPECT_EQ(of_file.cooldown_seconds_min, 3);
  EXPECT_EQ(of_file.cooldown_seconds_max, 3);
}

TEST(ElasticOptions, MaySayThatThereIsNothing) {
  EXPECT_EQ(Parsed({"--spares", "0", "p"}).spares, 0);
  EXPECT_EQ(Parsed({"--spares", "0", "--reset-limit", "0", "p"}).reset_limit, 0);
  EXPECT_EQ(Parsed({"--spares", "0", "--elastic-timeout", "0", "p"}).elastic_timeout_seconds, 0);
  EXPECT_EQ(Parsed({"--min-np", "2", "--max-np", "2", "p"}).max_processes, 2);
  LaunchOptions host;
  host.blacklist_hosts = true;  // a file's
  EXPECT_FALSE(
      ParseOptions(Words({"--spares", "0", "--blacklist", "slot", "p"}), host)->blacklist_hosts);
}

TEST(ElasticOptions, AreRefusedWithTheReason) {
  const std::string script =
      "--host-discovery-script says which hosts there are: leave out -H and "
      "--hostfile";
  const std::string count = ": expected a whole number from ";
  const std::string seconds = ": expected a number of seconds from ";
  const std::string range = "option --blacklist-cooldown-range ";
  const struct {
    Words arguments;
    std::string message;
  } kCases[] = {
      {{"--min-np", "0", "p"}, "option --min-np 0" + count + "1 to 8192"},
      {{"--min-np", "8193", "p"}, "option --min-np 8193" + count + "1 to 8192"},
      {{"--min-num-proc", "two", "p"}, "option --min-num-proc two" + count + "1 to 8192"},
      {{"--max-np", "0", "p"}, "option --max-np 0" + count + "1 to 8192"},
      {{"--max-num-proc=1.5", "p"}, "option --max-num-proc 1.5" + count + "1 to 8192"},
      {{"--spares", "-1", "p"}, "option --spares -1" + count + "0 to 8192"},
      {{"--slots", "0", "p"}, "option --slots 0" + count + "1 to 1024"},
      {{"--slots-per-host", "1025", "p"}, "option --slots-per-host 1025" + count + "1 to 1024"},
      {{"--reset-limit", "-1", "p"}, "option --reset-limit -1" + count + "0 to 1000000000"},
      {{"--elastic-timeout", "-1", "p"}, "option --elastic-timeout -1" + seconds + "0 to 86400"},
      {{"--regroup-timeout", "nan", "p"}, "option --regroup-timeout nan" + seconds + "0 to 86400"},
      {{"--blacklist", "rank", "p"}, "option --blacklist rank: expected slot or host"},
      {{"--host-discovery-script=", "p"},
       "option --host-discovery-script : expected a program that prints hosts"},
      {{"--blacklist-cooldown-range=5", "--verbose", "p"},
       range + "5: expected two numbers of seconds"},
      {{"--blacklist-cooldown-range"},
       "option --blacklist-cooldown-range needs two numbers of seconds"},
      {{"--blacklist-cooldown-range", "soon", "5", "p"}, range + "soon" + seconds + "0 to 86400"},
      {{"--blacklist-cooldown-range", "5", "p"}, range + "p" + seconds + "5 to 86400"},
      {{"--blacklist-cooldown-range", "5", "4", "p"}, range + "4" + seconds + "5 to 86400"},
      {{"--min-np", "3", "--max-np", "2", "p"}, "--min-np 3 is more than --max-np 2"},
      {{"--max-np", "2", "--min-np", "3", "p"}, "--min-np 3 is more than --max-np 2"},
      {{"-H", "a:2", "--host-discovery-script", "s", "p"}, script},
      {{"--host-discovery-script", "s", "--hostfile", "f", "p"}, script},
      {{"--min-np", "2"}, "which program? None is named after the options"},
      {{"--min-mp", "2", "p"}, "unknown option --min-mp; did you mean --min-np?"},
  };
  for (const auto& each : kCases) {
    const absl::StatusOr<LaunchOptions> options = ParseOptions(each.arguments);
    EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument) << each.message;
    EXPECT_EQ(options.status().message(), each.message);
  }
}

TEST(Options, OfHorovodrunThatOnlyTuneChangeNothing) {
  const absl::StatusOr<LaunchOptions> options = ParseOptions(
      Words({"--num-proc", "2", "--gloo", "--disable-cache", "--no-stall-check", "--cycle-time-ms",
             "3.5", "--cache-capacity=0", "--no-hierarchical-allreduce", "--hierarchical-allgather",
             "--output-filename", "o", "--network-interfaces", "eth0,lo", "prog"}));
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->ranks, 2);
  EXPECT_EQ(options->output_dir, "o");
  EXPECT_EQ(options->settings, (Environment{{"RUEDA_NETWORK_INTERFACE", "eth0,lo"}}));
  EXPECT_EQ(options->command, Words({"prog"}));
}

TEST(Options, OfTheCommandLineGoBeforeThoseOfAFile) {
  LaunchOptions of_file;
  ASSERT_TRUE(ApplyOptions(Words({"--np=4", "--output-dir=o", "-H=a:4", "--x=A"}), &of_file).ok());
  absl::StatusOr<LaunchOptions> options =
      ParseOptions(Words({"-np", "2", "-x", "B", "prog"}), of_file);
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->ranks, 2);
  EXPECT_EQ(options->output_dir, "o");
  EXPECT_EQ(options->exports.size(), 2u);
  EXPECT_EQ(options->hosts.size(), 1u);
  options = ParseOptions(Words({"--hostfile", "f", "prog"}), of_file);
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->hostfile, "f");
  EXPECT_TRUE(options->hosts.empty());
  EXPECT_FALSE(ApplyOptions(Words({"--no-such=1"}), &of_file).ok());
}

TEST(Options, AreAllInTheHelp) {
  const std::string help = HelpText();
  for (const char* option : {"-np",
                             "-H",
                             "--hostfile",
                             "-x",
                             "--output-dir",
                             "--prefix",
                             "--bind-to",
                             "--grace-seconds",
                             "--start-timeout",
                             "--stop-after",
                             "--fusion-threshold-mb",
                             "--timeline-filename",
                             "--log-level",
                             "--stall-check-warning-time-seconds",
                             "--stall-check-shutdown-time-seconds",
                             "--network-interface",
                             "--gloo-timeout-seconds",
                             "--ssh-port",
                             "--ssh-identity-file",
                             "--remote-shell",
                             "--config-file",
                             "--allow-unauthenticated-data",
                             "--allow-unauthenticated ",
                             "--check-build",
                             "--min-np",
                             "--min-num-proc",
                             "--max-np",
                             "--spares",
                             "--host-discovery-script",
                             "--slots ",
                             "--slots-per-host",
                             "--elastic-timeout",
                             "--regroup-timeout",
                             "--reset-limit",
                             "--blacklist-cooldown-range",
                             "--blacklist slot|host",
                             "--verbose",
                             "--help",
                             "--version"}) {
    EXPECT_NE(help.find(option), std::string::npos) << option;
  }
  size_t begin = 0;
  for (size_t end; (end = help.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EXPECT_LE(end - begin, 100u) << help.substr(begin, end - begin);
  }
  EXPECT_NE(VersionText().find("ruedarun "), std::string::npos);
}

TEST(ElasticOptions, TakeARangeInOneWordBeforeTheProgram) {
  EXPECT_EQ(
      Parsed({"--spares", "0", "--blacklist-cooldown-range=5 30", "prog"}).cooldown_seconds_max,
      30);
}

}  // namespace
}  // namespace rueda
