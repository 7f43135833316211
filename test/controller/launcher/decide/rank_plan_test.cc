#include "controller/launcher/decide/rank_plan.h"

#include <gtest/gtest.h>

namespace rueda {
namespace {

LaunchOptions Options(int ranks) {
  LaunchOptions options;
  options.ranks = ranks;
  options.command = {"prog"};
  return options;
}

HostFacts Host(Environment environment, std::vector<int> cores = {0, 1, 2, 3}) {
  HostFacts host;
  host.environment = std::move(environment);
  host.usable_cores = static_cast<int>(cores.size());
  host.cores = std::move(cores);
  return host;
}

const JobFacts kJob = {.id = "0123abcd",
                       .secret_fd = 5,
                       .agent_fd = 6,
                       .agent_bell_fd = 7,
                       .master_port = 40'001,
                       .host_name = "here"};

std::vector<RankPlan> Placed(const LaunchOptions& options, const HostFacts& host) {
  absl::StatusOr<std::vector<RankPlan>> plans =
      PlaceRanks(options, host, kJob, {options.ranks, 0, options.ranks});
  EXPECT_TRUE(plans.ok()) << plans.status().ToString();
  return plans.ok() ? *plans : std::vector<RankPlan>(static_cast<size_t>(options.ranks));
}

std::string Refusal(const LaunchOptions& options, const HostFacts& host) {
  const absl::StatusOr<std::vector<RankPlan>> plans =
      PlaceRanks(options, host, kJob, {options.ranks, 0, options.ranks});
  EXPECT_EQ(plans.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(plans.status().message());
}

TEST(Placement, GivesEachRankItsWholeEnvironment) {
  const std::vector<RankPlan> plans = Placed(Options(2), Host({{"PATH", "/bin"}, {"EMPTY", ""}}));
  ASSERT_EQ(plans.size(), 2u);
  const Environment expected = {
      {"PATH", "/bin"},
      {"EMPTY", ""},
      {"RUEDA_RANK", "1"},
      {"RUEDA_SIZE", "2"},
      {"RUEDA_LOCAL_RANK", "1"},
      {"RUEDA_LOCAL_SIZE", "2"},
      {"RUEDA_JOB_ID", "0123abcd"},
      {"RUEDA_SECRET_FD", "5"},
      {"RUEDA_AGENT_FD", "6"},
      {"RUEDA_AGENT_BELL_FD", "7"},
      {"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"NODE_RANK", "0"},
      {"GROUP_RANK", "0"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "40001"},
      {"HOROVOD_RANK", "1"},
      {"HOROVOD_SIZE", "2"},
      {"HOROVOD_LOCAL_RANK", "1"},
      {"HOROVOD_LOCAL_SIZE", "2"},
      {"HOROVOD_CROSS_RANK", "0"},
      {"HOROVOD_CROSS_SIZE", "1"},
      {"HOROVOD_HOSTNAME", "here"},
      {"OMP_NUM_THREADS", "2"},
  };
  EXPECT_EQ(plans[1].environment, expected);
  EXPECT_EQ(plans[0].environment.at("RUEDA_RANK"), "0");
  EXPECT_EQ(plans[0].core, -1);
}

TEST(Placement, OverwritesAnOuterLaunchersVariables) {
  const std::vector<RankPlan> plans = Placed(Options(1), Host({{"RUEDA_RANK", "7"},
                                                               {"RUEDA_SIZE", "8"},
                                                               {"RUEDA_JOB_ID", "outer"},
                                                               {"RUEDA_SECRET_FD", "9"},
                                                               {"MASTER_ADDR", "elsewhere"},
                                                               {"MASTER_PORT", "29500"},
                                                               {"HOROVOD_CROSS_SIZE", "4"},
                                                               {"WORLD_SIZE", "8"}}));
  const Environment& environment = plans[0].environment;
  EXPECT_EQ(environment.at("RUEDA_RANK"), "0");
  EXPECT_EQ(environment.at("RUEDA_SIZE"), "1");
  EXPECT_EQ(environment.at("RUEDA_JOB_ID"), "0123abcd");
  EXPECT_EQ(environment.at("RUEDA_SECRET_FD"), "5");
  EXPECT_EQ(environment.at("MASTER_ADDR"), "127.0.0.1");
  EXPECT_EQ(environment.at("MASTER_PORT"), "40001");
  EXPECT_EQ(environment.at("HOROVOD_CROSS_SIZE"), "1");
  EXPECT_EQ(environment.at("WORLD_SIZE"), "1");
}

TEST(Placement, OfAnElasticJobRanksAreSlots) {
  JobFacts job = kJob;
  job.meeting_address = "10.0.0.1:5000";
  job.meeting_fd = 9;
  // Slots 32 to 47 of at most 8,192; the job begins with 4 processes, and two slots are used here.
  HostShare share = {8'192, 32, 16, 2, 3, 4, 2};
  absl::StatusOr<std::vector<RankPlan>> plans = PlaceRanks(Options(4), Host({}), job, share);
  ASSERT_TRUE(plans.ok()) << plans.status().ToString();
  ASSERT_EQ(plans->size(), 16u);
  const Environment& second = (*plans)[1].environment;
  EXPECT_EQ(second.at("RUEDA_RANK"), "33");
  EXPECT_EQ(second.at("HOROVOD_RANK"), "33");
  EXPECT_EQ(second.at("WORLD_SIZE"), "4");
  EXPECT_EQ(second.at("LOCAL_RANK"), "1");
  EXPECT_EQ(second.at("LOCAL_WORLD_SIZE"), "2");
  EXPECT_EQ(second.at("HOROVOD_ELASTIC"), "1");
  EXPECT_EQ(second.at("OMP_NUM_THREADS"), "2") << "of the slots that are used";
  EXPECT_EQ(second.at("RUEDA_MEETING_FD"), "9") << "each of them may become rank 0";
}

TEST(Placement, SharesTheCoresAmongTheThreads) {
  const struct {
    int ranks;
    int cores;
    std::string threads;
  } kCases[] = {{1, 4, "4"}, {2, 4, "2"}, {3, 4, "1"}, {4, 4, "1"}, {9, 4, "1"}, {2, 1, "1"}};
  for (const auto& each : kCases) {
    HostFacts host = Host({});
    host.usable_cores = each.cores;
    EXPECT_EQ(Placed(Options(each.ranks), host)[0].environment.at("OMP_NUM_THREADS"), each.threads)
        << each.ranks << " ranks on " << each.cores;
  }
  EXPECT_EQ(
      Placed(Options(2), Host({{"OMP_NUM_THREADS", "13"}}))[0].environment.at("OMP_NUM_THREADS"),
      "13");
}

TEST(Placement, PassesOnWhatTheUserNames) {
  LaunchOptions options = Options(2);
  options.exports = {{"NEW", "with spaces\nand lines"}, {"OLD", "changed"},      {"KEPT", {}},
                     {"OMP_NUM_THREADS", "3"},          {"MASTER_PORT", "1234"}, {"EMPTY", ""}};
  const std::vector<RankPlan> plans = Placed(options, Host({{"OLD", "1"}, {"KEPT", "2"}}));
  for (const RankPlan& plan : plans) {
    EXPECT_EQ(plan.environment.at("NEW"), "with spaces\nand lines");
    EXPECT_EQ(plan.environment.at("OLD"), "changed");
    EXPECT_EQ(plan.environment.at("KEPT"), "2");
    EXPECT_EQ(plan.environment.at("OMP_NUM_THREADS"), "3");
    EXPECT_EQ(plan.environment.at("MASTER_PORT"), "1234");
    EXPECT_EQ(plan.environment.at("EMPTY"), "");
  }
}

TEST(Placement, RefusesToPassOnWhatIsNotThereOrNotTheUsers) {
  LaunchOptions options = Options(2);
  options.exports = {{"MISSING", {}}};
  EXPECT_EQ(Refusal(options, Host({})),
            "option -x MISSING: no such variable in the environment; give it a value with -x "
            "MISSING=VALUE");
  for (const char* name : {"RUEDA_RANK", "RUEDA_SECRET_FD", "WORLD_SIZE", "HOROVOD_RANK"}) {
    options.exports = {{name, "1"}};
    EXPECT_EQ(
        Refusal(options, Host({})),
        std::string("option -x ") + name + ": ruedarun sets this variable itself, for each rank");
  }
}

TEST(Placement, RefusesToPassOnWhatTheRanksWouldRefuse) {
  LaunchOptions options = Options(2);
  options.exports = {{"RUEDA_TIMELIN", "t.json"}};
  EXPECT_EQ(Refusal(options, Host({})),
            "option -x RUEDA_TIMELIN: unknown environment variable RUEDA_TIMELIN; did you mean "
            "RUEDA_TIMELINE?");
  options.exports = {{"RUEDA_BACKEND", {}}};
  EXPECT_EQ(
      Refusal(options, Host({{"RUEDA_BACKEND", "carrier pigeon"}})),
      "option -x RUEDA_BACKEND: RUEDA_BACKEND=carrier pigeon: expected one of auto, shm, gloo");
}

TEST(Placement, SendsDumpsToTheOutputDirectory) {
  LaunchOptions options = Options(1);
  options.output_dir = "/out";
  EXPECT_EQ(Placed(options, Host({}))[0].environment.at("RUEDA_RECORDER_DIR"), "/out");
  EXPECT_EQ(Placed(options, Host({{"RUEDA_RECORDER_DIR", "/mine"}}))[0].environment.at(
                "RUEDA_RECORDER_DIR"),
            "/mine");
}

TEST(Placement, PinsRanksToTheCoresThatThereAre) {
  LaunchOptions options = Options(3);
  options.bind = LaunchOptions::Bind::kCore;
  const std::vector<RankPlan> plans = Placed(options, Host({}, {2, 5, 7, 9}));
  EXPECT_EQ(plans[0].core, 2);
  EXPECT_EQ(plans[1].core, 5);
  EXPECT_EQ(plans[2].core, 7);
  EXPECT_EQ(plans[0].environment.at("OMP_NUM_THREADS"), "1");
  EXPECT_EQ(Refusal(options, Host({}, {2, 5})),
            "option --bind-to core: 3 ranks, but only 2 usable cores; two ranks on one core would "
            "wait for each other");
}

TEST(Placement, AnOptionsSettingGoesBeforeTheInheritedOneAndAfterAnExport) {
  LaunchOptions options = Options(1);
  options.settings = {{"RUEDA_LOG_LEVEL", "info"}, {"RUEDA_TIMELINE", "t.json"}};
  options.exports = {{"RUEDA_TIMELINE", "mine.json"}};
  const Environment environment =
      Placed(options, Host({{"RUEDA_LOG_LEVEL", "error"}}))[0].environment;
  EXPECT_EQ(environment.at("RUEDA_LOG_LEVEL"), "info");
  EXPECT_EQ(environment.at("RUEDA_TIMELINE"), "mine.json");
}

TEST(Placement, TellsTheRanksOfASecondHostWhereTheyStand) {
  JobFacts job = kJob;
  job.master_address = "10.0.0.1";
  job.meeting_address = "10.0.0.1:5000";
  job.meeting_fd = 9;
  const HostShare share = {5, 3, 2, 1, 2};
  absl::StatusOr<std::vector<RankPlan>> plans =
      PlaceRanks(Options(5), Host({{"RUEDA_MEETING_FD", "7"}}), job, share);
  ASSERT_TRUE(plans.ok()) << plans.status().ToString();
  ASSERT_EQ(plans->size(), 2u);
  const Environment& second = (*plans)[1].environment;
  EXPECT_EQ(second.at("RUEDA_RANK"), "4");
  EXPECT_EQ(second.at("RUEDA_LOCAL_RANK"), "1");
  EXPECT_EQ(second.at("RUEDA_LOCAL_SIZE"), "2");
  EXPECT_EQ(second.at("WORLD_SIZE"), "5");
  EXPECT_EQ(second.at("NODE_RANK"), "1");
  EXPECT_EQ(second.at("HOROVOD_CROSS_RANK"), "1");
  EXPECT_EQ(second.at("HOROVOD_CROSS_SIZE"), "2");
  EXPECT_EQ(second.at("MASTER_ADDR"), "10.0.0.1");
  EXPECT_EQ(second.at("RUEDA_MEETING_ADDRESS"), "10.0.0.1:5000");
  EXPECT_FALSE(second.contains("RUEDA_MEETING_FD"));
  plans = PlaceRanks(Options(5), Host({}), job, {5, 0, 3, 0, 2});
  ASSERT_TRUE(plans.ok()) << plans.status().ToString();
  EXPECT_EQ((*plans)[2].environment.at("RUEDA_MEETING_FD"), "9");
  EXPECT_EQ((*plans)[2].environment.at("HOROVOD_CROSS_RANK"), "0");
}

TEST(Placement, OnlyWhatIsTrueEverywhereTravels) {
  const Environment travelling = TravellingEnvironment({{"PATH", "/opt/bin"},
                                                        {"LD_LIBRARY_PATH", "/opt/lib"},
                                                        {"NCCL_DEBUG", "INFO"},
                                                        {"OMP_NUM_THREADS", "4"},
                                                        {"RUEDA_LOG_LEVEL", "info"},
                                                        {"CUDA_VISIBLE_DEVICES", "3"},
                                                        {"RUEDA_SECRET_FD", "3"},
                                                        {"HOME", "/home/me"},
                                                        {"AWS_SECRET_ACCESS_KEY", "x"}});
  const Environment expected = {{"PATH", "/opt/bin"},
                                {"LD_LIBRARY_PATH", "/opt/lib"},
                                {"NCCL_DEBUG", "INFO"},
                                {"OMP_NUM_THREADS", "4"},
                                {"RUEDA_LOG_LEVEL", "info"}};
  EXPECT_EQ(travelling, expected);
}

}  // namespace
}  // namespace rueda
