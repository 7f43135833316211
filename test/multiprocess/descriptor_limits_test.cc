// Jobs under low limits of file descriptors (ulimit -n), which they raise or name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "test/launcher/job.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

// On how many hosts the ranks pretend to be. Of ranks that are threads the limit is their
// process's.
class DescriptorLimits : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__)  // and UndefinedBehaviorSanitizer with it
    GTEST_SKIP() << "UndefinedBehaviorSanitizer needs a pipe to look at an object's type";
#endif
  }

  Job::Setup Hosts() const {
    Job::Setup setup;
    setup.environment = {{"RUEDA_HOSTS_FAKE", GetParam()}};
    return setup;
  }
};
INSTANTIATE_TEST_SUITE_P(Hosts, DescriptorLimits, ::testing::Values("0", "2"));

TEST_P(DescriptorLimits, ALowSoftLimitIsRaised) {
  for (const std::string before : {"ulimit -Sn 12", "exec 7<&0 8<&0 9<&0; ulimit -Sn 12"}) {
    Job job({"-np", "8", "sh", "-c", before + "; exec " + HELLO}, Hosts());
    EXPECT_EQ(job.Wait(), 0) << job.err();
    EXPECT_EQ(job.err(), "") << "nobody is refused";
  }
}

// Rank 0 alone: the others come to it first.
TEST_P(DescriptorLimits, AHardLimitThatRanksCanNotComeUnderIsNamed) {
  Job job(
      {"-np", "8", "sh", "-c", std::string("test $RUEDA_RANK != 0 || ulimit -n 12; exec ") + HELLO},
      Hosts());
  EXPECT_EQ(job.Wait(), 1);
  EXPECT_THAT(job.err(), HasSubstr("[0] hello: rank 0 has no file descriptor left"));
  EXPECT_THAT(job.err(), HasSubstr("raise the hard limit (ulimit -Hn)"));
  EXPECT_THAT(job.err(), ::testing::Not(HasSubstr("refused a connection")));
}

}  // namespace
}  // namespace rueda
