// Jobs under low limits of file descriptors (ulimit -n), which they raise or name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "test/launcher/job.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

TEST(DescriptorLimits, ALowSoftLimitIsRaised) {
  Job job({"-np", "8", "sh", "-c", std::string("ulimit -Sn 12; exec ") + HELLO});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.err(), "") << "nobody is refused";
}

// Rank 0 alone: the others come to it first.
TEST(DescriptorLimits, AHardLimitThatRanksCanNotComeUnderIsNamed) {
  Job job({"-np", "8", "sh", "-c",
           std::string("test $RUEDA_RANK != 0 || ulimit -n 12; exec ") + HELLO});
  EXPECT_EQ(job.Wait(), 134);
  EXPECT_THAT(job.err(), HasSubstr("[0]   what():  rank 0 has no file descriptor left"));
  EXPECT_THAT(job.err(), HasSubstr("raise the hard limit (ulimit -Hn)"));
  EXPECT_THAT(job.err(), ::testing::Not(HasSubstr("refused a connection")));
}

}  // namespace
}  // namespace rueda
