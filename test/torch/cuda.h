// Tests that need a CUDA device. Where there is none they skip, and say why.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "rueda/torch.hpp"
#include "test/torch/ranks.h"

namespace rueda::test {

// Why this process can't work on a CUDA device; "": it can.
inline std::string WhyNoCuda() {
  static const std::string reason = [] {
    std::string why;
    init();
    (void)StatusOf([] { (void)libtorch::local_device(at::kCUDA); }, &why);
    shutdown();
    return why;
  }();
  return reason;
}

// The ranks share a device where there are fewer.
inline void RunCudaRanks(int ranks, const std::function<void()>& body) {
  RunRanks(ranks, body, {{"NCCL_MULTI_RANK_GPU_ENABLE", "1"}});
}

}  // namespace rueda::test

// As RANKS_TEST.
#define CUDA_TEST(suite, name, ...)                                \
  static void suite##_##name##_Body();                             \
  TEST(suite, name) {                                              \
    if (std::getenv("RUEDA_RANK") == nullptr) {                    \
      const std::string why = ::rueda::test::WhyNoCuda();          \
      if (!why.empty()) GTEST_SKIP() << "no CUDA device: " << why; \
    }                                                              \
    for (const int ranks : {__VA_ARGS__}) {                        \
      ::rueda::test::RunCudaRanks(ranks, suite##_##name##_Body);   \
      if (HasFailure()) break;                                     \
    }                                                              \
  }                                                                \
  static void suite##_##name##_Body()
