// The base of tests that run on every way to run a job.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "test/support/run_ranks.h"
#include "test/support/sanitized.h"

namespace rueda::testing {

// Whether operations take long here, so that there should be fewer: beside those, CUDA tensors by
// way of device_mirror, whose main function says so.
inline bool takes_long = kSanitized;

class JobTest : public ::testing::TestWithParam<Setup> {
 protected:
  // Runs body(context, rank, ranks) on `size` ranks, or the next number that the setup can do.
  void RunOn(int size, const std::function<void(rueda_context*, int, int)>& body,
             std::vector<std::pair<std::string, std::string>> knobs = {}) {
    const int ranks = GetParam().AtLeast(size);
    RunRanks({ranks, GetParam(), std::move(knobs)},
             [&](rueda_context* context, int rank) { body(context, rank, ranks); });
  }
};

}  // namespace rueda::testing
