// What a rank finds: its environment, descriptors, input, cores, and the job's secret.
#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "controller/rendezvous/host_identity.h"
#include "core/base/process.h"
#include "test/launcher/job.h"

namespace rueda {
namespace {

const std::string kHelper = LAUNCHER_HELPER;

std::map<std::string, std::string> Parsed(const std::string& lines) {
  std::map<std::string, std::string> environment;
  std::istringstream text(lines);
  for (std::string line; std::getline(text, line);) {
    const size_t equals = line.find('=');
    EXPECT_TRUE(environment.emplace(line.substr(0, equals), line.substr(equals + 1)).second)
        << "twice: " << line;
  }
  return environment;
}

TEST(Environment, OfEachRankIsExactlyThis) {
  Job::Setup setup;
  setup.environment = {{"EMPTY", ""},
                       {"LINES", "a\nb=c"},
                       {"BASH_FUNC_f%%", "() { :; }"},
                       {"LONG", std::string(100'000, 'x')},
                       {"RUEDA_RANK", "7"},
                       {"RUEDA_JOB_ID", "outer"},
                       {"RUEDA_LOG_LEVEL", "info"},
                       {"WORLD_SIZE", "99"}};
  Job job({"-np", "3", "-x", "NEW=1 2", "-x", "EMPTY", kHelper, "environment"}, setup);
  EXPECT_EQ(job.Wait(), 0) << job.err();
  std::string id, port;
  for (int rank = 0; rank < 3; ++rank) {
    std::map<std::string, std::string> found = Parsed(LinesOf(rank, job.out()));
    const std::string number = std::to_string(rank);
    std::map<std::string, std::string> expected = {
        {"PATH", "/usr/local/bin:/usr/bin:/bin"},
        {"LAUNCHER_TEST_MARK", found["LAUNCHER_TEST_MARK"]},
        {"EMPTY", ""},
        {"LINES", "a\\nb=c"},
        {"BASH_FUNC_f%%", "() { :; }"},
        {"LONG", std::string(100'000, 'x')},
        {"RUEDA_LOG_LEVEL", "info"},
        {"NEW", "1 2"},
        {"RUEDA_RANK", number},
        {"RUEDA_SIZE", "3"},
        {"RUEDA_LOCAL_RANK", number},
        {"RUEDA_LOCAL_SIZE", "3"},
        {"RUEDA_JOB_ID", found["RUEDA_JOB_ID"]},
        {"RUEDA_SECRET_FD", found["RUEDA_SECRET_FD"]},
        {"RUEDA_AGENT_FD", found["RUEDA_AGENT_FD"]},
        {"RUEDA_AGENT_BELL_FD", found["RUEDA_AGENT_BELL_FD"]},
        {"RANK", number},
        {"WORLD_SIZE", "3"},
        {"LOCAL_RANK", number},
        {"LOCAL_WORLD_SIZE", "3"},
        {"NODE_RANK", "0"},
        {"GROUP_RANK", "0"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", found["MASTER_PORT"]},
        {"HOROVOD_RANK", number},
        {"HOROVOD_SIZE", "3"},
        {"HOROVOD_LOCAL_RANK", number},
        {"HOROVOD_LOCAL_SIZE", "3"},
        {"HOROVOD_CROSS_RANK", "0"},
        {"HOROVOD_CROSS_SIZE", "1"},
        {"HOROVOD_HOSTNAME", HostName()},
        {"OMP_NUM_THREADS", std::to_string(std::max(1, UsableCores() / 3))},
    };
    EXPECT_EQ(found, expected) << "rank " << rank;
    EXPECT_EQ(found["RUEDA_JOB_ID"].size(), 32u);
    EXPECT_EQ(found["RUEDA_JOB_ID"].find_first_not_of("0123456789abcdef"), std::string::npos);
    const int port_number = std::stoi(found["MASTER_PORT"]);
    EXPECT_TRUE(port_number > 0 && port_number < 65'536);
    if (rank > 0) {
      EXPECT_EQ(found["RUEDA_JOB_ID"], id);
      EXPECT_EQ(found["MASTER_PORT"], port);
    }
    id = found["RUEDA_JOB_ID"];
    port = found["MASTER_PORT"];
  }
  Job other({"-np", "1", "sh", "-c", "echo id $RUEDA_JOB_ID"});
  EXPECT_EQ(other.Wait(), 0);
  EXPECT_NE(other.out(), "[0] id " + id + "\n");
}

TEST(Environment, HasThePathThatTheProgramIsLookedForIn) {
  Job job({"-np", "1", "-x", "PATH=/no/such/directory", "true"});
  EXPECT_EQ(job.Wait(), 127);
}

TEST(Descriptors, AreTheStandardOnesAndTheJobsThree) {
  Job job({"-np", "2", "sh", "-c",
           "echo expected 0 1 2 $RUEDA_SECRET_FD $RUEDA_AGENT_FD $RUEDA_AGENT_BELL_FD; exec " +
               kHelper + " descriptors"});
  EXPECT_EQ(job.Wait(), 0);
  for (int rank = 0; rank < 2; ++rank) {
    std::istringstream lines(LinesOf(rank, job.out()));
    std::string expected, found;
    std::getline(lines, expected);
    std::getline(lines, found);
    EXPECT_EQ(expected.substr(expected.find(' ')), found.substr(found.find(' ')));
  }
}

TEST(Input, IsRankZeros) {
  Job::Setup setup;
  setup.input = "hello\nworld";
  Job job({"-np", "2", "sh", "-c", "cat; echo; echo done"}, setup);
  EXPECT_EQ(job.Wait(), 0);
  EXPECT_EQ(LinesOf(0, job.out()), "hello\nworld\ndone\n");
  EXPECT_EQ(LinesOf(1, job.out()), "\ndone\n");
}

TEST(Binding, GivesEachRankACoreOfItsOwn) {
  const int ranks = std::min(2, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  Job job({"-np", std::to_string(ranks), "--bind-to", "core", kHelper, "cores"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  std::vector<std::string> cores;
  for (int rank = 0; rank < ranks; ++rank) {
    cores.push_back(LinesOf(rank, job.out()));
    EXPECT_EQ(std::count(cores.back().begin(), cores.back().end(), ' '), 1) << cores.back();
  }
  std::sort(cores.begin(), cores.end());
  EXPECT_EQ(std::unique(cores.begin(), cores.end()), cores.end());
  Job too_many({"-np", "1024", "--bind-to", "core", "true"});
  EXPECT_EQ(too_many.Wait(), 2);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

TEST(Secret, IsTheSameForAllRanksAndNowhereElse) {
  Job job({"-np", "2", "--verbose", kHelper, "secret"});
  const std::string secret = job.Await("secret sealed ");
  EXPECT_EQ(secret.size(), 64u);
  EXPECT_EQ(job.Await("secret sealed "), secret);
  std::string bytes;
  for (size_t i = 0; i < secret.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(secret.substr(i, 2), nullptr, 16)));
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  int looked_at = 0;
  while (const dirent* entry = readdir(proc.get())) {
    if (std::atoi(entry->d_name) <= 0 || std::atoi(entry->d_name) == getpid()) continue;
    for (const char* file : {"/cmdline", "/environ"}) {
      const std::string text = ReadFile(std::string("/proc/") + entry->d_name + file);
      EXPECT_EQ(text.find(secret), std::string::npos) << entry->d_name << file;
      EXPECT_EQ(text.find(bytes), std::string::npos) << entry->d_name << file;
      looked_at += !text.empty();
    }
  }
  EXPECT_GE(looked_at, 8) << "two files of ruedarun, its supervisor and two ranks at least";
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(), 143);
  EXPECT_NE(job.err().find("ruedarun: job "), std::string::npos) << "it was verbose";
  EXPECT_EQ(job.err().find(secret), std::string::npos);

  Job other({"-np", "1", kHelper, "secret"});
  EXPECT_NE(other.Await("secret sealed "), secret);
  other.Signal(SIGTERM);
  other.Wait();
}

}  // namespace
}  // namespace rueda
