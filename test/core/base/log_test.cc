// Lines for people, and the last words of a broken invariant. Each test's own thread.
#include "core/base/log.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/base/check.h"

namespace rueda {
namespace {

class Log : public ::testing::Test {
 protected:
  ~Log() override {
    SetLogLevel(LogLevel::kWarning);
    SetLogRank(-1);
  }
  template <typename Body>
  static std::string Printed(Body body) {
    ::testing::internal::CaptureStderr();
    body();
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(Log, PrintsWarningsAndErrorsByDefault) {
  EXPECT_EQ(Printed([] {
              RUEDA_LOG(Debug) << "d";
              RUEDA_LOG(Info) << "i";
              RUEDA_LOG(Warning) << "w " << 1;
              RUEDA_LOG(Error) << "e";
            }),
            "[rueda] W w 1\n[rueda] E e\n");
}

TEST_F(Log, LevelOffPrintsNothing) {
  SetLogLevel(LogLevel::kOff);
  EXPECT_EQ(Printed([] { RUEDA_LOG(Error) << "e"; }), "");
  SetLogLevel(LogLevel::kDebug);
  EXPECT_EQ(Printed([] { RUEDA_LOG(Debug) << "d"; }), "[rueda] D d\n");
}

TEST_F(Log, WordsOfADisabledLineAreNotEvaluated) {
  int evaluated = 0;
  RUEDA_LOG(Debug) << ++evaluated;
  EXPECT_EQ(evaluated, 0);
}

TEST_F(Log, TheRankBelongsToTheThread) {
  SetLogRank(2);
  std::string other;
  std::thread([&] {
    EXPECT_EQ(LogRank(), -1);
    SetLogRank(3);
  }).join();
  EXPECT_EQ(LogRank(), 2);
  EXPECT_EQ(Printed([] { RUEDA_LOG(Error) << "e"; }), "[rueda 2] E e\n");
}

TEST(CheckDeathTest, NamesThePlaceTheConditionAndTheWords) {
  const int n = 3;
  RUEDA_CHECK(n == 3) << "not evaluated";
  EXPECT_DEATH(RUEDA_CHECK(n == 4) << "n is " << n,
               "rueda: .*log_test.cc:[0-9]+: broken invariant: n == 4 n is 3");
}

}  // namespace
}  // namespace rueda
