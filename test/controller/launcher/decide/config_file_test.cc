#include "controller/launcher/decide/config_file.h"

#include <gtest/gtest.h>

namespace rueda {
namespace {

using Words = std::vector<std::string>;

Words Read(const std::string& text) {
  absl::StatusOr<Words> words = ReadConfigFile(text);
  EXPECT_TRUE(words.ok()) << words.status().ToString();
  return words.ok() ? *words : Words();
}

TEST(ConfigFile, StandsForOptions) {
  EXPECT_EQ(Read("np: 4\noutput_dir: /out dir\nverbose: true\n"),
            Words({"--np=4", "--output-dir=/out dir", "--verbose"}));
  EXPECT_EQ(Read("x: [A=1, B]\n"), Words({"--x=A=1", "--x=B"}));
  EXPECT_EQ(Read("hosts: [a:2, b]\n"), Words({"--hosts=a:2", "--hosts=b"}));
  EXPECT_EQ(Read("verbose: false\nprefix:\n"), Words({}));
  EXPECT_EQ(Read("x: \"yes\"\n"), Words({"--x=yes"}));
  EXPECT_EQ(Read(""), Words({}));
  EXPECT_EQ(Read("# nothing\n"), Words({}));
  EXPECT_EQ(Read("{\"np\": 2}"), Words({"--np=2"}));  // JSON is YAML
}

TEST(ConfigFile, HasHorovodsSections) {
  EXPECT_EQ(Read("verbose: true\n"
                 "params:\n  fusion_threshold_mb: 32\n"
                 "timeline:\n  filename: t.json\n"
                 "stall_check:\n  enabled: true\n  warning_time_seconds: 60\n"
                 "logging:\n  level: INFO\n"
                 "library_options:\n  gloo_timeout_seconds: 10\n"
                 "autotune:\n  enabled: false\n"),
            Words({"--verbose", "--fusion-threshold-mb=32", "--timeline-filename=t.json",
                   "--stall-check-warning-time-seconds=60", "--log-level=INFO",
                   "--gloo-timeout-seconds=10"}));
  EXPECT_EQ(Read("autotune:\n  enabled: true\nstall-check:\n  enabled: false\n"),
            Words({"--autotune", "--no-stall-check"}));
}

TEST(ConfigFile, IsRefusedWithTheLine) {
  const struct {
    std::string text, message;
  } kCases[] = {
      {"np: 4\n- 3\n", "line 2: "},
      {"just words\n", "line 1: expected lines of the form OPTION: VALUE"},
      {"np: 4\nhosts: {a: 4}\n", "line 2: hosts: expected a value"},
      {"np: 4\n\n[a, b]: 1\n", "line 3: expected the name of an option"},
      {"np: [4\n", "line "},
      {"verbose: true\nnp: [2, 3]\n", "line 2: np: expected one value, not a list"},
      {"np: *nowhere\n", "line 1: "},
  };
  for (const auto& each : kCases) {
    const absl::StatusOr<Words> words = ReadConfigFile(each.text);
    EXPECT_EQ(words.status().code(), absl::StatusCode::kInvalidArgument) << each.text;
    EXPECT_EQ(words.status().message().substr(0, each.message.size()), each.message) << each.text;
  }
}

}  // namespace
}  // namespace rueda
