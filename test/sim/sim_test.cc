// Runs the negotiation of whole jobs under virtual time, many seeds, and breaks it on purpose to
// see that the simulator's checks notice. simulation.h says what is checked.
#include "test/sim/simulation.h"
#include "test/sim/training.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace rueda::sim {
namespace {

std::string Words(const Report& report) {
  std::string words;
  for (const std::string& error : report.errors) words += error + "\n";
  return words;
}

// A sanitizer gets fewer here: test/soak/run.sh --preset asan has hundreds.
#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSeeds = 40;
#else
constexpr uint64_t kSeeds = 200;
#endif

// The three ways to lay out a job: one host, several, and hosts of one rank.
const std::vector<int> kRanksPerHost = {0, 2, 1};

TEST(Simulation, HundredsOfSmallJobsAgreeAndEnd) {
  uint64_t operations = 0;
  uint64_t rejected = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    for (const int per_host : kRanksPerHost) {
      Options options;
      options.seed = seed;
      options.ranks = 2 + 2 * static_cast<int>(seed % 4);
      options.ranks_per_host = per_host;
      options.fan_out = 1 + static_cast<int>(seed % 3);
      options.steps = 4;
      const Report report = sim::Run(options);
      ASSERT_TRUE(report.errors.empty())
          << "rueda_sim --ranks " << options.ranks << " --ranks-per-host " << per_host
          << " --fan-out " << options.fan_out << " --seed " << seed << " --steps 4\n"
          << Words(report);
      operations += report.operations;
      rejected += report.rejected;
    }
  }
  // The workload was there, mismatches among it.
  EXPECT_GT(operations, 500 * kSeeds);
  EXPECT_GT(rejected, kSeeds / 2);
}

// The log full most of the time, and tensor ids that have to be given up and defined again.
TEST(Simulation, SmallJobsAgreeWhenLogAndTableAreShort) {
  for (uint64_t seed = 1; seed <= kSeeds / 2; ++seed) {
    for (const int per_host : kRanksPerHost) {
      Options options;
      options.seed = seed;
      options.ranks_per_host = per_host;
      options.fan_out = 1 + static_cast<int>(seed % 3);
      options.steps = 10;
      options.log_words = 16;
      options.tensor_ids_max = 40;  // a few more than can be in flight at once
      const Report report = sim::Run(options);
      ASSERT_TRUE(report.errors.empty())
          << "seed " << seed << ", ranks per host " << per_host << "\n"
          << Words(report);
    }
  }
}

TEST(Simulation, AThousandRanksAgreeAndEnd) {
  Options options;
  options.ranks = 1'000;
  options.ranks_per_host = 8;
  options.fan_out = 8;
  options.steps = 2;
  const Report report = sim::Run(options);
  EXPECT_TRUE(report.errors.empty()) << Words(report);
  EXPECT_GT(report.operations, 30'000u);
  EXPECT_GT(report.messages, 0u);
}

TEST(Simulation, TheSameSeedIsTheSameRun) {
  for (const int per_host : kRanksPerHost) {
    Options options;
    options.ranks_per_host = per_host;
    options.seed = 7;
    const uint64_t digest = sim::Run(options).digest;
    EXPECT_EQ(sim::Run(options).digest, digest);
    options.seed = 8;
    EXPECT_NE(sim::Run(options).digest, digest);
  }
}

class BrokenSimulation : public testing::TestWithParam<std::pair<Defect, const char*>> {};

TEST_P(BrokenSimulation, IsNoticedByTheCheckForIt) {
  const auto [defect, check] = GetParam();
  for (const int per_host : kRanksPerHost) {
    Options options;
    options.ranks_per_host = per_host;
    options.seed = 3;
    ASSERT_TRUE(sim::Run(options).errors.empty());
    options.defect = defect;
    const Report report = sim::Run(options);
    EXPECT_TRUE(report.defect_done);
    EXPECT_NE(Words(report).find(std::string(check) + ": "), std::string::npos) << Words(report);
  }
}

INSTANTIATE_TEST_SUITE_P(EachDefect, BrokenSimulation,
                         testing::Values(std::pair(Defect::kDropAnnouncement, "liveness"),
                                         std::pair(Defect::kReorderPlan, "agreement"),
                                         std::pair(Defect::kChangeRejection, "uniformity")));

// What comes to rank 0 of a training job grows with the tree, not with the ranks.
TEST(Training, AgreesAndKeepsTheRootSmall) {
  TrainingOptions options;
  options.ranks = 512;
  options.steps = 3;
  options.tensors = 40;
  options.fan_out = 4;
  const TrainingReport report = RunTraining(options);
  ASSERT_TRUE(report.errors.empty()) << report.errors[0];
  EXPECT_EQ(report.operations, 512u * 3 * 40);
  EXPECT_EQ(report.connections, 4);
  EXPECT_EQ(report.depth, 3);  // 64 hosts
  options.fan_out = 512;
  const TrainingReport star = RunTraining(options);
  ASSERT_TRUE(star.errors.empty()) << star.errors[0];
  EXPECT_EQ(star.connections, 63);
  EXPECT_EQ(star.depth, 1);
  EXPECT_LT(4 * report.later_steps.messages, star.later_steps.messages);
  EXPECT_LT(4 * report.later_steps.bytes, star.later_steps.bytes);
  EXPECT_EQ(RunTraining(options).digest, star.digest) << "the same seed is the same run";
}

// The program --------------------------------------------------------------------------------

struct Ending {
  int status;
  std::string output;
};

Ending RunProgram(const std::string& arguments) {
  std::FILE* const pipe = popen((RUEDA_SIM " " + arguments + " 2>&1").c_str(), "r");
  Ending ending;
  std::array<char, 4096> part;
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) ending.output += part.data();
  const int status = pclose(pipe);
  ending.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ending;
}

TEST(SimulationProgram, PrintsALineForEachSeed) {
  const Ending ending = RunProgram("--ranks 4 --steps 2 --seed 5 --seeds 3");
  EXPECT_EQ(ending.status, 0) << ending.output;
  for (const char* seed : {"\"seed\": 5,", "\"seed\": 6,", "\"seed\": 7,"}) {
    EXPECT_NE(ending.output.find(seed), std::string::npos) << ending.output;
  }
  EXPECT_EQ(ending.output.find("\"ok\": false"), std::string::npos) << ending.output;
}

TEST(SimulationProgram, FailsAndSaysWhatIsBroken) {
  const Ending ending = RunProgram("--ranks 4 --seed 3 --break reorder-plan");
  EXPECT_EQ(ending.status, 1);
  EXPECT_NE(ending.output.find("ERROR agreement: batch "), std::string::npos) << ending.output;
}

TEST(SimulationProgram, RefusesADefectThatItDoesNotKnow) {
  const Ending ending = RunProgram("--break everything");
  EXPECT_EQ(ending.status, 2);
  EXPECT_NE(ending.output.find("there is no defect everything"), std::string::npos)
      << ending.output;
}

}  // namespace
}  // namespace rueda::sim
