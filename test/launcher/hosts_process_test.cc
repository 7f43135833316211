// -H and --hostfile, as far as they name this host; test/clusters has others.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "test/launcher/job.h"

namespace rueda {
namespace {

const std::vector<std::string> kProgram = {"sh", "-c", "echo \"$RANK of $WORLD_SIZE\""};

std::vector<std::string> Words(std::vector<std::string> options) {
  options.insert(options.end(), kProgram.begin(), kProgram.end());
  return options;
}

void ExpectTwoRanks(const std::vector<std::string>& options) {
  Job job(Words(options));
  EXPECT_EQ(job.Wait(), 0) << options.back() << ": " << job.err();
  EXPECT_EQ(LinesOf(0, job.out()), "0 of 2\n");
  EXPECT_EQ(LinesOf(1, job.out()), "1 of 2\n");
}

void ExpectRefused(const std::vector<std::string>& options, const std::string& why) {
  Job job(Words(options));
  EXPECT_EQ(job.Wait(), 2) << options.back();
  EXPECT_EQ(job.err().substr(0, 10 + why.size()), "ruedarun: " + why);
  EXPECT_EQ(job.out(), "");
}

TEST(Hosts, ThisOneHasSeveralNames) {
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof name - 1), 0);
  for (const std::string& host :
       {std::string("localhost"), std::string("127.0.0.1"), std::string(name)}) {
    ExpectTwoRanks({"-np", "2", "-H", host + ":2"});
  }
  ExpectTwoRanks({"-np", "2", "-H", "localhost,127.0.0.1"});
  ExpectTwoRanks({"-np", "2", "-H", "localhost:2,192.0.2.1:2"});  // the second is not needed
}

TEST(Hosts, HaveEnoughSlots) {
  ExpectRefused({"-np", "3", "-H", "localhost:2"}, "3 ranks, but the hosts have 2 slots; ");
  ExpectTwoRanks({"-H", "localhost:2"});  // as many ranks as slots
}

TEST(Hosts, StandInAFile) {
  char folder[] = "/tmp/rueda-hosts-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/hosts";
  ExpectRefused({"-np", "2", "--hostfile", path}, "opening " + path + ": ");
  ExpectRefused({"-np", "2", "--hostfile", folder}, "reading " + std::string(folder) + ": ");
  std::ofstream(path) << "# here\nlocalhost slots=2\n";
  ExpectTwoRanks({"-np", "2", "--hostfile", path});
  std::ofstream(path) << "localhost slots=2\nlocalhost tasks=2\n";
  ExpectRefused({"-np", "2", "--hostfile", path},
                path + ": line 2: 'tasks=2': expected a host and ");
  std::ofstream(path) << std::string((1 << 20) + 1, '\n');
  ExpectRefused({"-np", "2", "--hostfile", path}, "reading " + path + ": it is larger than 1 MiB");
  std::filesystem::remove_all(folder);
}

TEST(Hosts, OfAFileThatNobodyWritesCanBeInterrupted) {
  char folder[] = "/tmp/rueda-hosts-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/hosts";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  Job job(Words({"-np", "2", "--hostfile", path}));
  ASSERT_TRUE(AwaitState(job.pid(), 'S'));
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(), -SIGTERM);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace rueda
