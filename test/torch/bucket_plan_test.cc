// Which parameters share memory and operations: by device, on machines with and without one.
#include "bindings/torch/bucket_plan.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bindings/torch/strategies/buckets.h"

namespace {

using namespace rueda::libtorch;
using Buckets = std::vector<std::vector<size_t>>;

constexpr BucketLimits kRoomy = {.bytes = 1000, .gradients = 100};

// Gradient i is slot 10 + i.
std::vector<SmallGradient> On(const std::vector<at::Device>& devices, size_t bytes = 8) {
  std::vector<SmallGradient> gradients;
  for (const at::Device device : devices) {
    gradients.push_back({10 + gradients.size(), device, at::kFloat, bytes});
  }
  return gradients;
}

TEST(PlanBuckets, ABucketIsOnOneDevice) {
  const at::Device cpu = at::kCPU, first(at::kCUDA, 0), second(at::kCUDA, 1);
  EXPECT_EQ(PlanBuckets(On({cpu, first, cpu, second, first}), kRoomy),
            (Buckets{{10, 12}, {11, 14}, {13}}));
  EXPECT_EQ(PlanBuckets(On({}), kRoomy), Buckets());
}

// Each rank has its device's number.
TEST(PlanBuckets, RanksOnDifferentDevicesHaveTheSameBuckets) {
  const auto plan = [](c10::DeviceIndex index) {
    const at::Device own(at::kCUDA, index);
    return PlanBuckets(On({own, at::kCPU, own, at::kCPU}, 600), kRoomy);
  };
  EXPECT_EQ(plan(0), plan(7));
  EXPECT_EQ(plan(0), (Buckets{{10}, {11}, {12}, {13}}));
}

TEST(PlanBuckets, ABucketIsOfOneTypeAndHasItsLimits) {
  std::vector<SmallGradient> gradients = On({at::kCPU, at::kCPU, at::kCPU, at::kCPU}, 400);
  gradients[1].type = at::kDouble;
  EXPECT_EQ(PlanBuckets(gradients, kRoomy), (Buckets{{10, 12}, {11}, {13}}));
  EXPECT_EQ(PlanBuckets(gradients, {.bytes = 1200, .gradients = 100}),
            (Buckets{{10, 12, 13}, {11}}));
  EXPECT_EQ(PlanBuckets(gradients, {.bytes = 1200, .gradients = 1}),
            (Buckets{{10}, {11}, {12}, {13}}));
}

// "meta" stands for a device: it is there everywhere.
TEST(LayOutBuckets, ABucketIsOnOneDevice) {
  std::vector<Parameter> parameters;
  for (const char* device : {"cpu", "cpu", "meta", "meta", "cpu"}) {
    const auto options = torch::TensorOptions().device(torch::Device(device)).requires_grad(true);
    const std::string name = "layer.w" + std::to_string(parameters.size());
    parameters.push_back({name, torch::empty({16}, options), "." + name, 0, true, at::kFloat});
  }
  const auto lay_out = [&](bool of_modules) {
    std::vector<std::vector<size_t>> members;
    for (const BucketLayout& bucket :
         LayOutBuckets(parameters, {.ranks = 2, .bytes_max = 1 << 20, .of_modules = of_modules})) {
      members.emplace_back();
      for (const BucketLayout::Member& member : bucket.members) {
        members.back().push_back(member.parameter);
        EXPECT_EQ(parameters[member.parameter].tensor.device(), bucket.device);
      }
    }
    return members;
  };
  EXPECT_EQ(lay_out(false), (Buckets{{4, 1, 0}, {3, 2}}));
  EXPECT_EQ(lay_out(true), (Buckets{{4, 1, 0}, {3, 2}}));
}

}  // namespace
