// Tensors that tell which rank made them, and how they are compared.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "rueda/torch.hpp"

namespace rueda::test {

// [[0, 1, 2], [3, 4, 5]] + `offset`.
inline torch::Tensor Six(double offset, torch::ScalarType type = torch::kFloat) {
  return (torch::arange(6).reshape({2, 3}) + offset).to(type);
}

// 0 + 1 + ... + (n - 1), where n is the number of ranks.
inline double RankSum() {
  return size() * (size() - 1) / 2.0;
}

inline testing::AssertionResult Same(const torch::Tensor& got, const torch::Tensor& expected) {
  if (!got.defined()) return testing::AssertionFailure() << "got an undefined tensor";
  if (got.scalar_type() == expected.scalar_type() && torch::equal(got, expected)) {
    return testing::AssertionSuccess();
  }
  std::ostringstream text;
  text << "got\n" << got << "\nexpected\n" << expected;
  return testing::AssertionFailure() << text.str();
}

}  // namespace rueda::test
