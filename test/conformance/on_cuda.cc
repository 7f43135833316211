// The main function of the conformance tests on CUDA tensors (test/support/device_mirror.h): leaves
// out what is not for them, skips where there is no device, and says at the end what went to the
// device and what did not. Something that went to the CPU otherwise than by design is a failure.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "rueda/rueda.h"
#include "test/support/device_mirror.h"
#include "test/support/jobs.h"

namespace rueda::testing {
namespace {

// The whole list. Beside it, each executable's setups stand in CMakeLists.txt.
struct LeftOut {
  const char* pattern;
  const char* reason;
};
constexpr LeftOut kLeftOut[] = {
    {"*/Adasum.*", "adasum is for the CPU"},
    {"*.TensorsInArenas/*", "memory that ranks share is the CPU's"},
    {"*.AutoT*", "which compressor `auto` takes is the CPU's"},
};

// Suites that ask for the CPU's bits.
bool WantsTheCpusBits(const std::string& suite) {
  return suite.find("/Bits") != std::string::npos;
}

class Knobs : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& test) override {
    if (WantsTheCpusBits(test.test_suite_name())) {
      SetMirrorKnobs({{"deterministic", "1"}});
    } else {
      SetMirrorKnobs({});
    }
  }
};

// In a process of its own: CUDA does not survive a fork, and the tests fork.
bool HasDevice() {
  std::fflush(nullptr);
  const int pid = fork();
  if (pid == 0) {
    rueda_init_options init = RUEDA_INIT_OPTIONS_INIT;
    rueda_context* context = nullptr;
    rueda_device device;
    const bool found = rueda_init(RUEDA_VERSION, &init, &context) == RUEDA_OK &&
                       rueda_local_device(context, RUEDA_CUDA, &device) == RUEDA_OK;
    if (!found) std::printf("SKIPPED: %s\n", rueda_last_error());
    std::fflush(nullptr);
    _exit(found ? 0 : 1);
  }
  int status = 0;
  return waitpid(pid, &status, 0) == pid && status == 0;
}

int Run() {
  if (!HasDevice()) return 77;
  std::string filter = GTEST_FLAG_GET(filter);
  for (const LeftOut& one : kLeftOut) {
    std::printf("Left out: %s (%s)\n", one.pattern, one.reason);
    filter += (filter.find('-') == std::string::npos ? "-" : ":") + std::string(one.pattern);
  }
  GTEST_FLAG_SET(filter, filter);
  takes_long = true;
  ::testing::UnitTest::GetInstance()->listeners().Append(new Knobs);
  int result = RUN_ALL_TESTS();
  // A shard may have none of them. All of them left out at once would be a mistake.
  const bool sharded = std::getenv("GTEST_TOTAL_SHARDS") != nullptr;
  if (sharded && ::testing::UnitTest::GetInstance()->test_to_run_count() == 0) return result;
  const MirrorCounts counts = CountMirrored();
  std::printf("%s\n", ToString(counts).c_str());
  bool by_design = counts.mirrored > 0;
  for (int i = 0; i < static_cast<int>(OnCpu::kCount); ++i) {
    by_design = by_design && (counts.on_cpu[i] == 0 || IsByDesign(static_cast<OnCpu>(i)));
  }
  if (!by_design) {
    std::printf("FAILED: some did not go to the device, and not by design\n");
    result = 1;
  }
  return result;
}

}  // namespace
}  // namespace rueda::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return rueda::testing::Run();
}
