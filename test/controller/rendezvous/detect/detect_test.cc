// Where a process stands, from its settings and from what other launchers set.
#include "controller/rendezvous/detect/detect.h"

#include <gtest/gtest.h>

namespace rueda {
namespace {

absl::StatusOr<LaunchInfo> Detect(const Environment& environment) {
  Config config;
  EXPECT_TRUE(ReadEnvironment(environment, &config).ok());
  return DetectLaunch(config, environment);
}

void ExpectAlone(const Environment& environment) {
  const absl::StatusOr<LaunchInfo> launch = Detect(environment);
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->rank, 0);
  EXPECT_EQ(launch->size, 1);
}

void ExpectRefused(const Environment& environment, absl::StatusCode code,
                   const std::string& beginning) {
  const absl::StatusOr<LaunchInfo> launch = Detect(environment);
  ASSERT_FALSE(launch.ok()) << beginning;
  EXPECT_EQ(launch.status().code(), code) << launch.status();
  EXPECT_EQ(launch.status().message().substr(0, beginning.size()), beginning);
}

TEST(Detect, NothingIsAWorldOfOne) {
  ExpectAlone({});
  ExpectAlone({{"PATH", "/bin"}, {"HOME", "/root"}});
}

TEST(Detect, TakesRuedarunsVariables) {
  const Environment environment = {
      {"RUEDA_RANK", "2"}, {"RUEDA_SIZE", "4"}, {"RUEDA_JOB_ID", "job"}};
  const absl::StatusOr<LaunchInfo> launch = Detect(environment);
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->rank, 2);
  EXPECT_EQ(launch->size, 4);
}

TEST(Detect, TakesRuedarunsVariablesInsideAnotherLauncher) {
  const absl::StatusOr<LaunchInfo> launch = Detect({{"RUEDA_RANK", "1"},
                                                    {"RUEDA_SIZE", "2"},
                                                    {"RUEDA_JOB_ID", "job"},
                                                    {"OMPI_COMM_WORLD_SIZE", "8"},
                                                    {"PMI_SIZE", "8"},
                                                    {"WORLD_SIZE", "2"},
                                                    {"HOROVOD_SIZE", "2"},
                                                    {"SLURM_STEP_ID", "0"},
                                                    {"SLURM_STEP_NUM_TASKS", "8"}});
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->rank, 1);
  EXPECT_EQ(launch->size, 2);
}

TEST(Detect, RefusesRuedarunsVariablesThatAreIncompleteOrContradictEachOther) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectRefused({{"RUEDA_RANK", "0"}}, kInvalid, "RUEDA_RANK is set but RUEDA_SIZE is not");
  ExpectRefused({{"RUEDA_SIZE", "2"}}, kInvalid, "RUEDA_SIZE is set but RUEDA_RANK is not");
  ExpectRefused({{"RUEDA_RANK", "2"}, {"RUEDA_SIZE", "2"}, {"RUEDA_JOB_ID", "job"}}, kInvalid,
                "RUEDA_RANK=2 is not below RUEDA_SIZE=2");
  ExpectRefused({{"RUEDA_RANK", "0"}, {"RUEDA_SIZE", "2"}}, kInvalid,
                "RUEDA_SIZE is above 1 but RUEDA_JOB_ID");
  ExpectRefused({{"RUEDA_RANK", "0"}, {"RUEDA_SIZE", "1"}, {"RUEDA_LOCAL_SIZE", "2"}}, kInvalid,
                "RUEDA_LOCAL_SIZE=2 is above RUEDA_SIZE=1");
}

// As each launcher sets them for rank 1 of 2 on one host, and the job's name that follows.
const struct {
  Environment environment;
  const char* job;
} kLaunchers[] = {
    {{{"TORCHELASTIC_RUN_ID", "run"},
      {"TORCHELASTIC_RESTART_COUNT", "3"},
      {"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"MASTER_ADDR", "localhost"},
      {"MASTER_PORT", "37099"}},
     "TORCHELASTIC_RUN_ID/run/localhost/37099/3"},
    {{{"OMPI_COMM_WORLD_RANK", "1"},
      {"OMPI_COMM_WORLD_SIZE", "2"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"PMIX_NAMESPACE", "1146355713"},
      {"PMIX_RANK", "1"}},
     "OMPI_COMM_WORLD_RANK/1146355713"},
    {{{"SLURM_STEP_ID", "4"},
      {"SLURM_JOB_ID", "17"},
      {"SLURM_PROCID", "1"},
      {"SLURM_NTASKS", "2"},
      {"SLURM_STEP_NUM_TASKS", "2"},
      {"SLURM_STEP_TASKS_PER_NODE", "2"},
      {"SLURM_NODEID", "0"}},
     "SLURM_STEP_ID/17/4/"},
    {{{"JSM_NAMESPACE_RANK", "1"},
      {"JSM_NAMESPACE_SIZE", "2"},
      {"JSM_NAMESPACE_LOCAL_SIZE", "2"},
      {"LSB_JOBID", "88"}},
     "JSM_NAMESPACE_RANK/88/"},
    {{{"HOROVOD_RANK", "1"},
      {"HOROVOD_SIZE", "2"},
      {"HOROVOD_LOCAL_SIZE", "2"},
      {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.1"},
      {"HOROVOD_GLOO_RENDEZVOUS_PORT", "5"}},
     "HOROVOD_RANK/10.0.0.1/5"},
    {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}},
     "RANK/h/29500"},
};

TEST(Detect, TakesWhatAnotherLauncherSays) {
  for (const auto& each : kLaunchers) {
    const absl::StatusOr<LaunchInfo> launch = Detect(each.environment);
    ASSERT_TRUE(launch.ok()) << launch.status();
    EXPECT_EQ(launch->rank, 1) << each.job;
    EXPECT_EQ(launch->size, 2) << each.job;
    EXPECT_EQ(launch->job, each.job);
    EXPECT_EQ(launch->pmi_fd, -1);
  }
}

TEST(Detect, HydrasJobIsNamedAfterTheProcessBehindItsSocket) {
  const absl::StatusOr<LaunchInfo> launch =
      Detect({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}, {"PMI_FD", "8"}});
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->rank, 1);
  EXPECT_EQ(launch->size, 2);
  EXPECT_EQ(launch->job, "");
  EXPECT_EQ(launch->pmi_fd, 8);
}

TEST(Detect, TheSettingNamesTheJobOfAnyLauncher) {
  for (auto environment :
       {Environment{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}},
        Environment{{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "2"}},
        Environment{{"RANK", "1"}, {"WORLD_SIZE", "2"}}, kLaunchers[0].environment}) {
    environment["RUEDA_JOB_ID"] = "mine";
    const absl::StatusOr<LaunchInfo> launch = Detect(environment);
    ASSERT_TRUE(launch.ok()) << launch.status();
    EXPECT_EQ(launch->rank, 1);
    EXPECT_EQ(launch->size, 2);
    EXPECT_EQ(launch->job, "mine");
    EXPECT_EQ(launch->pmi_fd, -1);
  }
}

// Variables of one launcher within another: what only the inner one says counts.
TEST(Detect, TheInnerLauncherOfMoreThanOneRankCounts) {
  Environment step = kLaunchers[2].environment;
  step["PMI_RANK"] = "1";  // srun --mpi=pmi2
  step["PMI_SIZE"] = "2";
  EXPECT_EQ(Detect(step)->job, "SLURM_STEP_ID/17/4/");

  Environment mpirun_in_step = kLaunchers[1].environment;
  mpirun_in_step.insert(
      {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "9"}});
  EXPECT_EQ(Detect(mpirun_in_step)->job, "OMPI_COMM_WORLD_RANK/1146355713");

  Environment torchrun_in_step = kLaunchers[0].environment;  // of one task
  torchrun_in_step.insert(
      {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}});
  EXPECT_EQ(Detect(torchrun_in_step)->job, "TORCHELASTIC_RUN_ID/run/localhost/37099/3");

  Environment own_in_step = kLaunchers[5].environment;  // the program's own launcher in one task
  own_in_step.insert(
      {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}});
  EXPECT_EQ(Detect(own_in_step)->job, "RANK/h/29500");
}

TEST(Detect, SlurmsListTellsHowManyTasksAreOnThisNode) {
  Environment environment = kLaunchers[2].environment;
  environment["SLURM_STEP_NUM_TASKS"] = "9";
  const struct {
    const char* list;
    const char* node;
    int tasks;
  } kCases[] = {{"4,3(x1),2", "0", 4},
                {"4,3(x1),2", "1", 3},
                {"4,3(x1),2", "2", 2},
                {"2(x3),1(x2)", "2", 2},
                {"2(x3),1(x2)", "4", 1},
                {"9", "0", 9},
                {"9(x1)", "0", 9},
                {"2(x3),1", "4", -1},
                {"", "0", -1},
                {"x", "0", -1},
                {"2(x", "0", -1},
                {"2(x)", "0", -1},
                {"2(x-2147483648),1", "9", -1},
                {"-2(x3)", "0", -1}};
  for (const auto& each : kCases) {
    environment["SLURM_STEP_TASKS_PER_NODE"] = each.list;
    environment["SLURM_NODEID"] = each.node;
    const absl::StatusOr<LaunchInfo> launch = Detect(environment);
    ASSERT_TRUE(launch.ok()) << launch.status();
    EXPECT_EQ(launch->local_size, each.tasks) << each.list << " " << each.node;
  }
}

TEST(Detect, TellsHowManyRanksAreOnThisHost) {
  EXPECT_EQ(Detect({{"OMPI_COMM_WORLD_RANK", "1"},
                    {"OMPI_COMM_WORLD_SIZE", "4"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                    {"PMIX_NAMESPACE", "x"}})
                ->local_size,
            2);
  EXPECT_EQ(Detect({{"TF_CONFIG",
                     R"({"cluster": {"worker": ["a:1", "b:1", "a:2"]},
                         "task": {"type": "worker", "index": 2}})"}})
                ->local_size,
            2);
  EXPECT_EQ(Detect({{"RUEDA_RANK", "0"},
                    {"RUEDA_SIZE", "4"},
                    {"RUEDA_LOCAL_SIZE", "3"},
                    {"RUEDA_JOB_ID", "job"}})
                ->local_size,
            3);
  EXPECT_EQ(Detect(kLaunchers[5].environment)->local_size, -1);
  // torchrun counts restarts on each host by itself.
  Environment torchrun = kLaunchers[0].environment;
  torchrun["WORLD_SIZE"] = "4";
  EXPECT_EQ(Detect(torchrun)->local_size, 2);
  EXPECT_EQ(Detect(torchrun)->job, "TORCHELASTIC_RUN_ID/run/localhost/37099");
  // Each host has a process manager of its own, which can't name the job for all.
  ExpectRefused({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}, {"PMI_FD", "8"}},
                absl::StatusCode::kFailedPrecondition,
                "PMI_SIZE=4 says that Hydra (the mpirun of MPICH and Intel MPI) started more than "
                "one rank, but gave the job no name, by which the ranks meet: set RUEDA_JOB_ID");
}

// What is said of more than one rank is never ignored.
TEST(Detect, RefusesByNameWhatIsNotEnoughToMeet) {
  const struct {
    Environment environment;
    const char* beginning;
  } kCases[] = {
      {{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}},
       "PMI_SIZE=2 says that a PMI launcher started more than one rank, but gave the job no name, "
       "by "
       "which the ranks meet: set RUEDA_JOB_ID to one word for all of them that no other job has, "
       "or "
       "unset PMI_SIZE to run alone"},
      {{{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "2"}}, "MV2_COMM_WORLD_SIZE=2 says "},
      {{{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}}, "PMI_SIZE=2 says "},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "WORLD_SIZE=2 says "},
      {{{"RANK", "1"}},
       "RANK=1 says that a launcher that sets RANK and WORLD_SIZE started more than one rank, but "
       "not how many: start the program with `ruedarun -np N`, or unset RANK to run alone"},
      {{{"WORLD_SIZE", "2"}},
       "WORLD_SIZE=2 says that a launcher that sets RANK and WORLD_SIZE "
       "started more than one rank, but not which this is: "},
      {{{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "x"}}, "PMIX_RANK=1 says that a PMIx launcher "},
      {{{"HOROVOD_SIZE", "2"}}, "HOROVOD_SIZE=2 says that horovodrun "},
      {{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}}, "SLURM_PROCID=1 says that srun "},
  };
  for (const auto& each : kCases) {
    ExpectRefused(each.environment, absl::StatusCode::kFailedPrecondition, each.beginning);
  }
}

TEST(Detect, RefusesWhatContradictsItself) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectRefused({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, kInvalid,
                "OMPI_COMM_WORLD_RANK=2 is not below OMPI_COMM_WORLD_SIZE=2, both set by Open MPI");
  ExpectRefused({{"PMI_RANK", "1"}, {"PMI_SIZE", "1"}}, kInvalid,
                "PMI_RANK=1 is not below PMI_SIZE=1");
  for (const char* local_size : {"3", "0"}) {
    ExpectRefused({{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", local_size}},
                  kInvalid,
                  std::string("OMPI_COMM_WORLD_LOCAL_SIZE=") + local_size + " does not fit to ");
  }
}

Environment TfConfig(const std::string& task) {
  return {{"TF_CONFIG", R"({"cluster": {"worker": ["[::1]:2", "[::1]:3"], "chief": ["[::1]:1"],
                                        "ps": ["far:1"]}, "task": )" +
                            task + "}"}};
}

TEST(Detect, TakesTensorFlowsClusterAndTask) {
  const struct {
    const char* task;
    Rank rank;
  } kTasks[] = {{R"({"type": "chief", "index": 0})", 0},
                {R"({"type": "worker", "index": 0})", 1},
                {R"({"index": 1, "type": "worker", "more": null})", 2}};
  std::string job;
  for (const auto& each : kTasks) {
    const absl::StatusOr<LaunchInfo> launch = Detect(TfConfig(each.task));
    ASSERT_TRUE(launch.ok()) << launch.status();
    EXPECT_EQ(launch->rank, each.rank);
    EXPECT_EQ(launch->size, 3);
    EXPECT_EQ(launch->job.substr(0, 10), "TF_CONFIG/");
    EXPECT_EQ(launch->job, job.empty() ? launch->job : job);
    job = launch->job;
  }
  const absl::StatusOr<LaunchInfo> other = Detect(
      {{"TF_CONFIG",
        R"({"cluster": {"worker": ["h:1", "h:2"]}, "task": {"type": "worker", "index": 0}})"}});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_NE(other->job, job);
}

TEST(Detect, TasksThatTrainNothingAreToldSo) {
  for (const std::string type : {"ps", "evaluator"}) {
    ExpectRefused(TfConfig(R"({"type": ")" + type + R"(", "index": 0})"),
                  absl::StatusCode::kFailedPrecondition,
                  "TF_CONFIG says that this process is of type " + type + ", which takes no part");
    ExpectRefused(
        {{"TF_CONFIG", R"({"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": ")" +
                           type + R"(", "index": 0}})"}},
        absl::StatusCode::kFailedPrecondition,
        "TF_CONFIG says that this process is of type " + type);
  }
}

TEST(Detect, RefusesATfConfigThatSaysNothing) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectRefused({{"TF_CONFIG", "cluster"}}, kInvalid, "TF_CONFIG is no JSON; expected {");
  ExpectRefused({{"TF_CONFIG", R"({"cluster": {"worker": ["a:1"})"}}, kInvalid,
                "TF_CONFIG is no JSON");
  ExpectRefused({{"TF_CONFIG", "[]"}}, kInvalid, "TF_CONFIG is no object");
  ExpectRefused({{"TF_CONFIG", R"({"cluster": {"worker": "a:1"}})"}}, kInvalid,
                "TF_CONFIG has no list of addresses for worker");
  ExpectRefused({{"TF_CONFIG", R"({"cluster": {"worker": ["a:1", 2]}})"}}, kInvalid,
                "TF_CONFIG has no list of addresses for worker");
  ExpectRefused(TfConfig("{}"), kInvalid, "TF_CONFIG names no task");
  ExpectRefused(TfConfig("[3]"), kInvalid, "TF_CONFIG names no task");
  ExpectRefused(TfConfig(R"({"type": 7})"), kInvalid, "TF_CONFIG names no task");
  for (const char* index : {"2", "-1", "0.5", "\"0\"", "18446744073709551615"}) {
    ExpectRefused(
        TfConfig(std::string(R"({"type": "worker", "index": )") + index + "}"), kInvalid,
        "TF_CONFIG has a task whose index is no whole number from 0 to 1, of which there is ");
  }
  ExpectRefused(TfConfig(R"({"type": "master", "index": 0})"), kInvalid,
                "TF_CONFIG says that this is a master, which its cluster has not");
  ExpectRefused({{"TF_CONFIG", std::string(100'000, '[')}}, kInvalid, "TF_CONFIG is no JSON");
}

TEST(Detect, OneRankOfAnotherLauncherIsAWorldOfOne) {
  ExpectAlone({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_RANK", "0"}});
  ExpectAlone({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}});
  ExpectAlone({{"TORCHELASTIC_RUN_ID", "x"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}});
  ExpectAlone({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}});
  ExpectAlone({{"HOROVOD_RANK", "0"}, {"HOROVOD_SIZE", "1"}});
  ExpectAlone({{"TF_CONFIG", R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}})"}});
}

TEST(Detect, ABatchScriptsShellIsAWorldOfOne) {
  ExpectAlone({{"SLURM_JOB_ID", "4"},
               {"SLURM_NTASKS", "4"},
               {"SLURM_NPROCS", "4"},
               {"SLURM_PROCID", "0"},
               {"SLURM_LOCALID", "0"},
               {"SLURM_TASKS_PER_NODE", "2(x2)"}});
}

TEST(Detect, WhatIsNoLaunchersIsLeftAlone) {
  ExpectAlone({{"RANK", "captain"}, {"WORLD_SIZE", ""}});
  ExpectAlone({{"RANK", "captain"}, {"WORLD_SIZE", "large"}});
  ExpectAlone({{"RANK", "0"}, {"WORLD_SIZE", "large"}});
  ExpectAlone({{"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}});
  ExpectAlone({{"TF_CONFIG", ""}});
  ExpectAlone({{"TF_CONFIG", "{}"}});
  ExpectAlone({{"TF_CONFIG", R"({"task": {"type": "worker", "index": 0}})"}});
  ExpectAlone({{"TF_CONFIG", R"({"cluster": {"worker": []}, "task": ["a", "b"]})"}});
}

TEST(Detect, RefusesANumberOfRanksThatIsNone) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectRefused({{"RANK", "x"}, {"WORLD_SIZE", "2"}}, kInvalid, "RANK=x, set by ");
  ExpectRefused({{"RANK", "1.0"}, {"WORLD_SIZE", "2"}}, kInvalid, "RANK=1.0, set by ");
  ExpectRefused({{"RANK", "1"}, {"WORLD_SIZE", "2x"}}, kInvalid, "WORLD_SIZE=2x, set by ");
  ExpectRefused({{"RANK", "x"}, {"WORLD_SIZE", ""}, {"MASTER_ADDR", "h"}}, kInvalid, "RANK=x, set");
  ExpectRefused({{"RANK", "0"}, {"WORLD_SIZE", "0"}, {"MASTER_ADDR", "h"}}, kInvalid,
                "WORLD_SIZE=0, set by a launcher that sets RANK and WORLD_SIZE: expected at least");
  ExpectRefused({{"PMI_RANK", "0"}, {"PMI_SIZE", "0"}}, kInvalid, "PMI_SIZE=0, set by a PMI ");
  for (const char* rank : {"", "0", "1"}) {  // a script with a misspelt variable
    ExpectRefused({{"RANK", ""}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", rank}},
                  absl::StatusCode::kFailedPrecondition, "WORLD_SIZE=2 says that ");
  }
  for (const char* number : {"two", "-2", "65537", "99999999999"}) {
    ExpectRefused({{"OMPI_COMM_WORLD_SIZE", number}}, absl::StatusCode::kInvalidArgument,
                  std::string("OMPI_COMM_WORLD_SIZE=") + number +
                      ", set by Open MPI's mpirun: expected a number from 0 to 65536");
  }
}

}  // namespace
}  // namespace rueda
