// The list of backends, and what is made out of it. Each test's own thread.
#include "ops/backends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

#define RUEDA_NAME(name, make, choice) name,
#define RUEDA_CHOICE(name, make, choice) choice,
constexpr const char* kNames[] = {RUEDA_BACKENDS(RUEDA_NAME)};
constexpr bool kChoices[] = {RUEDA_BACKENDS(RUEDA_CHOICE)};

TEST(Backends, AreThoseOfTheListInItsOrder) {
  const Config config;
  BackendArgs args;
  args.config = &config;
  const std::vector<std::unique_ptr<Backend>> backends = MakeBackends(std::move(args));
  ASSERT_EQ(backends.size(), std::size(kNames));
  int on_device = 0;
  for (size_t i = 0; i < backends.size(); ++i) {
    EXPECT_EQ(backends[i]->name(), kNames[i]);
    on_device += backends[i]->on_device() != nullptr;
  }
  EXPECT_EQ(on_device, 1) << "the engine uses the first";
}

TEST(Backends, TheKnobTakesTheChoicesOfTheListAndNoOther) {
  std::string allowed = "auto";
  for (size_t i = 0; i < std::size(kNames); ++i) {
    Config config;
    const absl::Status status = SetKnob("backend", kNames[i], &config);
    EXPECT_EQ(status.ok(), kChoices[i]) << kNames[i];
    if (kChoices[i]) {
      EXPECT_EQ(config.backend, kNames[i]);
      absl::StrAppend(&allowed, ", ", kNames[i]);
    }
  }
  Config config;
  EXPECT_THAT(SetKnob("backend", "pigeon", &config).message(),
              HasSubstr(absl::StrCat("expected one of ", allowed)));
}

}  // namespace
}  // namespace rueda
