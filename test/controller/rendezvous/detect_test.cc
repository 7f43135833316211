// Where a process stands, from its settings and from what other launchers set.
#include "controller/rendezvous/detect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rueda {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<Place> Detect(const Environment& environment) {
  Config config;
  EXPECT_TRUE(ReadEnvironment(environment, &config).ok());
  return DetectPlace(config, environment);
}

void ExpectAlone(const Environment& environment) {
  const absl::StatusOr<Place> place = Detect(environment);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->rank, 0);
  EXPECT_EQ(place->size, 1);
}

void ExpectRefused(const Environment& environment, absl::StatusCode code,
                   const std::string& beginning) {
  const absl::StatusOr<Place> place = Detect(environment);
  ASSERT_FALSE(place.ok()) << beginning;
  EXPECT_EQ(place.status().code(), code) << place.status();
  EXPECT_EQ(place.status().message().substr(0, beginning.size()), beginning);
}

TEST(Detect, NothingIsAWorldOfOne) {
  ExpectAlone({});
  ExpectAlone({{"PATH", "/bin"}, {"HOME", "/root"}});
}

TEST(Detect, TakesRuedarunsVariables) {
  const Environment environment = {
      {"RUEDA_RANK", "2"}, {"RUEDA_SIZE", "4"}, {"RUEDA_JOB_ID", "job"}};
  const absl::StatusOr<Place> place = Detect(environment);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->rank, 2);
  EXPECT_EQ(place->size, 4);
}

TEST(Detect, TakesRuedarunsVariablesInsideAnotherLauncher) {
  const absl::StatusOr<Place> place = Detect({{"RUEDA_RANK", "1"},
                                              {"RUEDA_SIZE", "2"},
                                              {"RUEDA_JOB_ID", "job"},
                                              {"OMPI_COMM_WORLD_SIZE", "8"},
                                              {"PMI_SIZE", "8"},
                                              {"WORLD_SIZE", "2"},
                                              {"HOROVOD_SIZE", "2"},
                                              {"SLURM_STEP_ID", "0"},
                                              {"SLURM_STEP_NUM_TASKS", "8"}});
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->rank, 1);
  EXPECT_EQ(place->size, 2);
}

TEST(Detect, RefusesRuedarunsVariablesThatAreIncompleteOrContradictEachOther) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectRefused({{"RUEDA_RANK", "0"}}, kInvalid, "RUEDA_RANK is set but RUEDA_SIZE is not");
  ExpectRefused({{"RUEDA_SIZE", "2"}}, kInvalid, "RUEDA_SIZE is set but RUEDA_RANK is not");
  ExpectRefused({{"RUEDA_RANK", "2"}, {"RUEDA_SIZE", "2"}, {"RUEDA_JOB_ID", "job"}}, kInvalid,
                "RUEDA_RANK=2 is not below RUEDA_SIZE=2");
  ExpectRefused({{"RUEDA_RANK", "0"}, {"RUEDA_SIZE", "2"}}, kInvalid,
                "RUEDA_SIZE is above 1 but RUEDA_JOB_ID");
}

// As each launcher sets them for its rank 1 of 2, and the variable and launcher that the error
// names.
const struct {
  Environment environment;
  const char* variable;
  const char* launcher;
} kLaunchers[] = {
    {{{"TORCHELASTIC_RUN_ID", "x"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}},
     "WORLD_SIZE=2",
     "torchrun"},
    {{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_RANK", "1"}},
     "OMPI_COMM_WORLD_SIZE=2",
     "Open MPI"},
    {{{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "2"}},
     "MV2_COMM_WORLD_SIZE=2",
     "MVAPICH2"},
    {{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}}, "PMI_SIZE=2", "MPICH"},
    {{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}},
     "SLURM_STEP_NUM_TASKS=2",
     "srun"},
    {{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}},
     "SLURM_NTASKS=2",
     "srun"},
    {{{"JSM_NAMESPACE_RANK", "1"}, {"JSM_NAMESPACE_SIZE", "2"}}, "JSM_NAMESPACE_SIZE=2", "jsrun"},
    {{{"HOROVOD_RANK", "0"}, {"HOROVOD_SIZE", "2"}}, "HOROVOD_SIZE=2", "horovodrun"},
    {{{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "x"}}, "PMIX_RANK=1", "PMIx"},
    {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "WORLD_SIZE=2", "WORLD_SIZE"},
    {{{"RANK", "1"}}, "RANK=1", "RANK"},
    {{{"TF_CONFIG",
       R"({"cluster": {"chief": ["[::1]:1"], "worker": ["b\"]:2"]}, "task": {"index": 0}})"}},
     "TF_CONFIG={...}",
     "TensorFlow"},
};

TEST(Detect, RefusesByNameAnotherLaunchersJobOfMoreThanOneRank) {
  for (const auto& each : kLaunchers) {
    ExpectRefused(each.environment, absl::StatusCode::kFailedPrecondition,
                  std::string(each.variable) + " says that ");
    const std::string message(Detect(each.environment).status().message());
    EXPECT_THAT(message, HasSubstr(each.launcher));
    EXPECT_THAT(message, HasSubstr("ruedarun -np "));
  }
  EXPECT_EQ(Detect({{"PMI_SIZE", "3"}}).status().message(),
            "PMI_SIZE=3 says that a PMI launcher (MPICH's or Intel MPI's mpirun, srun --mpi=pmi2) "
            "started 3 ranks, and this version reads only ruedarun's variables: start the program "
            "with `ruedarun -np 3`, or unset PMI_SIZE to run alone");
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
  ExpectAlone({{"TF_CONFIG", ""}});
  for (const char* broken : {"cluster", "{\"cluster\"", "{\"cluster\":", "\"cluster\": \"\\",
                             "{\"cluster\": {\"worker\": []}, \"task\": [\"a\", \"b\"]}"}) {
    ExpectAlone({{"TF_CONFIG", broken}});
  }
}

TEST(Detect, RefusesANumberOfRanksThatIsNone) {
  ExpectRefused({{"OMPI_COMM_WORLD_SIZE", "two"}}, absl::StatusCode::kInvalidArgument,
                "OMPI_COMM_WORLD_SIZE=two, by which Open MPI's mpirun tells the number of ranks, "
                "is no number");
}

}  // namespace
}  // namespace rueda
