// The reason for the wall: a process that has loaded libtorch_cpu.so, with its own younger Gloo,
// for all to bind to, and then uses ours.
#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "test/ops/gloo/ranks.h"

namespace rueda {
namespace {

// libtorch_cpu.so of the project's virtual environment; "" when there is none.
std::string FindTorch() {
  std::string venv;
  if (const char* given = getenv("RUEDA_VENV"); given != nullptr) {
    venv = given;
  } else if (const char* home = getenv("HOME"); home != nullptr) {
    venv = std::string(home) + "/.cache/rueda/venv";
  }
  glob_t found = {};
  const std::string pattern = venv + "/lib/python3*/site-packages/torch/lib/libtorch_cpu.so";
  std::string path;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) path = found.gl_pathv[0];
  globfree(&found);
  return path;
}

class GlooBesideTorch : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "this sanitizer opens modules without RTLD_DEEPBIND";
#endif
    const std::string path = FindTorch();
    if (path.empty()) GTEST_SKIP() << "there is no torch in RUEDA_VENV or ~/.cache/rueda/venv";
    ASSERT_NE(dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
    ASSERT_NE(dlsym(RTLD_DEFAULT, "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE"), nullptr)
        << "this torch brings no Gloo, so nothing is tested";
  }
};

TEST_F(GlooBesideTorch, AllreducesAreRight) {
  RunMembers(3, [](Member& member, int rank) {
    for (const int64_t count : {10, 200'000, 2'000'000}) {  // one for each algorithm
      std::vector<float> data(count, static_cast<float>(1 + rank));
      const Piece piece = {data.data(), data.data(), count};
      for (int round = 0; round < 5; ++round) {
        ASSERT_TRUE(
            member.Execute(AllreduceOf({&piece, 1}, DType::kFloat32, ReduceOp::kAverage)).ok());
        EXPECT_EQ(data, std::vector<float>(count, 2));
      }
    }
    std::vector<int64_t> counts = {1, 0, 2};
    std::vector<int32_t> mine(counts[rank], rank), all(3);
    const Piece piece = {mine.data(), all.data(), counts[rank]};
    EXPECT_TRUE(member.Execute(AllgatherOf(piece, DType::kInt32, counts)).ok());
    EXPECT_EQ(all, (std::vector<int32_t>{0, 2, 2}));
    EXPECT_TRUE(member.Execute(BarrierOf()).ok());
  });
}

}  // namespace
}  // namespace rueda
