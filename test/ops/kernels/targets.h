// Runs a test on every instruction set that this machine has.
#pragma once

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace rueda::kernels {

// This machine's, of those that Highway compiles for; vectors.cc leaves out SSSE3.
inline std::vector<int64_t> Targets() {
  std::vector<int64_t> out = hwy::SupportedAndGeneratedTargets();
  std::erase(out, HWY_SSSE3);
  return out;
}

inline void UseTargets(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);  // 0: the machine's
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

class OnTarget : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { UseTargets(GetParam()); }
  void TearDown() override { UseTargets(0); }
};

inline std::string NameOfTarget(const testing::TestParamInfo<int64_t>& target) {
  return hwy::TargetName(target.param);
}

}  // namespace rueda::kernels
