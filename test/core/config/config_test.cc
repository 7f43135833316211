// Knobs: what is taken, and the words with which the rest is refused. Each test's own thread.
#include "core/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

// The words with which a knob, or an environment, is refused; "" when it is taken.
std::string Refusal(absl::string_view name, absl::string_view value) {
  Config config;
  const absl::Status status = SetKnob(name, value, &config);
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

std::string Refusal(const Environment& environment) {
  Config config;
  const absl::Status status = ReadEnvironment(environment, &config);
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

Config Read(const Environment& environment) {
  Config config;
  const absl::Status status = ReadEnvironment(environment, &config);
  EXPECT_TRUE(status.ok()) << status;
  return config;
}

TEST(Config, EachTypeIsParsed) {
  Config config;
  ASSERT_TRUE(SetKnob("fusion_threshold", "1048576", &config).ok());
  ASSERT_TRUE(SetKnob("stall_timeout_s", "0.25", &config).ok());
  ASSERT_TRUE(SetKnob("bus", "tcp", &config).ok());
  ASSERT_TRUE(SetKnob("recorder_dir", "/a b/c", &config).ok());
  EXPECT_EQ(config.fusion_threshold, 1'048'576);
  EXPECT_EQ(config.stall_timeout_s, 0.25);
  EXPECT_EQ(config.bus, "tcp");
  EXPECT_EQ(config.recorder_dir, "/a b/c");
  EXPECT_EQ(config.backend, "auto") << "the others keep their values";
}

TEST(Config, LimitsAreIncluded) {
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, const char*>>{{"rank", "0"},
                                                        {"rank", "65535"},
                                                        {"size", "1"},
                                                        {"size", "65536"},
                                                        {"fusion_threshold", "1"},
                                                        {"fusion_threshold", "1000000000000"},
                                                        {"stall_timeout_s", "0"},
                                                        {"secret_fd", "3"},
                                                        {"secret_fd", "1073741824"}}) {
    EXPECT_EQ(Refusal(name, value), "") << name << "=" << value;
  }
}

TEST(Config, RefusesWhatIsNotAWholeNumberInRange) {
  for (const char* value : {"", " ", "x", "1.5", "1e3", "0x10", "65536", "-1", "1 2", " 5", "5 ",
                            "+5", "-0", "9223372036854775808", "99999999999999999999"}) {
    EXPECT_EQ(Refusal("rank", value),
              absl::StrCat("rank=", value, ": expected a whole number from 0 to 65535"));
  }
}

TEST(Config, PrintsLargeLimitsInFull) {
  EXPECT_THAT(Refusal("secret_fd", "2"), HasSubstr("a whole number from 3 to 1073741824"));
  EXPECT_THAT(Refusal("fusion_threshold", "-1"), HasSubstr("from 0 to 1000000000000"));
}

TEST(Config, RefusesWhatIsNotANumberInRange) {
  for (const char* value : {"", "x", "nan", "inf", "-inf", "1e400", "-0.1", "1e10", "1,5", "0x10",
                            " 5", "5 ", "+5", "-0", "-0.0", ".5", "-"}) {
    EXPECT_THAT(Refusal("stall_timeout_s", value),
                HasSubstr(absl::StrCat("stall_timeout_s=", value, ": expected a number from 0 to")))
        << value;
  }
  EXPECT_THAT(Refusal("start_timeout_s", "0"), HasSubstr("a number from 0.01 to"));
}

// Shorter ones would take ranks for lost that run: a host is busy for longer at times.
TEST(Config, AHeartbeatLimitIsNoneOrLongEnough) {
  for (const char* value : {"0", "0.0", "0.1", "4"}) {
    EXPECT_EQ(Refusal("heartbeat_limit_s", value), "") << value;
  }
  for (const char* value : {"0.099", "-0.1", "1e-9"}) {
    EXPECT_EQ(
        Refusal("heartbeat_limit_s", value),
        absl::StrCat("heartbeat_limit_s=", value, ": expected 0 or a number from 0.1 to 1e+06"));
  }
}

TEST(Config, RefusesAWordThatIsNoChoice) {
  for (const char* value : {"", "Auto", "auto ", "auto|shm", "nccl"}) {
    EXPECT_EQ(Refusal("backend", value),
              absl::StrCat("backend=", value, ": expected one of auto, shm, gloo"));
  }
}

TEST(Config, ARefusedValueChangesNothing) {
  Config config;
  EXPECT_FALSE(SetKnob("rank", "-3", &config).ok());
  EXPECT_FALSE(SetKnob("bus", "carrier pigeon", &config).ok());
  EXPECT_EQ(config.rank, -1);
  EXPECT_EQ(config.bus, "auto");
}

TEST(Config, AnUnknownKnobIsRefusedWithTheNearest) {
  EXPECT_EQ(Refusal("fusion_treshold", "1"),
            "unknown knob fusion_treshold; did you mean fusion_threshold?");
  EXPECT_EQ(Refusal("", "1"), "unknown knob ");
}

TEST(Config, ReadsTheEnvironment) {
  const Config config = Read({{"RUEDA_RANK", "2"},
                              {"RUEDA_SIZE", "4"},
                              {"RUEDA_LOG_LEVEL", "debug"},
                              {"RUEDA_JOB_ID", ""},
                              {"PATH", "/bin"},
                              {"rueda_bus", "nonsense"},
                              {"XRUEDA_BUS", "nonsense"}});
  EXPECT_EQ(config.rank, 2);
  EXPECT_EQ(config.size, 4);
  EXPECT_EQ(config.log_level, "debug");
}

TEST(Config, AnErrorNamesTheVariableThatTheUserWrote) {
  EXPECT_EQ(Refusal({{"RUEDA_BUS", "x"}}), "RUEDA_BUS=x: expected one of auto, log, tcp");
  EXPECT_THAT(Refusal({{"HOROVOD_FUSION_THRESHOLD", "64M"}}),
              HasSubstr("HOROVOD_FUSION_THRESHOLD=64M: expected a whole number"));
}

TEST(Config, HorovodsNamesAreRead) {
  const Config config = Read({{"HOROVOD_FUSION_THRESHOLD", "4096"},
                              {"HOROVOD_GLOO_IFACE", "eth7"},
                              {"HOROVOD_START_TIMEOUT", "7"},
                              {"HOROVOD_STALL_CHECK_TIME_SECONDS", "8"},
                              {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "9"},
                              {"HOROVOD_GLOO_TIMEOUT_SECONDS", "11"},
                              {"HOROVOD_TIMELINE", "/a b/t.json"},
                              {"HOROVOD_LOG_LEVEL", "FATAL"}});
  EXPECT_EQ(config.fusion_threshold, 4'096);
  EXPECT_EQ(config.network_interface, "eth7");
  EXPECT_EQ(config.start_timeout_s, 7);
  EXPECT_EQ(config.stall_warn_s, 8);
  EXPECT_EQ(config.stall_timeout_s, 9);
  EXPECT_EQ(config.gloo_timeout_s, 11);
  EXPECT_EQ(config.timeline, "/a b/t.json");
  EXPECT_EQ(config.log_level, "error");
  EXPECT_EQ(Read({{"HOROVOD_LOG_LEVEL", "trace"}}).log_level, "debug");
  EXPECT_EQ(Read({{"HOROVOD_LOG_LEVEL", "Info"}}).log_level, "info");
  EXPECT_EQ(Read({{"HOROVOD_LOG_LEVEL", "WARN"}}).log_level, "warning");
  EXPECT_EQ(Read({{"HOROVOD_FUSION_THRESHOLD", "0"}}).fusion_threshold, 0) << "no fusion";
}

TEST(Config, OurNameWinsOverHorovods) {
  EXPECT_EQ(
      Read({{"HOROVOD_FUSION_THRESHOLD", "1"}, {"RUEDA_FUSION_THRESHOLD", "2"}}).fusion_threshold,
      2);
  EXPECT_EQ(Refusal({{"HOROVOD_FUSION_THRESHOLD", "junk"}, {"RUEDA_FUSION_THRESHOLD", "2"}}), "");
}

TEST(Config, SettingsThatAJobDoesWithoutAreIgnored) {
  EXPECT_EQ(Refusal({{"HOROVOD_CYCLE_TIME", "1"},
                     {"HOROVOD_CACHE_CAPACITY", "0"},
                     {"HOROVOD_TIMELINE_MARK_CYCLES", "1"},
                     {"HOROVOD_ELASTIC", "0"}}),
            "");
  EXPECT_EQ(Refusal({{"HOROVOD_RANK", "1"}, {"HOROVOD_WITH_PYTORCH", "1"}}), "")
      << "what launchers and builds set is not ours to judge";
  EXPECT_EQ(
      Refusal({{"HOROVOD_ELASTIC", "1"}}),
      "environment variable HOROVOD_ELASTIC: elastic jobs are started by ruedarun --min-np N, "
      "and this one is not; unset it");
  EXPECT_EQ(Refusal({{"HOROVOD_ELASTIC", "1"}, {"RUEDA_ELASTIC_FD", "7"}}), "");
}

TEST(Config, AnEmptyVariableIsAsIfItWereNotSet) {
  EXPECT_EQ(Refusal({{"RUEDA_NO_KNOB", ""}, {"HOROVOD_ELASTIC", ""}}), "");
  EXPECT_EQ(Read({{"RUEDA_BACKEND", ""}, {"RUEDA_STALL_WARN_S", ""}}).backend, Config().backend);
  EXPECT_EQ(
      Read({{"RUEDA_FUSION_THRESHOLD", ""}, {"HOROVOD_FUSION_THRESHOLD", "7"}}).fusion_threshold,
      7);
}

// https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
TEST(Config, VariablesOfAServiceOfKubernetesAreLetThrough) {
  EXPECT_EQ(Refusal({{"RUEDA_PORT", "tcp://10.0.0.1:80"},
                     {"RUEDA_SERVICE_HOST", "10.0.0.1"},
                     {"RUEDA_SERVICE_PORT", "80"},
                     {"RUEDA_PORT_80_TCP", "tcp://10.0.0.1:80"},
                     {"RUEDA_PORT_80_TCP_PROTO", "tcp"},
                     {"RUEDA_PORT_80_TCP_PORT", "80"},
                     {"RUEDA_PORT_80_TCP_ADDR", "10.0.0.1"},
                     {"RUEDA_TRAIN_PORT", "udp://10.0.0.1:53"},
                     {"RUEDA_TRAIN_SERVICE_PORT_HTTP", "80"},
                     {"RUEDA_RANK_SERVICE_HOST", "fd00::1"}}),
            "");
  EXPECT_THAT(Refusal({{"RUEDA_PORT", "80"}}),
              HasSubstr("unknown environment variable RUEDA_PORT"));
  EXPECT_THAT(Refusal({{"RUEDA_SERVICE", "x"}}), HasSubstr("unknown environment variable"));
}

TEST(Config, VariablesOfScriptsAreLetThrough) {
  for (const char* name : {"VENV", "PIP_ARGS", "PREFIX", "SYSROOT", "DEBIAN_MIRROR"}) {
    EXPECT_EQ(Refusal({{absl::StrCat("RUEDA_", name), "x"}}), "");
  }
}

TEST(Config, AnUnknownVariableIsRefusedWithTheNearest) {
  EXPECT_EQ(Refusal({{"RUEDA_FUSION_TRESHOLD", "1"}}),
            "unknown environment variable RUEDA_FUSION_TRESHOLD; did you mean "
            "RUEDA_FUSION_THRESHOLD?");
  EXPECT_EQ(Refusal({{"RUEDA_BUSS", "tcp"}}),
            "unknown environment variable RUEDA_BUSS; did you mean RUEDA_BUS?");
  EXPECT_EQ(Refusal({{"RUEDA_LOCAL_RNAK", "1"}}),
            "unknown environment variable RUEDA_LOCAL_RNAK; did you mean RUEDA_LOCAL_RANK?");
}

// What all names begin with says nothing about nearness.
TEST(Config, TheCommonPrefixMakesNothingNear) {
  for (const char* name : {"RUEDA_FOO", "RUEDA_", "RUEDA_X", "RUEDA_ABCD", "RUEDA_DAYBOOK"}) {
    EXPECT_EQ(Refusal({{name, "1"}}), absl::StrCat("unknown environment variable ", name));
  }
}

TEST(Config, NearestIsTheClosestWithinAThirdOfTheWord) {
  const std::vector<std::string> known = {"rank", "ranks", "local_rank"};
  EXPECT_EQ(Nearest("rank", known), "rank");
  EXPECT_EQ(Nearest("rankz", known), "rank");
  EXPECT_EQ(Nearest("local_rnak", known), "local_rank");
  EXPECT_EQ(Nearest("local_sack", known), "local_rank");
  EXPECT_EQ(Nearest("bonk", known), "");
  EXPECT_EQ(Nearest("r", known), "");
  EXPECT_EQ(Nearest("", known), "");
  EXPECT_EQ(Nearest("rank", {}), "");
}

TEST(Config, AgreedKnobsAreThoseThatAllRanksMustShare) {
  Config config;
  ASSERT_TRUE(SetKnob("fusion_threshold", "123", &config).ok());
  ASSERT_TRUE(SetKnob("rank", "7", &config).ok());
  const auto agreed = AgreedKnobs(config);
  EXPECT_THAT(agreed, Contains(Pair("fusion_threshold", "123")));
  EXPECT_THAT(agreed, Contains(Pair("bus", "auto")));
  for (const char* own : {"rank", "wait", "log_level", "secret_fd", "recorder_dir", "timeline"}) {
    EXPECT_THAT(agreed, Not(Contains(Pair(own, ::testing::_)))) << own;
  }
}

TEST(Config, AKnobsTextReadsBackAsItself) {
  Config config;
  config.fusion_threshold = 77;
  config.stall_warn_s = 1.5;
  config.wait = "yield";
  for (const char* name : {"fusion_threshold", "stall_warn_s", "wait"}) {
    const std::string text = KnobText(name, config);
    Config copy;
    ASSERT_TRUE(SetKnob(name, text, &copy).ok()) << text;
    EXPECT_EQ(KnobText(name, copy), text);
  }
  EXPECT_EQ(KnobText("stall_warn_s", config), "1.5");
}

TEST(Config, TheDocumentNamesEveryVariableOnce) {
  const std::string document = KnobsMarkdown();
  for (const char* name : {"RUEDA_BACKEND", "RUEDA_SECRET_FILE", "RUEDA_HOSTS_FAKE"}) {
    const std::string row = absl::StrCat("| `", name, "` |");
    const size_t first = document.find(row);
    ASSERT_NE(first, std::string::npos) << name;
    EXPECT_EQ(document.find(row, first + 1), std::string::npos) << name;
  }
  EXPECT_THAT(document, AllOf(HasSubstr("| `RUEDA_BUS` | `auto`, `log`, `tcp` | `auto` |"),
                              HasSubstr("`HOROVOD_CYCLE_TIME`")));
}

TEST(Config, TheProcessEnvironmentIsReadWhole) {
  ASSERT_EQ(setenv("UNITS_OF_RUEDA", "a=b", 1), 0);
  const Environment environment = ProcessEnvironment();
  unsetenv("UNITS_OF_RUEDA");
  ASSERT_TRUE(environment.contains("UNITS_OF_RUEDA"));
  EXPECT_EQ(environment.at("UNITS_OF_RUEDA"), "a=b");
}

}  // namespace
}  // namespace rueda
