// The C++ API's own part: what it adds to the C API, in a world of one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "rueda/rueda.hpp"

namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

class Cpp : public ::testing::Test {
 protected:
  void SetUp() override { rueda::init(); }
  void TearDown() override { rueda::shutdown(); }
};

TEST_F(Cpp, HandlesMayOutliveTheJob) {
  std::vector<float> data(10, 1);
  const auto synchronized = rueda::allreduce_async(data, "a");
  const auto left = rueda::allreduce_async(data, "b");
  const auto in_place = rueda::allreduce_async_(data, "c");
  EXPECT_EQ(rueda::synchronize(synchronized), data);
  rueda::shutdown();
  EXPECT_THROW(rueda::synchronize(left), rueda::Error);
  rueda::init();
  EXPECT_THROW(rueda::synchronize(left), rueda::Error);  // the new job is another
  EXPECT_THROW(rueda::poll(in_place), rueda::Error);
}

TEST_F(Cpp, AResultIsTakenOnce) {
  const std::vector<float> data(3, 2);
  const auto handle = rueda::allreduce_async(data, "once");
  EXPECT_EQ(rueda::synchronize(handle), data);
  EXPECT_THAT([&] { rueda::synchronize(handle); },
              ThrowsMessage<rueda::Error>(HasSubstr("taken already")));
  const auto gathered = rueda::allgather_async(data, "gathered");
  EXPECT_EQ(rueda::synchronize(gathered), data);
  EXPECT_THAT([&] { rueda::synchronize(gathered); },
              ThrowsMessage<rueda::Error>(HasSubstr("taken already")));
}

TEST_F(Cpp, NamesWithANulByteAreRefused) {
  std::vector<float> data(3, 2);
  EXPECT_THAT([&] { rueda::allreduce_(data, std::string("nul\0x", 5)); },
              ThrowsMessage<rueda::Error>(HasSubstr("NUL")));
}

TEST_F(Cpp, ATimelineIsWrittenBetweenStartAndStop) {
  const std::string path = ::testing::TempDir() + "/cpp-timeline-" + std::to_string(getpid());
  std::vector<float> data(3, 2);
  rueda::allreduce_(data, "before");
  rueda::start_timeline(path);
  rueda::allreduce_(data, "between");
  EXPECT_THAT([&] { rueda::start_timeline(path); },
              ThrowsMessage<rueda::Error>(HasSubstr("is on already: " + path)));
  rueda::stop_timeline();
  rueda::allreduce_(data, "behind");
  EXPECT_THAT([] { rueda::stop_timeline(); }, ThrowsMessage<rueda::Error>(HasSubstr("is off")));
  EXPECT_THAT([] { rueda::start_timeline(std::string("nul\0x", 5)); },
              ThrowsMessage<rueda::Error>(HasSubstr("NUL")));
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  unlink(path.c_str());
  EXPECT_THAT(text.str(), AllOf(HasSubstr("{\"name\":\"between\"}"), EndsWith("\n]\n"),
                                Not(HasSubstr("before")), Not(HasSubstr("behind"))));
}

TEST_F(Cpp, KnobsThatComeTooLateAreRefused) {
  rueda::init();  // harmless
  EXPECT_THAT(
      [] {
        rueda::init({{"fusion_threshold", "1"}});
      },
      ThrowsMessage<rueda::Error>(HasSubstr("fusion_threshold")));
  EXPECT_EQ(rueda::size(), 1);
}

}  // namespace
