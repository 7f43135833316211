// The fusion planner, over tensors of one fusion key that fit one bucket.
#include "core/fusion/planner.h"

#include "test/bench/micro/micro.h"

namespace rueda::micro {
namespace {

std::vector<FusionInput> Batch(int tensors) {
  std::vector<FusionInput> batch;
  for (int i = 0; i < tensors; ++i) {
    batch.push_back({static_cast<uint64_t>(i), 0, true, DType::kFloat32, 1'024});
  }
  return batch;
}

}  // namespace

void AddPlanner() {
  for (const int tensors : {1, 200, 500}) {
    Add(
        absl::StrCat("planner/", tensors),
        [=] {
          return [batch = Batch(tensors)] {
            Buckets buckets = PlanFusion(batch, 64 << 20);
            benchmark::DoNotOptimize(buckets.data());
          };
        },
        tensors == 1 ? kCounted : 256);
  }
  Add("planner/digest", [] {
    return [batch = Batch(1)] {
      uint32_t digest = DigestOf(batch[0]);
      benchmark::DoNotOptimize(digest);
    };
  });
}

}  // namespace rueda::micro
